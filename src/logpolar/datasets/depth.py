"""Trusted depth: confirmed by other views, on a nearly planar surface around a keypoint.

Averages and interpolation use inverse depth: on a plane it is linear in the pixel, depth is not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.options import DepthRules
from logpolar.geometry.cameras import Array, Camera, Transfer
from logpolar.types import FloatArray

_GRID = np.array([(x, y) for y in range(-2, 3) for x in range(-2, 3)])
"""Offsets of the 5 x 5 samples to which a plane is fitted."""

_MIN_SAMPLES = 13
"""With known depth."""

_LEAST_ROUGHNESS = 0.001
"""Relative, of the inverse depth; less is rounding."""


@dataclass(frozen=True, eq=False)
class Planes:
    """The surface around N pixels: inverse depth = ``inverse_depth`` + ``slope`` . (x - xy); rows of 0: unknown."""

    inverse_depth: FloatArray  # (N,)
    slope: FloatArray  # (N, 2), per pixel

    @property
    def known(self) -> NDArray[np.bool_]:
        return self.inverse_depth > 0

    @property
    def depth(self) -> FloatArray:
        """NaN where unknown."""
        with np.errstate(divide="ignore"):
            return np.where(self.known, 1 / self.inverse_depth, np.float32(np.nan))

    def __getitem__(self, index: NDArray[np.integer] | NDArray[np.bool_]) -> Planes:
        return Planes(self.inverse_depth[index], self.slope[index])

    def at(self, offset: Array) -> Array:
        """Inverse depth of each plane at an offset (N, 2) in pixels from its centre."""
        return np.asarray(self.inverse_depth + (self.slope * offset).sum(axis=1))


def invert(depth: FloatArray) -> FloatArray:
    """Inverse depth; unknown stays 0."""
    return np.divide(1, depth, out=np.zeros_like(depth), where=depth > 0)


def confirmed_inverse_depth(
    depth: FloatArray,
    camera: Camera,
    others: Iterable[tuple[FloatArray, Camera]],
    rules: DepthRules,
    pixel: float,
) -> FloatArray:
    """Mean inverse depth where at least ``min_views`` other views agree; 0 elsewhere.

    Cameras are those of the depth maps, at any resolution; ``pixel`` is the unit of ``max_drift`` in pixels of this
    depth map. A view agrees where a pixel, projected into it by its own depth and back by the depth found there,
    returns to its place at the same depth. This rejects independent errors, not those that several views share.
    """
    height, width = depth.shape
    x, y = np.arange(width, dtype=np.float32)[None], np.arange(height, dtype=np.float32)[:, None]
    votes = np.zeros(depth.shape, np.uint16)
    total = invert(depth)
    for other_depth, other_camera in others:
        there_x, there_y, there_depth = Transfer.between(camera, other_camera)(x, y, depth)
        ahead = (depth > 0) & (there_depth > 0)
        there_x, there_y = np.where(ahead, there_x, -1), np.where(ahead, there_y, -1)
        found = invert(_interpolate(invert(other_depth), there_x, there_y))
        back_x, back_y, back_depth = Transfer.between(other_camera, camera)(there_x, there_y, found)
        with np.errstate(invalid="ignore"):
            drift = (back_x - x) ** 2 + (back_y - y) ** 2
            agrees = ahead & (found > 0) & (back_depth > 0) & (drift <= (rules.max_drift * pixel) ** 2)
            agrees &= np.abs(back_depth - depth) <= rules.max_difference * depth
        votes += agrees
        total += np.divide(1, back_depth, out=np.zeros_like(depth), where=agrees)
    return np.where(votes >= rules.min_views, total / (1 + votes), 0).astype(np.float32)


def nearest(values: FloatArray, x: Array, y: Array) -> FloatArray:
    """Values at the nearest pixels, in the shape of ``x``; 0 outside the map."""
    height, width = values.shape
    columns, rows = np.rint(x), np.rint(y)
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    columns, rows = (np.where(inside, each, 0).astype(np.intp) for each in (columns, rows))
    return np.where(inside, values[rows, columns], np.float32(0))


def _interpolate(inverse_depth: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Bilinear inverse depth where all four neighbours are known, the nearest one's elsewhere; 0 is unknown.

    Across a depth edge the result lies on no surface, and no other view will confirm it.
    """
    known = (inverse_depth > 0).astype(np.float32)
    linear, weight = (
        cv2.remap(each, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT) for each in (inverse_depth, known)
    )
    near = cv2.remap(inverse_depth, x, y, cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT)
    return np.asarray(np.where(weight > 0.999, linear, near), np.float32)


def fit_planes(inverse_depth: FloatArray, xy: Array, radius: Array, rules: DepthRules) -> Planes:
    """Least-squares planes around pixels of a map of inverse depth; unknown at edges, in holes, outside.

    A plane is fitted to 5 x 5 samples that cover a square of half-width ``radius`` (N,), or 2 pixels if that is more.
    """
    height, width = inverse_depth.shape
    spacing = np.maximum(np.asarray(radius) / 2, 1)
    columns, rows = (np.rint(xy[:, k, None] + spacing[:, None] * _GRID[:, k]).astype(np.intp) for k in (0, 1))
    inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
    values = inverse_depth[np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1)].astype(np.float64)
    weight = (inside & (values > 0)).astype(np.float64)
    offset_x, offset_y = columns - xy[:, :1], rows - xy[:, 1:]
    design = np.stack([np.ones_like(offset_x), offset_x, offset_y], axis=2)
    weighted = design * weight[:, :, None]
    normal = np.einsum("nki,nkj->nij", weighted, design)
    # Too few or collinear samples leave the plane undetermined; ``solve`` needs a regular matrix.
    open_ = (weight.sum(axis=1) < _MIN_SAMPLES) | (np.linalg.det(normal) < 1)
    normal[open_] = np.eye(3)
    plane = np.linalg.solve(normal, np.einsum("nki,nk->ni", weighted, values)[:, :, None])[:, :, 0]
    roughness = (np.abs(np.einsum("nki,ni->nk", design, plane) - values) * weight).max(axis=1, initial=0)
    centre_known = weight[:, len(_GRID) // 2] > 0
    good = ~open_ & centre_known & (plane[:, 0] > 0)
    good &= roughness <= _roughness_limit(roughness[good] / plane[good, 0], rules) * plane[:, 0]
    plane = np.where(good[:, None], plane, 0).astype(np.float32)
    return Planes(plane[:, 0], plane[:, 1:])


def _roughness_limit(roughness: Array, rules: DepthRules) -> float:
    """Rougher than six times the median, or than the rules allow, is not a plane.

    Where depth is exact this detects the slightest fold, where it is noisy only true edges.
    """
    usual = float(np.median(roughness)) if len(roughness) else 0.0
    return min(rules.max_roughness, max(6 * usual, _LEAST_ROUGHNESS))
