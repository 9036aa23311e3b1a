"""Matching: nearest neighbours between two sets of descriptors, in blocks of bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from logpolar.defaults import DEFAULT_RATIO
from logpolar.keypoints import FloatArray

_BLOCK_BYTES = 64 * 2**20
"""Memory for one block of the similarity matrix; the whole matrix is never built."""


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

    A match is a nearest neighbour in the second set that passes the ratio test and, with ``mutual``, whose own
    nearest neighbour in the first set is the one it came from. Of equally near neighbours the first counts. Where
    there is no second neighbour the ratio test passes. Matches are ordered by their row in the first set.
    """
    options = options or MatchingOptions()
    if len(first) == 0 or len(second) == 0:
        return Matches(np.zeros((0, 2), np.int32), np.zeros(0, np.float32))
    forward, backward = _nearest(first, second)
    index = np.arange(len(first))
    keep = np.ones(len(first), np.bool_)
    if options.mutual:
        keep &= backward[forward.index] == index
    if options.ratio is not None:
        keep &= forward.distance <= options.ratio * forward.second_distance
    pairs = np.stack([index[keep], forward.index[keep]], axis=1).astype(np.int32)
    return Matches(pairs, forward.distance[keep])


@dataclass(frozen=True, eq=False)
class _Neighbours:
    index: NDArray[np.intp]
    distance: FloatArray
    second_distance: FloatArray


def _nearest(first: FloatArray, second: FloatArray) -> tuple[_Neighbours, NDArray[np.intp]]:
    """Two nearest neighbours of each row of ``first``, and the nearest of each row of ``second``."""
    rows = max(_BLOCK_BYTES // (4 * len(second)), 1)
    index = np.empty(len(first), np.intp)
    best, runner_up = np.empty(len(first), np.float32), np.empty(len(first), np.float32)
    back_index = np.zeros(len(second), np.intp)
    back_best = np.full(len(second), -np.inf, np.float32)
    for start in range(0, len(first), rows):
        block = first[start : start + rows] @ second.T
        stop = start + len(block)
        strongest = block.argmax(axis=0)
        values = block[strongest, np.arange(len(second))]
        better = values > back_best
        back_index[better] = strongest[better] + start
        back_best[better] = values[better]

        here = np.arange(len(block))
        index[start:stop] = block.argmax(axis=1)
        best[start:stop] = block[here, index[start:stop]]
        block[here, index[start:stop]] = -np.inf
        runner_up[start:stop] = block.max(axis=1)
    return _Neighbours(index, _distance(best), _distance(runner_up)), back_index


def _distance(similarity: FloatArray) -> FloatArray:
    """Euclidean distance of unit vectors from their dot product; -inf (no neighbour) is infinitely far."""
    return np.sqrt(np.maximum(2 - 2 * similarity, 0))
