"""Cameras, homographies, two-view estimation, radius search."""
