"""Keypoints of protocols that detect them, and keypoints without the detector's sizes.

Detectors are named by specs: ``sift`` with the option size, ``logpolar`` and ``logpolar:FILE`` with orientation and
size, ``opencv:NAME``, ``kornia:NAME``, see ``models.detectors``, ``opencv_features``, ``kornia_features``.
A whole feature is a source for itself alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.errors import LogpolarError
from logpolar.evaluation.descriptors.opencv_features import open_opencv_detector
from logpolar.evaluation.descriptors.specs import Spec, parse_spec
from logpolar.images import to_gray
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import Detector, SiftDetector
from logpolar.models.detectors import NetworkDetector
from logpolar.settings import ORIENTATIONS
from logpolar.types import FloatArray

FixedSize = str | float | None
"""None keeps the detector's sizes. Otherwise all keypoints of an image get one size: ``"median"``, the median of the
detected ones, or a number, that fraction of the image's longer side."""


def with_fixed_size(size: tuple[int, int], keypoints: Keypoints, rule: FixedSize) -> Keypoints:
    """Keypoints of an image, width and height in ``size``, with the size of the rule."""
    if rule is None or len(keypoints) == 0:
        return keypoints
    if rule == "median":
        value = float(np.median(keypoints.size))
    elif isinstance(rule, float | int) and 0 < rule <= 1:
        value = rule * max(size)
    else:
        raise ValueError(f"a fixed size is 'median' or a fraction from 0 to 1, not {rule!r}")
    return replace(keypoints, size=np.full(len(keypoints), value, np.float32))


@dataclass(frozen=True, eq=False)
class KeypointSource:
    """Finds keypoints. ``identity``: all that determines them, as plain JSON values."""

    detector: Detector
    identity: dict[str, Any]
    fixed_size: FixedSize = None

    @property
    def settings(self) -> dict[str, Any]:
        """All that determines which keypoints are described, for caches and results."""
        return {"detector": self.identity, "fixed_size": self.fixed_size}

    def __call__(self, view: NDArray[np.uint8]) -> Keypoints:
        """Keypoints as they are described."""
        return self.resized(view, self.detect(view))

    def detect(self, view: NDArray[np.uint8]) -> Keypoints:
        """Keypoints as detected, which decide what corresponds."""
        return self.detector(to_gray(view))

    def resized(self, view: NDArray[np.uint8], keypoints: Keypoints) -> Keypoints:
        """Detected keypoints as they are described."""
        return with_fixed_size((view.shape[1], view.shape[0]), keypoints, self.fixed_size)


def open_source(
    text: str, most: int, contrast: float, fixed_size: FixedSize = None, device: str = "cpu", spread: float = 0
) -> KeypointSource:
    """At most ``most`` keypoints of an image by the detector of a spec; ``contrast`` and ``spread`` are SIFT's."""
    spec = parse_spec(text, "detector")
    if spec.head == "sift":
        return sift_source(most, contrast, fixed_size, spread, spec.options({"size": None})["size"])
    if spec.name == "opencv":
        return KeypointSource(*open_opencv_detector(spec, most), fixed_size)
    if spec.name == "kornia":
        from logpolar.evaluation.descriptors.kornia_features import open_kornia_detector

        return KeypointSource(*open_kornia_detector(spec, most, device), fixed_size)
    if spec.name == "logpolar":
        return KeypointSource(*_open_network(spec, most), fixed_size)
    raise spec.error(f"unknown name '{spec.head}' (known: sift, logpolar, logpolar:FILE, opencv:NAME, kornia:NAME)")


def _open_network(spec: Spec, most: int) -> tuple[NetworkDetector, dict[str, Any]]:
    chosen = spec.options({"orientation": ORIENTATIONS[0], "size": None})
    try:
        detector = NetworkDetector(spec.file or spec.head, most, **chosen)
    except (LogpolarError, ValueError) as error:
        raise spec.error(str(error)) from error
    settings = detector.settings
    return detector, {"kind": "logpolar", "class": settings.pop("model"), **settings}


def sift_source(
    keypoints: int, contrast: float, fixed_size: FixedSize = None, spread: float = 0, size: float | None = None
) -> KeypointSource:
    """``size``: of SIFT's keypoints only the places count; all have this size in pixels, and angle 0."""
    identity = {"kind": "sift", "keypoints": keypoints, "contrast": contrast, "opencv": cv2.__version__}
    if spread:  # results of detectors without it stay comparable with earlier ones
        identity["spread"] = spread
    detect: Detector = SiftDetector(keypoints, contrast, spread=spread)
    if size is not None:
        identity["size"] = size
        detect = Upright(detect, size)
    return KeypointSource(detect, identity, fixed_size)


@dataclass(frozen=True)
class Upright:
    """The places of another detector's keypoints, each once, with one size and angle 0."""

    detector: Detector
    size: float

    def __call__(self, gray: FloatArray) -> Keypoints:
        found = self.detector(gray)
        _, first = np.unique(found.xy, axis=0, return_index=True)
        kept = np.sort(first)
        return Keypoints.from_points(found.xy[kept], self.size, 0.0, found.response[kept])
