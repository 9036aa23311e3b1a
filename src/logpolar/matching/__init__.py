"""Matching: which pairs, which keypoints of a pair, and the files that hold the result."""
