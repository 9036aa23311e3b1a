"""How structure from motion is measured; apart from what does it, so that the command line can be made of it."""

from __future__ import annotations

from dataclasses import dataclass

from logpolar.settings import DEFAULT_MAX_SIZE, DEFAULT_RATIO, check_settings, setting

SIFT_RATIO = 0.8
"""What is usual for SIFT, and COLMAP's default."""


@dataclass(frozen=True)
class StructureTest:
    """Which photos of a scene are reconstructed, and how."""

    images: int = setting(0, "Images of a scene, drawn at random; 0 takes all.", 0)
    shrink: float = setting(1.0, "Every second image, by name, is reduced so many times.", 1, 100)
    keypoints: int = setting(2000, "Keypoints of an image, at most.", 1)
    max_size: int = setting(DEFAULT_MAX_SIZE, "Larger images are reduced to this longer side in pixels; 0 never is.", 0)
    ratio: float = setting(DEFAULT_RATIO, "Ratio test of learned descriptors.", 0.01, 1)
    sift_ratio: float = setting(SIFT_RATIO, "Ratio test of SIFT's; 0.8 is usual, and COLMAP's own.", 0.01, 1)
    repeats: int = setting(3, "Models are mapped so many times, with seeds that follow; figures are means.", 1)
    seed: int = setting(0, "Draws images, and starts COLMAP.", 0)

    def __post_init__(self) -> None:
        check_settings(self)
