"""Descriptors that OpenCV has, to compare with.

Convention:
    ``lambda_`` scales the support: the keypoint's size is multiplied by lambda / 12, so that 12 is SIFT as OpenCV has
    it. That 12 counts sigmas, of which a keypoint's size holds two: the 4 x 4 cells of the histogram are 3 sigma wide
    each. In sizes, the unit of lambda in ``sampling.patterns``, the cells cover lambda / 2, and what fades out around
    them reaches lambda / 1.6.

    OpenCV smooths nothing for a larger support: it looks at the pixels of the image, slightly blurred, at every size.
"""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np

from logpolar.defaults import DESCRIPTOR_SIZE
from logpolar.images import Image, to_bytes, to_gray
from logpolar.keypoints import FloatArray, Keypoints

SIFT_LAMBDA = 12.0
"""The support of SIFT as OpenCV has it."""


def sift(image: Image, keypoints: Keypoints, lambda_: float = SIFT_LAMBDA) -> FloatArray:
    """OpenCV's SIFT histograms (N, 128) of given keypoints, as unit vectors."""
    raw = _histograms(image, keypoints, lambda_)
    return np.asarray(raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-12), np.float32)


def root_sift(image: Image, keypoints: Keypoints, lambda_: float = SIFT_LAMBDA) -> FloatArray:
    """OpenCV's SIFT descriptors of given keypoints, as RootSIFT: square root of the L1-normalised histogram."""
    raw = _histograms(image, keypoints, lambda_)
    total = np.abs(raw).sum(axis=1, keepdims=True)
    return np.asarray(np.sqrt(raw / np.maximum(total, 1e-12)), np.float32)


def _histograms(image: Image, keypoints: Keypoints, lambda_: float) -> FloatArray:
    """(N, 128), as OpenCV gives them: whole numbers up to 255."""
    if len(keypoints) == 0:
        return np.zeros((0, DESCRIPTOR_SIZE), np.float32)
    scaled = replace(keypoints, size=keypoints.size * np.float32(lambda_ / SIFT_LAMBDA))
    extractor = cv2.SIFT.create(enable_precise_upscale=True)
    described, raw = extractor.compute(to_bytes(to_gray(image)), scaled.to_opencv())
    if len(described) != len(keypoints):
        raise RuntimeError("OpenCV dropped keypoints")
    return np.asarray(raw, np.float32)
