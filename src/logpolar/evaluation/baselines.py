"""Other people's descriptors, to compare with."""

from __future__ import annotations

import cv2
import numpy as np

from logpolar.defaults import DESCRIPTOR_SIZE
from logpolar.images import Image, to_bytes, to_gray
from logpolar.keypoints import FloatArray, Keypoints


def root_sift(image: Image, keypoints: Keypoints) -> FloatArray:
    """OpenCV's SIFT descriptors of given keypoints, as RootSIFT: square root of the L1-normalised histogram."""
    if len(keypoints) == 0:
        return np.zeros((0, DESCRIPTOR_SIZE), np.float32)
    sift = cv2.SIFT.create(enable_precise_upscale=True)
    described, raw = sift.compute(to_bytes(to_gray(image)), keypoints.to_opencv())
    if len(described) != len(keypoints):
        raise RuntimeError("OpenCV dropped keypoints")
    total = np.abs(raw).sum(axis=1, keepdims=True)
    return np.asarray(np.sqrt(raw / np.maximum(total, 1e-12)), np.float32)
