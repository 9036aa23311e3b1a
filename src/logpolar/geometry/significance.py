"""Whether inliers are more than chance explains, a contrario (Moisan and Stival 2004).

Were all n matches incorrect, each would still fit a given model with some probability p, and the best of all models
that n matches allow may have many inliers. The number of models with k inliers or more to be expected then is at most

    NFA = models * (n - s) * C(n, k) * C(k, s) * p^(k - s)

with s matches in a minimal sample. The significance is -log10 NFA.

p is measured instead of derived from the image's size: points of the first image are paired with the matches of
others, and the fraction of these random pairs that fit the model is counted. So a model that fits anything (points on
a line, at one place, an epipole in their midst) is not significant, however many inliers it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from logpolar.types import Matrix

ErrorFunction: TypeAlias = Callable[[Matrix, Matrix], Matrix]

MIN_SIGNIFICANCE = 0.3
"""Smallest significance of a common scene."""

_RANDOM_PAIRS = 50_000


def sampson_error(matrix: Matrix, first: Matrix, second: Matrix) -> Matrix:
    """First-order distance (N,) of matched points (N, 2) to epipolar geometry, x2' matrix x1 = 0, in their units."""
    ones = np.ones((len(first), 1))
    here, there = np.concatenate([first, ones], axis=1), np.concatenate([second, ones], axis=1)
    lines, back = here @ matrix.T, there @ matrix
    slope = (lines[:, :2] ** 2).sum(axis=1) + (back[:, :2] ** 2).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.abs((lines * there).sum(axis=1)) / np.sqrt(slope))


def measure_significance(
    error: ErrorFunction,
    first: Matrix,
    second: Matrix,
    inliers: NDArray[np.bool_],
    threshold: float,
    sample: int,
    models: int,
) -> float:
    """Significance of the inliers among matched points (N, 2); ``sample`` is s, with at most ``models`` models."""
    # Keypoints with several orientations match several times at one place; that is one piece of evidence.
    places = np.rint(np.concatenate([first, second], axis=1) / (2 * threshold))
    _, unique = np.unique(places, axis=0, return_index=True)
    first, second, inliers = first[unique], second[unique], inliers[unique]
    chance = _chance(error, first, second, threshold)
    return -_log_false_alarms(len(first), int(inliers.sum()), chance, sample, models) / math.log(10)


def _chance(error: ErrorFunction, first: Matrix, second: Matrix, threshold: float) -> float:
    """Fraction of random pairs of the matched points that fit."""
    count = len(first)
    if count < 2:
        return 1.0
    # Each point with the matches of others, a distance in the list apart: all distinct, and none with its own.
    shifts = 1 + np.random.default_rng(0).permutation(count - 1)[: max(_RANDOM_PAIRS // count, 1)]
    here = np.tile(np.arange(count), len(shifts))
    there = (here + np.repeat(shifts, count)) % count
    fitting = int((error(first[here], second[there]) <= threshold).sum())
    return (fitting + 1) / (len(here) + 1)


def _log_false_alarms(matches: int, inliers: int, chance: float, sample: int, models: int) -> float:
    if inliers <= sample:
        return math.inf
    ways = math.log(models * (matches - sample)) + _log_choose(matches, inliers) + _log_choose(inliers, sample)
    return ways + (inliers - sample) * math.log(chance)


def _log_choose(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
