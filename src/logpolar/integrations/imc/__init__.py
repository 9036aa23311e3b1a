"""Submissions to the Image Matching Challenge: export and validation."""
