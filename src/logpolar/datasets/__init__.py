"""Correspondences for training and testing: builders from COLMAP scenes and photos, their files and pictures."""
