"""Resizing images, and where their pixels go.

Convention: pixel centres lie at integer coordinates, so resizing by a factor s maps x to (x + 0.5) * s - 0.5.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.types import Array, FloatArray


def downscale(gray: FloatArray, max_size: int | None) -> FloatArray:
    """Reduce the longer side to ``max_size`` pixels (area averaging); smaller images are returned unchanged."""
    height, width = gray.shape
    if max_size is None or max(height, width) <= max_size:
        return gray
    factor = max_size / max(height, width)
    shape = max(round(width * factor), 1), max(round(height * factor), 1)
    return np.asarray(cv2.resize(gray, shape, interpolation=cv2.INTER_AREA), np.float32)


def resize_points(xy: Array, factor: Array | float) -> Array:
    """Positions (N, 2) after a resize by ``factor``: one number, or one for x and one for y."""
    return np.asarray((xy + 0.5) * factor - 0.5)


def resize_matrix(before: tuple[int, int], after: tuple[int, int]) -> NDArray[np.float64]:
    """The resize from (width, height) ``before`` to ``after`` as a matrix (3, 3) for homogeneous positions."""
    x, y = after[0] / before[0], after[1] / before[1]
    return np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2], [0, 0, 1]])
