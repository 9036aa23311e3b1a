"""Options of two-view estimation. Imports nothing heavy: the command line is built from these."""

from __future__ import annotations

from dataclasses import dataclass

from logpolar.settings import DEFAULT_THRESHOLDS, check_settings, setting

ESTIMATORS = ("poselib", "opencv")

DEFAULT_REGION_SIZE = 1024
"""Pixels of the longer side of the region that two photos share, as a second look sees it."""


@dataclass(frozen=True)
class EstimationOptions:
    """How two-view geometry is estimated from matches."""

    estimator: str = setting("poselib", "PoseLib's LO-RANSAC, or OpenCV's MAGSAC++.", choices=ESTIMATORS)
    threshold: float | None = setting(
        None,
        "Largest error of an inlier, in pixels of the image as described; by default "
        f"{', '.join(f'{value:g} for a {model}' for model, value in DEFAULT_THRESHOLDS.items())}.",
        0.01,
        100,
    )
    guided: bool = setting(
        True, "Match nearest neighbours again near the first estimate, and estimate again from these matches."
    )
    seed: int = setting(0, "Random seed of the estimator.", 0)

    def __post_init__(self) -> None:
        check_settings(self)

    def threshold_of(self, model: str) -> float:
        """The threshold for a pose, fundamental matrix or homography."""
        return DEFAULT_THRESHOLDS[model] if self.threshold is None else self.threshold


@dataclass(frozen=True)
class SecondLookOptions:
    """How two photos are looked at again, see ``second_look``."""

    second_look: str = setting(
        "auto",
        "Match again with the keypoints and descriptors of this model, and in the region that both photos show; auto: "
        "logpolar-sf, or its int8 variant if the first model is one; same: the first model; none: look once.",
    )
    region_size: int = setting(
        DEFAULT_REGION_SIZE,
        "Longer side, in pixels, at which that region is seen at least; never enlarged more than 4x.",
        64,
        8192,
    )

    def __post_init__(self) -> None:
        check_settings(self)
