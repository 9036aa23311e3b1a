"""Measuring descriptors."""
