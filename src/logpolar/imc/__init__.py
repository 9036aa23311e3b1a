"""Submissions to the Image Matching Challenge, as its benchmark reads them."""
