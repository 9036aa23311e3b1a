"""From the features of two images to verified matches: match, filter, estimate the geometry."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from logpolar.features.features import Features
from logpolar.geometry.guided import match_near, near_epipolar_lines, near_predictions
from logpolar.geometry.intrinsics import AnyCamera
from logpolar.geometry.options import EstimationOptions
from logpolar.geometry.two_view import (
    Geometry,
    Points,
    RelativePose,
    calibrated,
    described,
    estimate_fundamental,
    estimate_homography,
    estimate_pose,
)
from logpolar.images import resize_matrix
from logpolar.matching.nearest import Allowed, Matches, match_features
from logpolar.matching.options import MatchingOptions, PairMatchingOptions
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
    threshold: float | None = (
        None  # largest error of an inlier, in pixels of the images as described; None without a model
    )
    unguided: Matches | None = None  # of guided matching: the matches before it, with the matcher's confidence
    looks: tuple[tuple[int, int], ...] = ()  # of several looks: how many keypoints each has, one after the other

    @property
    def before_guiding(self) -> Matches:
        """The matches as the matcher chose them, before guided matching."""
        return self.matches if self.unguided is None else self.unguided

    @property
    def added(self) -> int:
        """Matches of second looks, see ``second_look``."""
        return int((self.matches.indices[:, 0] >= self.looks[0][0]).sum()) if self.looks else 0

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
            "second_look": self.added,
            "geometry": self.model,
            "threshold": self.threshold,
            "inliers": geometry.inlier_count,
            "common_scene": None if self.model == "none" else geometry.common_scene,
            "significance": round(geometry.significance, 2) if known else None,
            "matrix": _plain(geometry.matrix),
            "rotation": _plain(pose.rotation if pose else None),
            "translation": _plain(pose.translation if pose and pose.baseline else None),
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

    A pose needs the ``cameras``, see ``estimate_pose``. With none, all matches count as inliers. ``matching``: by
    default ``PairMatchingOptions``. With ``estimation.guided`` nearest neighbours are matched again near the first
    estimate; a learned matcher has seen where keypoints are already.
    """
    matching, estimation = matching or PairMatchingOptions(), estimation or EstimationOptions()
    matches = match_features(first, second, matching, device=device)
    unguided = None
    geometry = estimate_geometry(model, first, second, matches, cameras, estimation)
    if estimation.guided and not matching.learned and geometry.common_scene:
        predicted = _prediction(model, geometry, first, second, cameras, estimation)
        near = match_near(first, second, predicted, matches.distances[geometry.inliers], matching)
        again = estimate_geometry(model, first, second, near, cameras, estimation)
        if again.inlier_count > geometry.inlier_count:
            # The second matches fit the first geometry by construction: only the first tell chance from agreement.
            unguided, matches, geometry = matches, near, replace(again, significance=geometry.significance)
    threshold = None if model == "none" else estimation.threshold_of(model)
    return VerifiedMatches(model, matches, geometry, *_positions(first, second, matches), threshold, unguided)


def _positions(first: Features, second: Features, matches: Matches) -> tuple[Points, Points]:
    here, there = matches.indices.T
    return first.keypoints.xy[here], second.keypoints.xy[there]


def estimate_geometry(
    model: str,
    first: Features,
    second: Features,
    matches: Matches,
    cameras: Cameras | None,
    options: EstimationOptions,
) -> Geometry:
    """The geometry that matches agree on; with the model none, all of them are inliers."""
    points, scales = _positions(first, second, matches), (first.scale, second.scale)
    if model == "none":
        return Geometry(None, np.ones(len(matches), np.bool_))
    if model == "pose":
        if cameras is None:
            raise ValueError("a pose needs cameras")
        return estimate_pose(*points, *cameras, options, scales=scales)
    estimate = {"fundamental": estimate_fundamental, "homography": estimate_homography}[model]
    return estimate(*points, options, scales=scales)


def _prediction(
    model: str,
    geometry: Geometry,
    first: Features,
    second: Features,
    cameras: Cameras | None,
    options: EstimationOptions,
) -> Allowed:
    """Which pairs of keypoints lie near each other under the geometry."""
    assert geometry.matrix is not None
    here, there, scales = first.keypoints.xy, second.keypoints.xy, (first.scale, second.scale)
    threshold = options.threshold_of(model)
    if model == "pose" and cameras is not None:
        rays, threshold = calibrated(here, there, *cameras, threshold, scales)
        return near_epipolar_lines(geometry.matrix, *rays, threshold)
    resizes = [resize_matrix((1, 1), (scale, scale)) for scale in scales]
    first_xy, second_xy = (described(xy, scale) for xy, scale in zip((here, there), scales, strict=True))
    inverse = [np.linalg.inv(resize) for resize in resizes]
    if model == "homography":
        return near_predictions(resizes[1] @ geometry.matrix @ inverse[0], first_xy, second_xy, threshold)
    return near_epipolar_lines(inverse[1].T @ geometry.matrix @ inverse[0], first_xy, second_xy, threshold)
