"""Guided matching: match again where an estimated geometry predicts the match.

Far fewer keypoints compete near an epipolar line, or near the place that a homography predicts, than in the whole
image, so a relaxed ratio test finds correct matches that the first one had to reject.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from logpolar.features.features import Features
from logpolar.geometry.homography import warp_points
from logpolar.matching.nearest import Allowed, Matches, filter_matches, match_allowed
from logpolar.matching.options import MatchingOptions
from logpolar.types import FloatArray, Matrix

_RATIO = 0.95
"""The relaxed ratio test, among the keypoints near the prediction."""

_NEAR = 2.0
"""How far from the prediction matches may lie, in thresholds of inliers: the prediction is not exact either."""

_QUANTILE = 0.95
"""Matches may be as far apart as this fraction of the first inliers."""


def match_near(
    first: Features, second: Features, near: Allowed, inlier_distances: FloatArray, options: MatchingOptions
) -> Matches:
    """Matches near the prediction, nearest and mutual among these, and filtered.

    ``near``: see below. ``inlier_distances``: descriptor distances of the first estimate's inliers.
    """
    found = match_allowed(first.descriptors, second.descriptors, near, replace(options, ratio=_RATIO))
    found = found[found.distances <= np.quantile(inlier_distances, _QUANTILE)]
    return filter_matches(found, first.keypoints, second.keypoints, options)


def near_epipolar_lines(matrix: Matrix, first: Matrix, second: Matrix, threshold: float) -> Allowed:
    """Which points (M, 2) lie near the epipolar lines of a block of points (N, 2), by ``sampson_error``.

    ``threshold``: largest error of an inlier, in the units of the points.
    """
    here, there = (np.concatenate([points, np.ones((len(points), 1))], axis=1) for points in (first, second))
    lines, back = here @ matrix.T, there @ matrix
    # error <= limit as off^2 - limit^2 * back^2 <= limit^2 * line^2, scaled by the limit: two passes, no root.
    limit = _NEAR * threshold
    least, most = ((each[:, :2] ** 2).sum(axis=1).astype(np.float32) for each in (back, lines))
    scaled, points = (lines / limit).astype(np.float32), np.ascontiguousarray(there.T, np.float32)

    def near(rows: slice) -> NDArray[np.bool_]:
        off = scaled[rows] @ points
        np.square(off, out=off)
        off -= least
        return np.asarray(off <= most[rows, None])

    return near


def near_predictions(matrix: Matrix, first: Matrix, second: Matrix, threshold: float) -> Allowed:
    """Which points (M, 2) lie near where a homography maps a block of points (N, 2)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        predicted, there = warp_points(matrix, first)[0].astype(np.float32), second.astype(np.float32)
    limit = _NEAR * threshold
    return lambda rows: np.asarray(np.hypot(*np.moveaxis(predicted[rows, None] - there, -1, 0)) <= limit)
