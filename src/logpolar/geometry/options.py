"""Options of two-view estimation. Imports nothing heavy: the command line is built from these."""

from __future__ import annotations

from dataclasses import dataclass

from logpolar.settings import DEFAULT_THRESHOLD, check_settings, setting

ESTIMATORS = ("poselib", "opencv")


@dataclass(frozen=True)
class EstimationOptions:
    """How two-view geometry is estimated from matches."""

    estimator: str = setting("poselib", "PoseLib's LO-RANSAC, or OpenCV's MAGSAC++.", choices=ESTIMATORS)
    threshold: float = setting(
        DEFAULT_THRESHOLD, "Largest error of an inlier, in pixels of the image as described.", 0.01, 100
    )
    seed: int = setting(0, "Random seed of the estimator.", 0)

    def __post_init__(self) -> None:
        check_settings(self)
