"""Nearest-neighbour matching of two sets of descriptors, in blocks of bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from logpolar.features.features import Features
from logpolar.keypoints import Keypoints
from logpolar.matching.consensus import agreeing, have_shape
from logpolar.matching.options import MatchingOptions
from logpolar.types import FloatArray

_BLOCK_BYTES = 32 * 2**20
"""Memory for one block of the similarity matrix; the whole matrix is never built. Smaller blocks slow BLAS down."""


@dataclass(frozen=True, eq=False)
class Matches:
    """``indices`` (K, 2) int32: row in the first and in the second set; ``distances`` (K,) Euclidean.

    ``confidence`` (K,): probability that a match is correct, of matchers that estimate it.
    """

    indices: NDArray[np.int32]
    distances: FloatArray
    confidence: FloatArray | None = None

    @classmethod
    def empty(cls) -> Matches:
        return cls(np.zeros((0, 2), np.int32), np.zeros(0, np.float32))

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.integer]) -> Matches:
        """The matches selected by a mask or an index array."""
        confidence = None if self.confidence is None else self.confidence[rows]
        return Matches(self.indices[rows], self.distances[rows], confidence)


def match_features(
    first: Features, second: Features, options: MatchingOptions | None = None, *, device: str = "cpu", **changes: Any
) -> Matches:
    """Match the features of two images by nearest neighbours or a learned matcher, then the filter of the options.

    >>> matches = match_features(a, b, ratio=0.95, filter="consensus")             # doctest: +SKIP

    ``changes``: fields of ``MatchingOptions``, as keywords. ``device``: see ``match_descriptors``.
    """
    options = replace(options or MatchingOptions(), **changes)
    if options.learned:
        from logpolar.matching.learned import open_matcher

        matches = open_matcher(options.matcher, device).match(first, second)
    else:
        matches = match_descriptors(first.descriptors, second.descriptors, options, device=device)
    return filter_matches(matches, first.keypoints, second.keypoints, options)


def filter_matches(matches: Matches, first: Keypoints, second: Keypoints, options: MatchingOptions) -> Matches:
    """The matches that the filter of the options keeps; ``first`` and ``second``: the keypoints of the images."""
    here, there = first[matches.indices[:, 0]], second[matches.indices[:, 1]]
    if options.filter == "none":
        return matches
    if options.filter == "auto" and (matches.confidence is not None or not have_shape(here, there)):
        return matches  # a learned matcher, which alone gives confidence, has compared neighbours already
    return matches[agreeing(here, there)]


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

    ``changes``: fields of ``MatchingOptions``, as keywords. Filters need keypoints: see ``match_features``.
    ``device``: ``"cpu"``, or ``"cuda"`` or ``"cuda:N"`` (extra ``torch``), with the same result up to rounding.
    """
    options = replace(options or MatchingOptions(), **changes)
    if len(first) == 0 or len(second) == 0:
        return Matches.empty()
    if device == "cpu":
        return select_matches(_nearest(first, second), options)
    from logpolar.matching.torch_nearest import nearest_on_device

    return select_matches(nearest_on_device(first, second, device), options)


@dataclass(frozen=True, eq=False)
class Neighbours:
    """For each row of the first set: the nearest row of the second, its dot product, and that of the second nearest
    (-inf if there is none); for each row of the second set: its largest dot product with the first set."""

    index: NDArray[np.intp]
    best: FloatArray
    runner_up: FloatArray
    back_best: FloatArray


def select_matches(found: Neighbours, options: MatchingOptions) -> Matches:
    """The nearest neighbours that are matches: mutual, and distinctive by the ratio test."""
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


Allowed: TypeAlias = Callable[[slice], NDArray[np.bool_]]
"""Which rows of the second set may match a block of rows of the first: a mask (block, M)."""


def match_allowed(first: FloatArray, second: FloatArray, allowed: Allowed, options: MatchingOptions) -> Matches:
    """``match_descriptors`` among allowed pairs only: nearest and second nearest are the nearest allowed ones."""
    if len(first) == 0 or len(second) == 0:
        return Matches.empty()
    matches = select_matches(_nearest(first, second, allowed), options)
    return matches[np.isfinite(matches.distances)]


def _nearest(first: FloatArray, second: FloatArray, allowed: Allowed | None = None) -> Neighbours:
    rows = max(_BLOCK_BYTES // (4 * len(second)), 1)
    index = np.empty(len(first), np.intp)
    best, runner_up = np.empty(len(first), np.float32), np.empty(len(first), np.float32)
    back_best = np.full(len(second), -np.inf, np.float32)
    transposed = np.ascontiguousarray(second, np.float32).T
    memory = np.empty((min(rows, len(first)), len(second)), np.float32)
    for start in range(0, len(first), rows):
        part = np.ascontiguousarray(first[start : start + rows], np.float32)
        block = np.matmul(part, transposed, out=memory[: len(part)])
        if allowed is not None:
            block[~allowed(slice(start, start + len(part)))] = -np.inf
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
