"""Cameras, two-view estimation, pose errors, points within a radius."""
