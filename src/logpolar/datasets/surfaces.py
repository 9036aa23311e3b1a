"""The surface that an image of a scene shows, from the depth picture in a correspondence file."""

from __future__ import annotations

import numpy as np

from logpolar.datasets.depth import nearest
from logpolar.datasets.files import CorrespondenceFile
from logpolar.geometry.cameras import Matrix
from logpolar.images import resize_points
from logpolar.types import FloatArray

_MIN_FITTED = 16
"""Keypoints of known depth needed to read a depth picture."""


def read_stored_surface(file: CorrespondenceFile, number: int) -> FloatArray:
    """Inverse depth of an image with a camera, at the resolution of its depth picture; 0 where unknown.

    The picture is inverse depth, stretched; keypoints of known depth tell by how much. The ends are clipped: unknown.
    """
    camera, picture = file.read_camera(number), file.read_depth_picture(number)
    if camera is None or picture is None:
        raise ValueError(f"{file.path}: image {number} has no camera or no depth")
    keypoints, depth = file.read_keypoints(number), file.read_depths(number)
    factor = np.array(picture.shape[::-1]) / (camera.width, camera.height)
    shades = nearest(picture.astype(np.float32), *resize_points(keypoints.xy, factor).T)
    known = np.isfinite(depth) & (shades > 1) & (shades < 255)
    if known.sum() < _MIN_FITTED:
        return np.zeros(picture.shape, np.float32)
    slope, offset = _fit_line(shades[known].astype(np.float64), 1 / depth[known].astype(np.float64))
    inside = (picture > 1) & (picture < 255)
    return np.where(inside, np.maximum(offset + slope * picture, 0), 0).astype(np.float32)


def _fit_line(x: Matrix, y: Matrix) -> tuple[float, float]:
    """Slope and offset; keypoints at depth edges, perhaps on the other surface, are left out after a first fit."""
    keep = np.ones(len(x), np.bool_)
    for _ in range(3):
        slope, offset = np.polyfit(x[keep], y[keep], 1)
        error = np.abs(offset + slope * x - y)
        keep = error <= 3 * np.median(error) + 1e-12
    return float(slope), float(offset)
