"""Nearest-neighbour matching of two sets of descriptors, in blocks of bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.settings import DEFAULT_RATIO
from logpolar.types import FloatArray

_BLOCK_BYTES = 32 * 2**20
"""Memory for one block of the similarity matrix; the whole matrix is never built. Smaller blocks slow BLAS down."""


@dataclass(frozen=True)
class MatchingOptions:
    """Which nearest neighbours are matches."""

    ratio: float | None = DEFAULT_RATIO  # largest accepted best distance over second best; None: no ratio test
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


def match_descriptors(
    first: FloatArray,
    second: FloatArray,
    options: MatchingOptions | None = None,
    *,
    device: str = "cpu",
    **changes: Any,
) -> Matches:
    """Match unit-length descriptors (N, D) and (M, D).

    >>> matches = match_descriptors(a.descriptors, b.descriptors, ratio=0.8)      # doctest: +SKIP

    A match is a nearest neighbour in the second set that passes the ratio test and, with ``mutual``, has no nearer
    neighbour in the first set. The first of equally near neighbours is used. A single candidate passes the ratio test.
    Matches are ordered by their row in the first set.

    ``changes``: fields of ``MatchingOptions``, as keywords.
    ``device``: ``"cpu"``, or ``"cuda"`` or ``"cuda:N"`` (extra ``torch``), with the same result up to rounding.
    """
    options = replace(options or MatchingOptions(), **changes)
    if len(first) == 0 or len(second) == 0:
        return Matches(np.zeros((0, 2), np.int32), np.zeros(0, np.float32))
    if device == "cpu":
        return _select(_nearest(first, second), options)
    from logpolar.matching.torch_nearest import nearest_on_device

    return _select(nearest_on_device(first, second, device), options)


@dataclass(frozen=True, eq=False)
class Neighbours:
    """For each row of the first set: the nearest row of the second, its dot product, and that of the second nearest
    (-inf if there is none); for each row of the second set: its largest dot product with the first set."""

    index: NDArray[np.intp]
    best: FloatArray
    runner_up: FloatArray
    back_best: FloatArray


def _select(found: Neighbours, options: MatchingOptions) -> Matches:
    distance, second_distance = _distance(found.best), _distance(found.runner_up)
    keep = np.ones(len(found.index), np.bool_)
    if options.mutual:
        keep &= found.best >= found.back_best[found.index]
        candidates = np.flatnonzero(keep)
        _, firsts = np.unique(found.index[candidates], return_index=True)  # of identical descriptors the first row
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
    transposed = np.ascontiguousarray(second, np.float32).T
    memory = np.empty((min(rows, len(first)), len(second)), np.float32)
    for start in range(0, len(first), rows):
        part = np.ascontiguousarray(first[start : start + rows], np.float32)
        block = np.matmul(part, transposed, out=memory[: len(part)])
        # The maximum of each column is enough; finding its row as well takes ten times as long.
        np.maximum(back_best, block.max(axis=0), out=back_best)
        here, there = np.arange(len(block)), slice(start, start + len(block))
        index[there] = block.argmax(axis=1)
        best[there] = block[here, index[there]]
        block[here, index[there]] = -np.inf
        runner_up[there] = block.max(axis=1)
    return Neighbours(index, best, runner_up, back_best)


def _distance(similarity: FloatArray) -> FloatArray:
    """Euclidean distance of unit vectors from their dot product; infinite for -inf, no neighbour."""
    return np.sqrt(np.maximum(2 - 2 * similarity, 0))
