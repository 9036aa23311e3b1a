"""Correspondences for training and testing."""
