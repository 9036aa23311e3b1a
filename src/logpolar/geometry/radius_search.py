"""Radius search among points in the plane."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from logpolar.types import Array as Points

Indices = NDArray[np.intp]


def close_pairs(first: Points, second: Points, radius: float) -> tuple[Indices, Indices]:
    """Indices of all pairs of points (N, 2) and (M, 2) at most ``radius`` apart, in lexicographic order.

    The second points are sorted into square cells as wide as the radius; the neighbours of a point then lie in the
    3 x 3 cells around it, three runs of consecutive cells. Time and memory grow with N + M and the pairs found.
    Points that are not finite have no neighbours.
    """
    there = np.asarray(second, np.float64)
    low, high = there.min(axis=0, initial=np.inf) - radius, there.max(axis=0, initial=-np.inf) + radius
    with np.errstate(invalid="ignore"):
        within = np.flatnonzero(((first >= low) & (first <= high)).all(axis=1))
    here = np.asarray(first, np.float64)[within]
    size = max(radius, 1e-9)
    cells, there_cells = (np.floor((points - low) / size).astype(np.int64) for points in (here, there))
    stride = int(there_cells[:, 0].max(initial=0)) + 4  # with margins beside the first and last column
    keys = (there_cells[:, 1] + 1) * stride + there_cells[:, 0] + 1
    order = np.argsort(keys, kind="stable")
    found = []
    for row in (0, 1, 2):
        middle = (cells[:, 1] + row) * stride + cells[:, 0] + 1
        start = np.searchsorted(keys[order], middle - 1)
        count = np.searchsorted(keys[order], middle + 1, side="right") - start
        owner = np.repeat(np.arange(len(here)), count)
        rank = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        found.append((owner, order[start[owner] + rank]))
    left, right = (np.concatenate(indices) for indices in zip(*found, strict=True))
    near = ((here[left] - there[right]) ** 2).sum(axis=1) <= radius**2
    left, right = within[left[near]], right[near]
    sequence = np.lexsort((right, left))
    return left[sequence], right[sequence]


def keep_apart(order: Iterable[int], places: Sequence[Points], min_gap: float, max_count: int) -> Indices:
    """The first indices of ``order`` whose points are ``min_gap`` or more from all chosen before, in all ``places``.

    ``places`` are arrays (N, 2), for example the positions of correspondences in either image.
    """
    if min_gap <= 0:  # nothing is nearer
        return np.array(list(order)[:max_count], np.intp)
    count = len(places[0])
    crowds = []
    for points in places:
        left, right = close_pairs(points, points, float(np.nextafter(min_gap, 0)))
        crowds.append((right, np.searchsorted(left, np.arange(count + 1)).tolist()))
    taken = np.zeros(count, np.bool_)
    kept: list[int] = []
    for candidate in order:
        if len(kept) == max_count:
            break
        if not taken[candidate]:
            kept.append(candidate)
            for near, start in crowds:
                taken[near[start[candidate] : start[candidate + 1]]] = True  # itself included
    return np.array(kept, np.intp)
