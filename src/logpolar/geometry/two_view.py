"""Geometry: what two images have in common, estimated robustly from matched points (OpenCV's USAC, MAGSAC++)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Points = NDArray[np.floating]

_CONFIDENCE = 0.99999
_ITERATIONS = 10000


@dataclass(frozen=True, eq=False)
class Geometry:
    """A 3 x 3 matrix from the first image to the second, or None, and which matches agree with it (N,)."""

    matrix: Matrix | None
    inliers: NDArray[np.bool_]

    @property
    def inlier_count(self) -> int:
        return int(self.inliers.sum())


def estimate_homography(first: Points, second: Points, threshold: float = 3.0) -> Geometry:
    """Homography that maps points (N, 2) of the first image to the second; ``threshold`` in pixels.

    Right for a flat scene or a camera that only turns. With fewer than 4 points, or none that agree, ``matrix`` is
    None and no match is an inlier.
    """
    return _estimate(
        lambda a, b: cv2.findHomography(a, b, cv2.USAC_MAGSAC, threshold, None, _ITERATIONS, _CONFIDENCE),
        first,
        second,
        minimum=4,
    )


def estimate_fundamental(first: Points, second: Points, threshold: float = 1.0) -> Geometry:
    """Fundamental matrix, x2' F x1 = 0, of two uncalibrated images; ``threshold`` in pixels; at least 8 points."""
    return _estimate(
        lambda a, b: cv2.findFundamentalMat(a, b, cv2.USAC_MAGSAC, threshold, _CONFIDENCE, _ITERATIONS),
        first,
        second,
        minimum=8,
    )


def estimate_essential(
    first: Points, second: Points, first_camera: Matrix, second_camera: Matrix, threshold: float = 1.0
) -> Geometry:
    """Essential matrix of two calibrated images; cameras are 3 x 3 intrinsic matrices; at least 5 points.

    The matrices of turned images, which are not triangular, will do as well. ``threshold`` is in pixels, of the mean
    focal length of the two cameras.
    """
    # The change of area, since a turned camera has no focal lengths on its diagonal.
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
    """Points in pixels to directions (x / z, y / z) of a camera with this intrinsic matrix."""
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
    except cv2.error:  # degenerate points, for example all at one place
        return nothing
    if matrix is None or mask is None or matrix.shape != (3, 3) or not np.isfinite(matrix).all():
        return nothing
    return Geometry(np.asarray(matrix, np.float64), np.asarray(mask).reshape(-1).astype(np.bool_))
