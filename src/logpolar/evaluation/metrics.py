"""Descriptor metrics.

FPR95 compares distances of correct and incorrect pairs; ranks count the candidates nearer than the correct one.
The published tables of HPatches and AMOS pool the candidates of all images (``pooled_ranks``): N anchors, N positives,
and each anchor's own positive must be nearer than all others. That is harder than ranks within one image pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from logpolar.types import FloatArray

_BLOCK_BYTES = 64 * 2**20
"""Memory for one block of the distance matrix; the whole matrix is never built."""

Ranks = NDArray[np.int64]


def threshold95(positive: NDArray[np.floating]) -> float:
    """The smallest distance such that at least 95 % of ``positive`` are at or below it: the threshold of FPR95."""
    needed = int(np.ceil(0.95 * len(positive) - 1e-9))
    return float(np.partition(positive, needed - 1)[needed - 1])


def ranks(distances: NDArray[np.floating], truth: NDArray[np.integer]) -> NDArray[np.intp]:
    """For each row of distances (N, M): how many columns are strictly nearer than the true one; 0 is a match."""
    own = np.take_along_axis(distances, np.asarray(truth)[:, None], axis=1)
    return np.asarray((distances < own).sum(axis=1), np.intp)


def pooled_ranks(first: FloatArray, second: FloatArray) -> Ranks:
    """(N,): how many rows of ``second`` (N, D) are strictly nearer to row k of ``first`` (N, D) than row k; 0 is best.

    Distances are Euclidean; vectors may have any length. Equal rows of ``second`` tie exactly.
    """
    first, second = np.asarray(first, np.float32), np.asarray(second, np.float32)
    if first.ndim != 2 or first.shape != second.shape:
        raise ValueError(f"anchors {first.shape} and positives {second.shape} must both be (N, D)")
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise ValueError("descriptors are not finite")  # they would all rank first
    if len(first) == 0:
        return np.zeros(0, np.int64)
    # Merged: a product's last bits depend on its column, so equal rows in two columns might not tie.
    answers, own, count = np.unique(second, axis=0, return_inverse=True, return_counts=True)
    own = own.reshape(-1)  # of shape (N, 1) in numpy 2.0
    half_square = (answers.astype(np.float64) ** 2).sum(axis=1).astype(np.float32) / 2
    transposed, weight = np.ascontiguousarray(answers.T), count.astype(np.float32)
    result = np.empty(len(first), np.int64)
    rows = max(_BLOCK_BYTES // (4 * len(answers)), 1)
    for start in range(0, len(first), rows):
        chunk = slice(start, start + rows)
        block = first[chunk] @ transposed
        block -= half_square  # a.b - |b|^2 / 2 falls with the distance
        correct = np.take_along_axis(block, own[chunk, None], axis=1)
        result[chunk] = (block > correct).astype(np.float32) @ weight  # exact up to 2^24 positives
    return result


def rank1(ranks: NDArray[np.integer]) -> float:
    """Fraction of anchors with no positive nearer than their own; NaN without anchors."""
    return float(np.mean(ranks == 0)) if len(ranks) else math.nan


def cumulative(ranks: NDArray[np.integer], at: Sequence[int]) -> NDArray[np.float64]:
    """Fraction of anchors whose own positive is among the first k, for each k of ``at``; NaN without anchors."""
    if len(ranks) == 0:
        return np.full(len(at), math.nan)
    return np.searchsorted(np.sort(ranks), np.asarray(at), side="left") / len(ranks)
