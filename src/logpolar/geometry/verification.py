"""From the features of two images to verified matches: match, filter, estimate the geometry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from logpolar.features.features import Features
from logpolar.geometry.intrinsics import AnyCamera
from logpolar.geometry.options import EstimationOptions
from logpolar.geometry.two_view import (
    Geometry,
    Points,
    RelativePose,
    Scales,
    estimate_fundamental,
    estimate_homography,
    estimate_pose,
)
from logpolar.matching.nearest import Matches, match_features
from logpolar.matching.options import MatchingOptions
from logpolar.types import Matrix

Cameras = tuple[AnyCamera, AnyCamera]

MODEL_NAMES = {"fundamental": "fundamental matrix", "homography": "homography", "pose": "relative pose"}
"""Geometries, in words."""


@dataclass(frozen=True, eq=False)
class VerifiedMatches:
    """Matches of two images, and the geometry that was estimated from them; its inliers are rows of the matches."""

    model: str
    matches: Matches
    geometry: Geometry
    first_xy: Points  # (N, 2): the matched positions
    second_xy: Points

    @property
    def pose(self) -> RelativePose | None:
        """The geometry, if it is a relative pose."""
        return self.geometry if isinstance(self.geometry, RelativePose) else None

    def to_dict(self) -> dict[str, Any]:
        """The result as plain JSON values, without the matches themselves; None for what there is not."""
        geometry, pose = self.geometry, self.pose
        known = np.isfinite(geometry.significance)
        return {
            "matches": len(self.matches),
            "geometry": self.model,
            "inliers": geometry.inlier_count,
            "common_scene": None if self.model == "none" else geometry.common_scene,
            "significance": round(geometry.significance, 2) if known else None,
            "matrix": _plain(geometry.matrix),
            "rotation": _plain(pose.rotation if pose else None),
            "translation": _plain(pose.translation if pose else None),
        }


def _plain(values: Matrix | None) -> Any:
    return None if values is None else values.tolist()


def match_and_verify(
    first: Features,
    second: Features,
    model: str = "fundamental",
    matching: MatchingOptions | None = None,
    estimation: EstimationOptions | None = None,
    *,
    cameras: Cameras | None = None,
    device: str = "cpu",
) -> VerifiedMatches:
    """Match two images and estimate their geometry: ``model`` is fundamental, homography, pose or none.

    A pose needs the ``cameras``, see ``estimate_pose``. With none, all matches count as inliers.
    """
    matches = match_features(first, second, matching, device=device)
    here, there = first.keypoints.xy[matches.indices[:, 0]], second.keypoints.xy[matches.indices[:, 1]]
    scales = first.scale, second.scale
    return VerifiedMatches(model, matches, _estimate(model, here, there, cameras, scales, estimation), here, there)


def _estimate(
    model: str,
    first: Points,
    second: Points,
    cameras: Cameras | None,
    scales: Scales,
    options: EstimationOptions | None,
) -> Geometry:
    if model == "none":
        return Geometry(None, np.ones(len(first), np.bool_))
    if model == "pose":
        if cameras is None:
            raise ValueError("a pose needs cameras")
        return estimate_pose(first, second, *cameras, options, scales=scales)
    estimate = {"fundamental": estimate_fundamental, "homography": estimate_homography}[model]
    return estimate(first, second, options, scales=scales)
