"""Two-view geometry, estimated robustly from matched points (OpenCV's USAC, MAGSAC++)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.geometry.homography import warp_points
from logpolar.settings import DEFAULT_THRESHOLD
from logpolar.types import Array, Matrix

Points: TypeAlias = Array

_CONFIDENCE = 0.99999
_ITERATIONS = 10000
_PRECISE = 2.0


@dataclass(frozen=True, eq=False)
class Geometry:
    """A matrix (3, 3) from the first image to the second, or None if there is none, and a mask (N,) of its inliers."""

    matrix: Matrix | None
    inliers: NDArray[np.bool_]

    @property
    def inlier_count(self) -> int:
        return int(self.inliers.sum())


def estimate_homography(first: Points, second: Points, threshold: float = DEFAULT_THRESHOLD) -> Geometry:
    """Homography that maps points (N, 2) of the first image to the second; ``threshold`` in pixels.

    For planar scenes and purely rotating cameras. With fewer than 4 points, or without consensus, ``matrix`` is None
    and there are no inliers.
    """
    found = _estimate(
        lambda a, b: cv2.findHomography(a, b, cv2.USAC_MAGSAC, threshold, None, _ITERATIONS, _CONFIDENCE),
        first,
        second,
        minimum=4,
    )
    if found.matrix is None:
        return found
    inliers = (np.asarray(points, np.float64)[found.inliers] for points in (first, second))
    return Geometry(_refined(found.matrix, *inliers), found.inliers)


def _refined(matrix: Matrix, first: Matrix, second: Matrix) -> Matrix:
    """Least squares over the most precise inliers.

    Most keypoints are localised within a fraction of a pixel, but inliers may be off by the whole threshold, and a few
    of those would outweigh all others at the image's corners. So points beyond ``_PRECISE`` standard deviations,
    estimated from the median, are left out.
    """
    error = _transfer_error(matrix, first, second)
    for _ in range(3):
        precise = error <= _PRECISE * 1.4826 * np.median(error)
        if precise.sum() <= 4:
            break
        better = np.asarray(cv2.findHomography(first[precise], second[precise])[0], np.float64)
        after = _transfer_error(better, first, second) if better.shape == (3, 3) else np.array([np.inf])
        if not np.median(after) < np.median(error):
            break
        matrix, error = better, after
    return matrix


def _transfer_error(homography: Matrix, first: Matrix, second: Matrix) -> Matrix:
    return np.asarray(np.linalg.norm(warp_points(homography, first)[0] - second, axis=1))


def estimate_fundamental(first: Points, second: Points, threshold: float = DEFAULT_THRESHOLD) -> Geometry:
    """Fundamental matrix, x2' F x1 = 0, of two uncalibrated images; needs 8 points; ``threshold`` in pixels."""
    return _estimate(
        lambda a, b: cv2.findFundamentalMat(a, b, cv2.USAC_MAGSAC, threshold, _CONFIDENCE, _ITERATIONS),
        first,
        second,
        minimum=8,
    )


def estimate_essential(
    first: Points, second: Points, first_camera: Matrix, second_camera: Matrix, threshold: float = 1.0
) -> Geometry:
    """Essential matrix of two calibrated images; needs 5 points; cameras are intrinsic matrices (3, 3).

    The matrices of rotated images, which are not triangular, work as well. ``threshold`` is in pixels, at the mean
    focal length of the two cameras.
    """
    # From the determinant: a rotated camera has no focal lengths on its diagonal.
    focal = np.mean([np.sqrt(abs(np.linalg.det(camera[:2, :2]))) for camera in (first_camera, second_camera)])
    return _estimate(
        lambda a, b: cv2.findEssentialMat(
            a, b, np.eye(3), cv2.USAC_MAGSAC, _CONFIDENCE, threshold / float(focal), _ITERATIONS
        ),
        to_rays(first, first_camera),
        to_rays(second, second_camera),
        minimum=5,
    )


def to_rays(points: Points, camera: Matrix) -> Matrix:
    """Pixels (N, 2) to ray directions (x / z, y / z) of a camera with this intrinsic matrix."""
    homogeneous = np.concatenate([np.asarray(points, np.float64), np.ones((len(points), 1))], axis=1)
    directions = homogeneous @ np.linalg.inv(np.asarray(camera, np.float64)).T
    return np.asarray(directions[:, :2] / directions[:, 2:], np.float64)


def _estimate(
    method: Callable[[Matrix, Matrix], tuple[Any, Any]], first: Points, second: Points, minimum: int
) -> Geometry:
    if len(first) != len(second):
        raise ValueError(f"{len(first)} points cannot match {len(second)} points")
    nothing = Geometry(None, np.zeros(len(first), np.bool_))
    if len(first) < minimum:
        return nothing
    try:
        matrix, mask = method(np.asarray(first, np.float64), np.asarray(second, np.float64))
    except cv2.error:  # degenerate points, for example all identical
        return nothing
    if matrix is None or mask is None or matrix.shape != (3, 3) or not np.isfinite(matrix).all():
        return nothing
    return Geometry(np.asarray(matrix, np.float64), np.asarray(mask).reshape(-1).astype(np.bool_))
