"""Points and keypoints through a homography, and homographies in text files."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from logpolar.errors import LogpolarError
from logpolar.keypoints import Keypoints
from logpolar.storage.inputs import read_text
from logpolar.types import Array, Matrix


def read_homography(path: str | Path) -> Matrix:
    """A homography in a text file: three lines of three numbers."""
    text = read_text(path, LogpolarError, "homography of 3 x 3 numbers")
    try:
        rows = [line.split() for line in text.splitlines() if line.strip()]
        values = np.array([[float(word) for word in row] for row in rows], np.float64)
    except ValueError as error:  # not numbers, or rows of different lengths
        raise LogpolarError(f"{path}: not a homography of 3 x 3 numbers") from error
    if values.shape != (3, 3):
        raise LogpolarError(f"{path}: not a homography of 3 x 3 numbers")
    if not np.isfinite(values).all():
        raise LogpolarError(f"{path}: the homography is not finite")
    if not np.linalg.cond(_balanced(values)) < 1e10:  # NaN for nothing but zeros
        raise LogpolarError(f"{path}: the homography is singular")
    return values


def _balanced(homography: Matrix) -> Matrix:
    """In units of 1000 px, which makes its entries comparable."""
    unit = np.diag([1000.0, 1000.0, 1.0])
    return np.asarray(np.linalg.inv(unit) @ homography @ unit)


def warp_points(homography: Matrix, xy: Array) -> tuple[Matrix, Matrix]:
    """Points (N, 2) through a homography (3, 3), or each through its own (N, 3, 3), and the Jacobians (N, 2, 2)."""
    points = np.concatenate([xy, np.ones((len(xy), 1))], axis=1)
    projected = np.einsum("...ij,...j->...i", homography, points)
    depth = projected[:, 2:]
    warped = projected[:, :2] / depth
    jacobian = (homography[..., :2, :2] - warped[:, :, None] * homography[..., 2:, :2]) / depth[:, :, None]
    return warped, jacobian


def warp_shape(jacobian: Matrix, keypoints: Keypoints) -> tuple[Matrix, Matrix]:
    """Angles, in degrees, and sizes that a warp's Jacobian predicts in the second image."""
    radians = np.radians(keypoints.angle.astype(np.float64))
    direction = np.einsum("nij,nj->ni", jacobian, np.stack([np.cos(radians), np.sin(radians)], axis=1))
    return np.degrees(np.arctan2(direction[:, 1], direction[:, 0])), keypoints.size * zoom_of(jacobian)


def zoom_of(jacobian: Array) -> Array:
    """Local magnification of a warp: the square root of the change of area."""
    area = jacobian[..., 0, 0] * jacobian[..., 1, 1] - jacobian[..., 0, 1] * jacobian[..., 1, 0]
    return np.asarray(np.sqrt(np.abs(area)))


def wrap_degrees(angle: Array) -> Array:
    """Angles in [-180, 180)."""
    return np.asarray(np.remainder(angle + 180, 360) - 180)
