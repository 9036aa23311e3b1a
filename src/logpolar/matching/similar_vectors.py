"""The most similar of many unit vectors, by dot product: compared all with all, or found by faiss.

Up to ``MOST_EXACT`` vectors the results are exact, found in blocks. For more, some vectors, drawn at random, are the
centres of cells. faiss (Douze et al., 2024) stores each vector in 8 bits a value with the nearest centre, and compares
it with those of the nearest cells. Photos of one place are little more similar than chance makes others: graphs (HNSW),
and cells by k-means, lost their way among many.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.errors import MissingExtraError
from logpolar.types import FloatArray

MOST_EXACT = 100_000

_AVERAGED = 5
"""Most similar vectors that a vector is averaged with."""

_IDENTICAL = 0.9
"""Similarity of near-identical photos."""

_BLOCK_VALUES = 2**24
"""Similarities in memory at a time."""

_ROWS = 1024
"""Vectors to average, or to look up in an index, at a time."""

_CELL = 8
"""Vectors in a cell on average."""

_PROBED = 16
"""Cells that a vector is compared with."""

_SAMPLE = 50_000
"""Vectors from which faiss takes the range of each value."""

_CANDIDATES = 20
"""Most similar vectors among which near-identical ones are looked for, where not all are compared."""

Rows = NDArray[np.intp]


def check_search(count: int) -> None:
    """Raises ``MissingExtraError`` if so many vectors need faiss, and it is not installed."""
    if count > MOST_EXACT:
        _import_faiss(count)


def averaged(vectors: FloatArray, count: int = _AVERAGED) -> FloatArray:
    """Each unit vector averaged with its ``count`` nearest ones, weighted by their similarity; of unit length."""
    rows, similarities = nearest_rows(vectors, count)
    weights, found = np.maximum(similarities, 0), np.empty_like(vectors)
    for start in range(0, len(vectors), _ROWS):
        some = slice(start, start + _ROWS)
        sums = vectors[some].copy()
        for rank in range(rows.shape[1]):
            sums += weights[some, rank, None] * vectors[rows[some, rank]]
        found[some] = unit(sums)
    return found


def unit(vectors: FloatArray) -> FloatArray:
    """Vectors of unit length; zeros stay."""
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12), np.float32)


def nearest_rows(vectors: FloatArray, count: int) -> tuple[Rows, FloatArray]:
    """The ``count`` nearest others (N, count) of each unit vector, and their similarities; the nearest first.

    Beyond ``MOST_EXACT`` vectors some may be missed. If fewer than ``count`` are found, the row itself fills the other
    places, with similarity 0.
    """
    count = min(count, len(vectors) - 1)
    rows, similarities = (np.zeros((len(vectors), count), kind) for kind in (np.intp, np.float32))
    if count > 0:
        search = _all_with_all if len(vectors) <= MOST_EXACT else _by_faiss
        for start, found, values in search(vectors, count):
            rows[start : start + len(found)] = found
            similarities[start : start + len(found)] = values
    return rows, similarities


def near_identical(vectors: FloatArray) -> dict[int, int]:
    """Rows of photos that repeat an earlier one, with the row of that, which repeats none."""
    first: dict[int, int] = {}
    if len(vectors) <= MOST_EXACT:
        for start, block in _blocks(vectors):
            for row, other in np.argwhere(block > _IDENTICAL).tolist():
                if other < start + row and other not in first:
                    first.setdefault(start + row, other)
        return first
    for row, others in enumerate(nearest_rows(vectors, _CANDIDATES)[0].tolist()):
        for other in sorted({first.get(each, each) for each in others}):
            if other < row and vectors[row] @ vectors[other] > _IDENTICAL:
                first[row] = other
                break
    return first


def _all_with_all(vectors: FloatArray, count: int) -> Iterator[tuple[int, Rows, FloatArray]]:
    for start, block in _blocks(vectors):
        # to select values takes a thirtieth of the time that argpartition takes
        least = np.partition(block, block.shape[1] - count, axis=1)[:, block.shape[1] - count]
        row, column = np.nonzero(block >= least[:, None])  # equal ones may make it more than ``count``
        values = block[row, column]
        order = np.lexsort((-values, row))
        best = order[np.searchsorted(row, np.arange(len(block)))[:, None] + np.arange(count)]
        yield start, column[best], values[best]


def _blocks(vectors: FloatArray) -> Iterator[tuple[int, FloatArray]]:
    """Similarities of some rows with all; with themselves: below all others."""
    step = max(_BLOCK_VALUES // len(vectors), 1)
    for start in range(0, len(vectors), step):
        block = vectors[start : start + step] @ vectors.T
        block[np.arange(len(block)), np.arange(start, start + len(block))] = -2
        yield start, block


def _by_faiss(vectors: FloatArray, count: int) -> Iterator[tuple[int, Rows, FloatArray]]:
    faiss = _import_faiss(len(vectors))
    drawn, dimensions = np.random.default_rng(0).permutation(len(vectors)), vectors.shape[1]
    centres = faiss.IndexFlatIP(dimensions)
    centres.add(vectors[np.sort(drawn[: max(len(vectors) // _CELL, 1)])])
    kind = faiss.ScalarQuantizer.QT_8bit
    index = faiss.IndexIVFScalarQuantizer(centres, dimensions, centres.ntotal, kind, faiss.METRIC_INNER_PRODUCT)
    index.train(vectors[drawn[:_SAMPLE]])
    index.add(vectors)
    index.nprobe = _PROBED
    for start in range(0, len(vectors), _ROWS):
        values, rows = index.search(vectors[start : start + _ROWS], count + 1)  # one of which is the row itself
        own = np.arange(start, start + len(rows))[:, None]
        rows = np.where(rows < 0, own, rows)
        order = np.argsort(np.where(rows == own, np.inf, -values), axis=1, kind="stable")[:, :count]
        rows, values = np.take_along_axis(rows, order, axis=1), np.take_along_axis(values, order, axis=1)
        yield start, rows, np.where(rows == own, 0, values)


def _import_faiss(count: int) -> Any:
    try:
        import faiss
    except ImportError as error:
        raise MissingExtraError(f"retrieval among {count} images, more than {MOST_EXACT},", "faiss") from error
    return faiss
