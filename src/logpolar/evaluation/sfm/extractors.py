"""Any descriptor of the evaluations as an extractor for `logpolar sfm`'s pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from logpolar.evaluation.descriptors.registry import Descriptor, open_descriptor
from logpolar.features.features import Features
from logpolar.images import downscale, read_gray, to_bytes, to_gray
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector
from logpolar.types import Image


class DescriptorExtractor:
    """Features of SIFT keypoints as ``Extractor`` finds them, or of a whole feature's own, by any descriptor."""

    def __init__(self, descriptor: Descriptor, keypoints: int, max_size: int | None) -> None:
        self._descriptor, self._max_size = descriptor, max_size
        own = descriptor.own_keypoints
        self._detector = SiftDetector(keypoints) if own is None else own.detector
        self._keypoints = keypoints

    @property
    def settings(self) -> dict[str, Any]:
        settings = {"descriptor": self._descriptor.identity, "max_size": self._max_size}
        return {**settings, "keypoints": self._keypoints}

    def extract(self, image: str | Path | Image, keypoints: Keypoints | None = None) -> Features:
        """As ``Extractor.extract``; the descriptor is given the reduced image in 8 bits."""
        gray = read_gray(image) if isinstance(image, str | Path) else to_gray(image)
        height, width = gray.shape
        small = downscale(gray, self._max_size)
        factors = small.shape[1] / width, small.shape[0] / height
        scaled = self._detector(small) if keypoints is None else keypoints.resized(*factors)
        found = scaled.resized(1 / factors[0], 1 / factors[1]) if keypoints is None else keypoints
        return Features(found, self._descriptor.describe(to_bytes(small), scaled), (width, height))


def open_descriptor_extractor(
    spec: str, keypoints: int, max_size: int | None, device: str = "cpu", threads: int = 0
) -> DescriptorExtractor:
    """For processes, which cannot be given a descriptor but open it themselves."""
    return DescriptorExtractor(open_descriptor(spec, device, keypoints, threads), keypoints, max_size)
