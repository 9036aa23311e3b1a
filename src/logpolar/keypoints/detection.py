"""Detection: gray image in, keypoints out. SIFT by default, any ``cv2.Feature2D``, or your own function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import cv2

from logpolar.images import to_bytes
from logpolar.keypoints import Keypoints
from logpolar.settings import DEFAULT_MAX_KEYPOINTS
from logpolar.types import FloatArray


@dataclass(frozen=True)
class SiftDetector:
    """OpenCV's SIFT with precise upscaling: otherwise all keypoints are off by a quarter of a pixel."""

    max_keypoints: int | None = DEFAULT_MAX_KEYPOINTS  # the strongest by response; None keeps all
    contrast_threshold: float = 0.04  # lower finds more, fainter keypoints
    edge_threshold: float = 10.0  # higher keeps more edge-like keypoints
    sigma: float = 1.6  # blur of the first octave

    def __call__(self, gray: FloatArray) -> Keypoints:
        return FeatureDetector(self.feature(), self.max_keypoints)(gray)

    def feature(self) -> cv2.SIFT:
        """OpenCV's detector with these settings; it finds all keypoints."""
        return cv2.SIFT.create(
            nfeatures=0,  # we select ourselves: OpenCV keeps more than asked for where responses are equal
            contrastThreshold=self.contrast_threshold,
            edgeThreshold=self.edge_threshold,
            sigma=self.sigma,
            enable_precise_upscale=True,
        )


@dataclass(frozen=True)
class FeatureDetector:
    """Any OpenCV detector: ``FeatureDetector(cv2.ORB.create())``. Its sizes and angles are used unchanged."""

    feature: cv2.Feature2D
    max_keypoints: int | None = DEFAULT_MAX_KEYPOINTS  # the strongest by response; None keeps all

    def __call__(self, gray: FloatArray) -> Keypoints:
        keypoints = Keypoints.from_opencv(self.feature.detect(to_bytes(gray), None))
        return keypoints.strongest(len(keypoints) if self.max_keypoints is None else self.max_keypoints)


Detector: TypeAlias = Callable[[FloatArray], Keypoints]
"""A function from a gray float32 image in [0, 1] to keypoints in its pixels."""
