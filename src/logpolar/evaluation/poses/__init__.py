"""Relative poses of two and of several views from matched descriptors."""
