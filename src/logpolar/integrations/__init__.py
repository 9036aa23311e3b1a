"""Adapters to other libraries and programs: OpenCV, kornia, the Image Matching Challenge."""
