"""Ranks of right answers among all answers of a pool, however many images it comes from.

The published tables of HPatches and AMOS are made this way: N anchors, N positives, and each anchor's own positive must
be nearer than those of all other keypoints of all images. It is harder than telling the keypoints of one pair apart.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from logpolar.types import FloatArray

_BLOCK_BYTES = 64 * 2**20
"""Memory for one block of the matrix of distances; the whole matrix is never built."""

Ranks = NDArray[np.int64]


def pooled_ranks(first: FloatArray, second: FloatArray) -> Ranks:
    """(N,): how many rows of ``second`` (N, D) are strictly nearer to row k of ``first`` (N, D) than row k; 0 is best.

    Distances are Euclidean, of vectors of any length. Equal rows of ``second`` are equally near to the last bit.
    """
    first, second = np.asarray(first, np.float32), np.asarray(second, np.float32)
    if first.ndim != 2 or first.shape != second.shape:
        raise ValueError(f"anchors {first.shape} and positives {second.shape} must both be (N, D)")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("descriptors that are not finite have no rank")  # they would all come first
    if len(first) == 0:
        return np.zeros(0, np.int64)
    # A product's last bits depend on the column: only where equal rows are one column are they sure to tie.
    answers, own, count = np.unique(second, axis=0, return_inverse=True, return_counts=True)
    own = own.reshape(-1)  # of shape (N, 1) in numpy 2.0
    half_square = (answers.astype(np.float64) ** 2).sum(axis=1).astype(np.float32) / 2
    transposed, weight = np.ascontiguousarray(answers.T), count.astype(np.float32)
    result = np.empty(len(first), np.int64)
    rows = max(_BLOCK_BYTES // (4 * len(answers)), 1)
    for start in range(0, len(first), rows):
        part = slice(start, start + rows)
        block = first[part] @ transposed
        block -= half_square  # grows as the distance shrinks: a.b - |b|^2 / 2
        right = np.take_along_axis(block, own[part, None], axis=1)
        result[part] = (block > right).astype(np.float32) @ weight  # exact up to 2^24 positives
    return result


def rank1(ranks: NDArray[np.integer]) -> float:
    """Share of anchors whose own positive is the nearest, or as near as the nearest; NaN without anchors."""
    return float(np.mean(ranks == 0)) if len(ranks) else math.nan


def cumulative(ranks: NDArray[np.integer], at: Sequence[int]) -> NDArray[np.float64]:
    """Share of anchors that have their own positive among the first k, for each k of ``at``; k = 1 is ``rank1``.

    NaN without anchors.
    """
    if len(ranks) == 0:
        return np.full(len(at), math.nan)
    return np.searchsorted(np.sort(ranks), np.asarray(at), side="left") / len(ranks)
