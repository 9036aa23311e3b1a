"""Methods under test, opened by spec: descriptors, and whole features with their own keypoints."""
