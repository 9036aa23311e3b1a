"""What is measured: descriptors, by spec, and whole features with keypoints of their own."""
