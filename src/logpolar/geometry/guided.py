"""Guided matching: match again where an estimated geometry predicts the match.

Far fewer keypoints compete near an epipolar line, or near the place that a homography predicts, than in the whole
image, so a relaxed ratio test finds correct matches that the first one had to reject.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from logpolar.features.features import Features
from logpolar.geometry.homography import warp_points
from logpolar.matching.nearest import Matches, filter_matches, match_allowed
from logpolar.matching.options import MatchingOptions
from logpolar.types import FloatArray, Matrix

PairError: TypeAlias = Callable[[slice], FloatArray]
"""Errors (block, M) of pairing a block of the first image's keypoints with each of the second's."""

_RATIO = 0.97
"""The relaxed ratio test, among the keypoints near the prediction."""

_QUANTILE = 0.95
"""Matches may be as far apart as this fraction of the first inliers."""


def match_near(
    first: Features,
    second: Features,
    error: PairError,
    threshold: float,
    inlier_distances: FloatArray,
    options: MatchingOptions,
) -> Matches:
    """Matches whose ``error`` is at most ``threshold``, nearest and mutual among these, and filtered.

    ``inlier_distances``: descriptor distances of the first estimate's inliers.
    """
    relaxed = replace(options, ratio=_RATIO)
    found = match_allowed(first.descriptors, second.descriptors, lambda rows: error(rows) <= threshold, relaxed)
    found = found[found.distances <= np.quantile(inlier_distances, _QUANTILE)]
    return filter_matches(found, first.keypoints, second.keypoints, options)


def epipolar_error(matrix: Matrix, first: Matrix, second: Matrix) -> PairError:
    """Sampson errors of all pairs of points (N, 2) and (M, 2): ``sampson_error`` of each."""
    here, there = (np.concatenate([points, np.ones((len(points), 1))], axis=1) for points in (first, second))
    lines, back = here @ matrix.T, there @ matrix
    steep, back_steep = ((each[:, :2] ** 2).sum(axis=1).astype(np.float32) for each in (lines, back))

    def error(rows: slice) -> FloatArray:
        off = np.abs(lines[rows] @ there.T).astype(np.float32)
        return np.asarray(off / np.sqrt(steep[rows, None] + back_steep))

    return error


def transfer_error(matrix: Matrix, first: Matrix, second: Matrix) -> PairError:
    """Distances of all points of the second image (M, 2) to where a homography maps those of the first (N, 2)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        predicted, there = warp_points(matrix, first)[0].astype(np.float32), second.astype(np.float32)
    return lambda rows: np.asarray(np.hypot(*np.moveaxis(predicted[rows, None] - there, -1, 0)))
