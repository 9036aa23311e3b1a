"""Evaluation of descriptors: protocols and ``evaluate``, which runs them; metrics, cache, result files and report."""
