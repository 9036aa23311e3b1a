"""Resizing images, and where their pixels go.

Convention: pixel centres lie at integer coordinates, so resizing by a factor s maps x to (x + 0.5) * s - 0.5.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.types import Array, FloatArray

MAX_ENLARGEMENT = 4.0
"""Small images are never enlarged by more: there is nothing left to find."""


def fitted_size(size: tuple[int, int], max_size: int | None = None, min_size: int | None = None) -> tuple[int, int]:
    """(width, height) with the longer side reduced to ``max_size`` or enlarged to ``min_size`` pixels.

    At most ``MAX_ENLARGEMENT`` times larger, and never beyond ``max_size``; None is no limit.
    """
    longer, factor = max(size), 1.0
    if max_size is not None and longer > max_size:
        factor = max_size / longer
    elif min_size is not None and longer < min(min_size, max_size or min_size):
        factor = min(min(min_size, max_size or min_size) / longer, MAX_ENLARGEMENT)
    width, height = (side if factor == 1 else max(round(side * factor), 1) for side in size)
    return width, height


def resize(gray: FloatArray, size: tuple[int, int]) -> FloatArray:
    """A gray image at (width, height): area averaging to reduce, bicubic to enlarge; unchanged at its own size."""
    before = gray.shape[1], gray.shape[0]
    if size == before:
        return gray
    reduces = size[0] * size[1] < before[0] * before[1]
    resized = cv2.resize(gray, size, interpolation=cv2.INTER_AREA if reduces else cv2.INTER_CUBIC)
    return np.asarray(resized if reduces else np.clip(resized, 0, 1), np.float32)


def downscale(gray: FloatArray, max_size: int | None) -> FloatArray:
    """Reduce the longer side to ``max_size`` pixels; smaller images are returned unchanged."""
    return resize(gray, fitted_size((gray.shape[1], gray.shape[0]), max_size))


def resize_points(xy: Array, factor: Array | float) -> Array:
    """Positions (N, 2) after a resize by ``factor``: one number, or one for x and one for y."""
    return np.asarray((xy + 0.5) * factor - 0.5)


def resize_matrix(before: tuple[float, float], after: tuple[float, float]) -> NDArray[np.float64]:
    """The resize from (width, height) ``before`` to ``after`` as a matrix (3, 3) for homogeneous positions."""
    x, y = after[0] / before[0], after[1] / before[1]
    return np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2], [0, 0, 1]])
