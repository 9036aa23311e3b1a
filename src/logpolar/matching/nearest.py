"""Matching: nearest neighbours between two sets of descriptors, in blocks of bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from logpolar.settings import DEFAULT_RATIO
from logpolar.types import FloatArray

_BLOCK_BYTES = 32 * 2**20
"""Memory for one block of the similarity matrix; the whole matrix is never built. Smaller blocks slow BLAS down."""


@dataclass(frozen=True)
class MatchingOptions:
    ratio: float | None = DEFAULT_RATIO  # best distance over second best is at most this; None: no test
    mutual: bool = True  # each must be the other's nearest neighbour

    def __post_init__(self) -> None:
        if self.ratio is not None and not 0 < self.ratio <= 1:
            raise ValueError(f"ratio must lie in (0, 1], not {self.ratio}")


@dataclass(frozen=True, eq=False)
class Matches:
    """``indices`` (K, 2) int32: row in the first and in the second set; ``distances`` (K,) Euclidean."""

    indices: NDArray[np.int32]
    distances: FloatArray

    def __len__(self) -> int:
        return len(self.indices)


def match_descriptors(first: FloatArray, second: FloatArray, options: MatchingOptions | None = None) -> Matches:
    """Match unit-length descriptors (N, D) and (M, D).

    A match is a nearest neighbour in the second set that passes the ratio test and, with ``mutual``, to which nothing
    in the first set is nearer. Of equally near neighbours the first counts. Where there is no second neighbour the
    ratio test passes. Matches are ordered by their row in the first set.
    """
    if len(first) == 0 or len(second) == 0:
        return no_matches()
    return choose_matches(_nearest(first, second), options or MatchingOptions())


def no_matches() -> Matches:
    return Matches(np.zeros((0, 2), np.int32), np.zeros(0, np.float32))


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Of each row of the first set the nearest in the second, its product and that of the next nearest, -inf if there
    is none; of each row of the second set the largest product with any row of the first."""

    index: NDArray[np.intp]
    best: FloatArray
    runner_up: FloatArray
    back_best: FloatArray


def choose_matches(found: Neighbours, options: MatchingOptions) -> Matches:
    """The matches among nearest neighbours."""
    distance, second_distance = _distance(found.best), _distance(found.runner_up)
    keep = np.ones(len(found.index), np.bool_)
    if options.mutual:
        keep &= found.best >= found.back_best[found.index]
        candidates = np.flatnonzero(keep)
        _, firsts = np.unique(found.index[candidates], return_index=True)  # the same descriptor twice: the first row
        keep[:] = False
        keep[candidates[firsts]] = True
    if options.ratio is not None:
        keep &= distance <= options.ratio * second_distance
    rows = np.flatnonzero(keep)
    return Matches(np.stack([rows, found.index[rows]], axis=1).astype(np.int32), distance[rows])


def _nearest(first: FloatArray, second: FloatArray) -> Neighbours:
    rows = max(_BLOCK_BYTES // (4 * len(second)), 1)
    index = np.empty(len(first), np.intp)
    best, runner_up = np.empty(len(first), np.float32), np.empty(len(first), np.float32)
    back_best = np.full(len(second), -np.inf, np.float32)
    turned = np.ascontiguousarray(second, np.float32).T
    whole = np.empty((min(rows, len(first)), len(second)), np.float32)
    for start in range(0, len(first), rows):
        part = np.ascontiguousarray(first[start : start + rows], np.float32)
        block = np.matmul(part, turned, out=whole[: len(part)])
        # The largest of each column will do; to find its row as well takes ten times as long.
        np.maximum(back_best, block.max(axis=0), out=back_best)
        here, there = np.arange(len(block)), slice(start, start + len(block))
        index[there] = block.argmax(axis=1)
        best[there] = block[here, index[there]]
        block[here, index[there]] = -np.inf
        runner_up[there] = block.max(axis=1)
    return Neighbours(index, best, runner_up, back_best)


def _distance(similarity: FloatArray) -> FloatArray:
    """Euclidean distance of unit vectors from their dot product; -inf (no neighbour) is infinitely far."""
    return np.sqrt(np.maximum(2 - 2 * similarity, 0))
