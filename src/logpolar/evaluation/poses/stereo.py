"""How good the relative pose of two cameras is that matched descriptors lead to.

The protocol is that of the Image Matching Challenge: an essential matrix by RANSAC, the pose that puts the points in
front of both cameras, and the angles by which rotation and direction of translation are off. The sign of the
translation does not count, its length cannot be known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import ArrayLike

from logpolar.geometry.cameras import Camera, Matrix, direction_degrees, rotation_degrees
from logpolar.geometry.two_view import Geometry, Points, estimate_essential, to_rays
from logpolar.matching.nearest import MatchingOptions, match_descriptors
from logpolar.types import FloatArray

NO_POSE = (180.0, 180.0)
"""Errors, in degrees, where no pose could be found."""

Errors = tuple[float, float]
"""Of the rotation and of the direction of the translation, in degrees."""


@dataclass(frozen=True, eq=False)
class StereoPair:
    """Two views of one scene: cameras in the pixels of the images, keypoints (N, 2), their descriptors (N, D)."""

    first_camera: Camera
    second_camera: Camera
    first_xy: Points
    second_xy: Points
    first_descriptors: FloatArray
    second_descriptors: FloatArray


def stereo_errors(pair: StereoPair, ratio: float | None, threshold: float = 1.0) -> Errors:
    """Errors of the pose from mutual nearest neighbours that pass the ratio test; ``threshold`` in pixels."""
    matches = match_descriptors(pair.first_descriptors, pair.second_descriptors, MatchingOptions(ratio)).indices
    first_xy, second_xy = pair.first_xy[matches[:, 0]], pair.second_xy[matches[:, 1]]
    return matched_errors(pair.first_camera, pair.second_camera, first_xy, second_xy, threshold)


def matched_errors(first: Camera, second: Camera, first_xy: Points, second_xy: Points, threshold: float) -> Errors:
    """Errors of the pose that matched points (N, 2) lead to; the same points give the same errors."""
    pose = estimate_pose(first, second, first_xy, second_xy, threshold)
    return NO_POSE if pose is None else pose_error(relative_pose(first, second), pose)


def estimate_pose(
    first: Camera, second: Camera, first_xy: Points, second_xy: Points, threshold: float
) -> tuple[Matrix, Matrix] | None:
    """Rotation and unit translation from the first camera to the second; None if nothing fits the points.

    Of the cameras only the intrinsic matrices are used; see ``estimate_essential`` for the threshold.
    """
    found = estimate_essential(first_xy, second_xy, first.matrix, second.matrix, threshold)
    return pose_from_essential(first, second, first_xy, second_xy, found)


def pose_from_essential(
    first: Camera, second: Camera, first_xy: Points, second_xy: Points, found: Geometry
) -> tuple[Matrix, Matrix] | None:
    """Of the poses that an essential matrix allows, the one that puts its inliers in front of both cameras."""
    if found.matrix is None or found.inlier_count < 5:
        return None
    rays = [to_rays(xy[found.inliers], camera.matrix) for xy, camera in ((first_xy, first), (second_xy, second))]
    in_front, rotation, translation, _ = cv2.recoverPose(found.matrix, rays[0], rays[1], np.eye(3))
    if in_front == 0 or not np.isfinite(rotation).all():
        return None
    return np.asarray(rotation, np.float64), np.asarray(translation, np.float64).ravel()


def relative_pose(first: Camera, second: Camera) -> tuple[Matrix, Matrix]:
    """Rotation (3, 3) and translation (3,) from the first camera's axes to the second's."""
    rotation = second.rotation @ first.rotation.T
    return rotation, second.translation - rotation @ first.translation


def pose_error(truth: tuple[Matrix, Matrix], found: tuple[Matrix, Matrix]) -> Errors:
    """Degrees between the rotations, and between the lines of the translations; 0 for one of no length."""
    apart = float(direction_degrees(truth[1], found[1]))
    return float(rotation_degrees(truth[0], found[0])), min(apart, 180 - apart)


def mean_average_accuracy(errors: ArrayLike, most: int = 10) -> float:
    """Mean over thresholds of 1, 2, ... ``most`` degrees of the share of pairs whose larger error is not above it.

    ``errors`` (N, 2): of each pair, as ``stereo_errors`` gives them. NaN without pairs.
    """
    return float(np.mean(shares_within(errors, range(1, most + 1))))


def shares_within(errors: ArrayLike, degrees: Sequence[float]) -> list[float]:
    """Shares of pairs whose larger error is not above each of the degrees; NaN without pairs."""
    table = np.asarray(errors, np.float64).reshape(-1, 2)
    larger = table.max(axis=1, initial=0)
    return [float((larger <= threshold).mean()) if len(table) else math.nan for threshold in degrees]
