"""Detection: gray image in, keypoints out. SIFT by default, any ``cv2.Feature2D``, or your own function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import cv2
import numpy as np

from logpolar.images import to_bytes
from logpolar.keypoints import Keypoints
from logpolar.settings import DEFAULT_MAX_KEYPOINTS, DEFAULT_SPREAD
from logpolar.types import FloatArray


@dataclass(frozen=True)
class SiftDetector:
    """OpenCV's SIFT with precise upscaling: otherwise all keypoints are off by a quarter of a pixel."""

    max_keypoints: int | None = DEFAULT_MAX_KEYPOINTS  # see ``spread``; None keeps all
    contrast_threshold: float = 0.04  # OpenCV's; lower finds more, fainter keypoints
    edge_threshold: float = 10.0  # higher keeps more edge-like keypoints
    sigma: float = 1.6  # blur of the first octave
    spread: float = DEFAULT_SPREAD  # see ``select_keypoints``

    def __post_init__(self) -> None:
        if not 0 <= self.spread <= 4:
            raise ValueError(f"spread must lie between 0 and 4, not {self.spread}")

    def __call__(self, gray: FloatArray) -> Keypoints:
        found = FeatureDetector(self.feature(), None)(gray)
        return found if self.max_keypoints is None else select_keypoints(found, self.max_keypoints, self.spread)

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


def select_keypoints(keypoints: Keypoints, count: int, spread: float = DEFAULT_SPREAD) -> Keypoints:
    """At most ``count`` keypoints, those with the largest response * size ** spread first.

    The strongest keypoints of a photo are mostly small, and a small keypoint has no counterpart where the same thing is
    seen at a third of the size; small ones are also the least precise relative to their support. So the response is
    weighted by a power of the size: 0 keeps the strongest, 1 about as many of each octave as the image has room for.
    """
    return keypoints[np.argsort(-keypoints.response * keypoints.size**spread, kind="stable")[:count]]


Detector: TypeAlias = Callable[[FloatArray], Keypoints]
"""A function from a gray float32 image in [0, 1] to keypoints in its pixels."""
