"""The result of extraction: keypoints with their descriptors."""

from __future__ import annotations

from dataclasses import dataclass

from logpolar.keypoints import Keypoints
from logpolar.types import FloatArray


@dataclass(frozen=True, eq=False)
class Features:
    """N keypoints in pixels of the original image, their descriptors (N, 128), and the image's (width, height).

    ``scale``: pixels of the image as described per pixel of the original; below 1 if it was downscaled first.
    """

    keypoints: Keypoints
    descriptors: FloatArray
    image_size: tuple[int, int]
    scale: float = 1.0

    def __len__(self) -> int:
        return len(self.keypoints)
