"""Relative poses by a choice of estimators, and scores of their errors in the manner of 2020 and of 2019.

The error of a pair is the larger of the angles by which rotation and direction of translation are off.

    maa10   the challenge of 2020: mean of the shares of pairs within 1, 2, ... 10 degrees
    map15   in the manner of 2019: mean of the shares of pairs within 5, 10 and 15 degrees
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from logpolar.errors import MissingExtraError
from logpolar.evaluation.poses.stereo import Errors, mean_average_accuracy, pose_from_essential, shares_within
from logpolar.geometry.cameras import Camera, Matrix
from logpolar.geometry.two_view import Points, estimate_essential
from logpolar.storage.documents import rounded

MAP_THRESHOLDS = (5.0, 10.0, 15.0)
"""Degrees, of the manner of 2019."""

MEANINGS = {
    "maa10": "mean of the shares of pairs with an error within 1, 2, ... 10 degrees (2020)",
    "map15": "mean of the shares of pairs with an error within 5, 10 and 15 degrees (in the manner of 2019)",
    "error": "the larger of the errors of rotation and direction of translation; 180 where there is no pose",
}
"""For result files."""

_MINIMUM = 5
"""Points that a relative pose needs."""


@dataclass(frozen=True)
class PoseScore:
    """Of the errors (N, 2) of pairs, in degrees, as ``stereo.pose_error`` gives them; NaN without pairs."""

    pairs: int
    maa10: float
    map15: float

    @classmethod
    def of(cls, errors: Sequence[Errors]) -> PoseScore:
        return cls(len(errors), mean_average_accuracy(errors), map15(errors))

    @classmethod
    def mean(cls, scores: Sequence[PoseScore]) -> PoseScore:
        """Each of the scores counts the same, however many pairs it has; those without pairs do not count."""
        counted = [score for score in scores if score.pairs]
        if not counted:
            return cls(0, math.nan, math.nan)
        maa10, map15 = (float(np.mean([getattr(score, name) for score in counted])) for name in ("maa10", "map15"))
        return cls(sum(score.pairs for score in counted), maa10, map15)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None, unlike NaN, is JSON."""
        return {"pairs": self.pairs, "maa10": rounded(self.maa10), "map15": rounded(self.map15)}


def map15(errors: ArrayLike) -> float:
    """Mean of the shares of pairs whose larger error is not above 5, 10 and 15 degrees; NaN without pairs."""
    return float(np.mean(shares_within(errors, MAP_THRESHOLDS)))


@dataclass(frozen=True, eq=False)
class FoundPose:
    """From the first camera to the second; None if nothing fits. ``inliers``: matches that agree."""

    pose: tuple[Matrix, Matrix] | None
    inliers: int


def find_pose(
    first: Camera, second: Camera, first_xy: Points, second_xy: Points, threshold: float, estimator: str
) -> FoundPose:
    """The relative pose of matched points (N, 2); ``threshold`` in pixels; the same points give the same pose."""
    if estimator == "poselib":
        return _by_poselib(first, second, first_xy, second_xy, threshold)
    found = estimate_essential(first_xy, second_xy, first.matrix, second.matrix, threshold)
    return FoundPose(pose_from_essential(first, second, first_xy, second_xy, found), found.inlier_count)


def check_estimator(estimator: str) -> None:
    """Raise before any work is done if what it needs is not installed."""
    if estimator == "poselib":
        _import_poselib()


def _import_poselib() -> Any:
    try:
        import poselib
    except ImportError as error:
        raise MissingExtraError("the estimator poselib", "poselib") from error
    return poselib


def _by_poselib(first: Camera, second: Camera, first_xy: Points, second_xy: Points, threshold: float) -> FoundPose:
    poselib = _import_poselib()
    if len(first_xy) < _MINIMUM:
        return FoundPose(None, 0)
    points = [np.asarray(xy, np.float64) for xy in (first_xy, second_xy)]
    cameras = [_poselib_camera(camera) for camera in (first, second)]
    options = {"max_epipolar_error": threshold, "seed": 0}
    pose, info = poselib.estimate_relative_pose(*points, *cameras, options, {})
    inliers, rotation, translation = int(info["num_inliers"]), np.array(pose.R), np.array(pose.t).ravel()
    if inliers < _MINIMUM or not (np.isfinite(rotation).all() and np.isfinite(translation).all()):
        return FoundPose(None, inliers)
    return FoundPose((rotation, translation), inliers)


def _poselib_camera(camera: Camera) -> dict[str, Any]:
    """The half pixel does not matter: points and principal point have the same origin."""
    (fx, _, cx), (_, fy, cy) = camera.matrix[:2].tolist()
    return {"model": "PINHOLE", "width": camera.width, "height": camera.height, "params": [fx, fy, cx, cy]}
