"""OpenCV's SIFT descriptor and RootSIFT, as baselines.

Convention:
    ``lambda_`` scales the support: the keypoint's size is multiplied by lambda / 12, so that 12 is OpenCV's SIFT. That
    12 counts sigmas, two to a keypoint's size: the 4 x 4 cells of the histogram are 3 sigma wide each. In sizes, the
    unit of lambda in ``sampling.patterns``, the cells cover lambda / 2, and their soft margin reaches lambda / 1.6, in
    an image that is blurred in proportion to the support.

    OpenCV reads the level of its pyramid from the keypoint's octave, which ``Keypoints`` do not store: ``sift_octave``
    recovers it from the size. Without it large keypoints would be described in the unblurred image.
"""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.images import to_bytes, to_gray
from logpolar.keypoints import Keypoints
from logpolar.settings import DESCRIPTOR_SIZE
from logpolar.types import FloatArray, Image

SIFT_LAMBDA = 12.0
"""OpenCV's own support."""


def sift(image: Image, keypoints: Keypoints, lambda_: float = SIFT_LAMBDA) -> FloatArray:
    """SIFT descriptors (N, 128) of given keypoints, of unit length."""
    raw = _histograms(image, keypoints, lambda_)
    return np.asarray(raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-12), np.float32)


def root_sift(image: Image, keypoints: Keypoints, lambda_: float = SIFT_LAMBDA) -> FloatArray:
    """RootSIFT: the square root of the L1-normalised SIFT descriptors (N, 128) of given keypoints."""
    raw = _histograms(image, keypoints, lambda_)
    total = np.abs(raw).sum(axis=1, keepdims=True)
    return np.asarray(np.sqrt(raw / np.maximum(total, 1e-12)), np.float32)


def _histograms(image: Image, keypoints: Keypoints, lambda_: float) -> FloatArray:
    """OpenCV's descriptors (N, 128), integers up to 255."""
    if len(keypoints) == 0:
        return np.zeros((0, DESCRIPTOR_SIZE), np.float32)
    scaled = replace(keypoints, size=keypoints.size * np.float32(lambda_ / SIFT_LAMBDA))
    extractor = cv2.SIFT.create(enable_precise_upscale=True)
    points = scaled.to_opencv()
    for point, octave in zip(points, sift_octave(scaled.size).tolist(), strict=True):
        point.octave = octave
    described, raw = extractor.compute(to_bytes(to_gray(image)), points)
    if len(described) != len(keypoints):
        raise RuntimeError("OpenCV dropped keypoints")
    return np.asarray(raw, np.float32)


def sift_octave(size: FloatArray) -> NDArray[np.int32]:
    """OpenCV's packed octave of keypoints of a size: octave in the lowest byte, layer in the next.

    A keypoint of layer l = 1, 2, 3 in octave o, downscaled by 2^o, has the size 2 * 1.6 * 2^(o + l / 3). The first
    octave is -1, the image at twice its size.
    """
    step = np.rint(3 * np.log2(np.asarray(size, np.float64) / 3.2)).astype(np.int32)
    octave = np.clip((step - 1) // 3, -1, None)
    layer = np.clip(step - 3 * octave, 1, 3)
    return np.asarray((octave & 255) | (layer << 8), np.int32)
