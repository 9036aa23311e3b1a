"""How poses are measured; apart from what does it, so that the command line can be made without importing that."""

from __future__ import annotations

from dataclasses import dataclass

from logpolar.settings import DEFAULT_RATIO, check_settings, setting

ESTIMATORS = ("opencv", "poselib")

RATIOS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
"""Candidates when the ratio is tuned."""


@dataclass(frozen=True)
class PhototourismOptions:
    """How keypoints become matches and matches poses, and which images are taken together."""

    keypoints: int = setting(2048, "Keypoints of an image, the strongest; 2048 and 8000 are usual.", 1)
    contrast: float = setting(0.0, "SIFT's contrast threshold; 0 lets faint keypoints fill the number.", 0)
    ratio: float = setting(DEFAULT_RATIO, "Ratio test: most that best over second best distance may be.", 0.01, 1)
    mutual: bool = setting(True, "Matches are each other's nearest neighbours.")
    threshold: float = setting(1.0, "Of the essential matrix, in pixels.", 0.01, 100)
    estimator: str = setting(
        "opencv", "OpenCV's MAGSAC++, or PoseLib's LO-RANSAC (extra 'poselib').", choices=ESTIMATORS
    )
    pairs: int = setting(1000, "Image pairs of a scene, drawn at random; 0 takes all.", 0)
    bags_5: int = setting(20, "Multi-view: sets of 5 images of a scene.", 0)
    bags_10: int = setting(10, "Multi-view: sets of 10 images of a scene.", 0)
    bags_25: int = setting(5, "Multi-view: sets of 25 images of a scene.", 0)
    min_shared: int = setting(30, "Pairs of COLMAP scenes share this many points.", 1)
    min_visibility: float = setting(0.1, "Pairs of the challenge's scenes see this share of each other.", 0, 1)
    seed: int = setting(0, "Draws pairs and sets, and starts COLMAP.", 0)

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def bags(self) -> dict[int, int]:
        """How many sets by their size; sizes without any are not in it."""
        counts = {5: self.bags_5, 10: self.bags_10, 25: self.bags_25}
        return {size: count for size, count in counts.items() if count}
