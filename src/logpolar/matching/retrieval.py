"""Image retrieval: local descriptors pooled into one vector per image (VLAD), compared all with all.

Each descriptor is assigned to the nearest of some centres. The vector is the sum of residuals to each centre,
normalised per centre (Arandjelovic and Zisserman, 2013), and the similarity of two images is the dot product. Centres
without descriptors contribute zeros. The centres of ``logpolar-96`` ship with it, see ``vocabularies``; for other
descriptors they are found by k-means on a sample of the images' own.

Before the final comparison each vector is averaged with those of its most similar images, weighted by similarity, so
that images of one place agree on what they have in common (Turcot and Lowe, 2009).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.types import FloatArray

_CENTRES = 64
_SAMPLE = 50_000
"""Descriptors used by k-means."""

_AVERAGED = 5
"""Most similar images that a vector is averaged with."""

_FEW_IMAGES = 10_000
_PROJECTED = 2048
"""Length to which vectors of more images than that are projected, at random: the memory would not hold them."""

_BLOCK_VALUES = 2**26
"""Similarities in memory at a time."""

_IDENTICAL = 0.9
"""Similarity of near-identical photos."""

Rows = NDArray[np.intp]


def similar_pairs(
    names: Sequence[str],
    read_descriptors: Callable[[str], FloatArray],
    neighbours: int,
    seed: int = 0,
    centres: FloatArray | None = None,
    deduplicate: bool = False,
) -> list[tuple[str, str]]:
    """Each image with its ``neighbours`` most similar ones; sorted, no pair twice.

    Without ``centres`` they are found here. ``deduplicate``: of near-identical photos only the first is paired with
    others, and the rest with it.
    """
    if len(names) < 2:
        return []
    if centres is None:
        centres = find_centres(names, read_descriptors, seed)
    vectors = pool_images(names, read_descriptors, centres)
    copies = near_identical(vectors) if deduplicate else {}
    kept = np.array([row for row in range(len(names)) if row not in copies], np.intp)
    vectors = averaged(vectors[kept])
    found = set(copies.items())
    for row, others in enumerate(nearest_rows(vectors, neighbours)[0]):
        found |= {(int(kept[row]), int(kept[other])) for other in others}
    return [(names[i], names[j]) for i, j in sorted({(min(pair), max(pair)) for pair in found})]


def shipped_centres(settings: Mapping[str, Any]) -> FloatArray | None:
    """Centres that ship with the model which a feature file's settings name; None for other models."""
    from safetensors.numpy import load

    for file in resources.files("logpolar.matching").joinpath("vocabularies").iterdir():
        if file.name.endswith(".safetensors") and settings.get("model_hash") in _model_hashes(
            data := file.read_bytes()
        ):
            return np.asarray(load(data)["centres"], np.float32)
    return None


def _model_hashes(data: bytes) -> list[str]:

    length = int.from_bytes(data[:8], "little")
    return str(json.loads(data[8 : 8 + length])["__metadata__"]["model_hashes"]).split()


def pool(descriptors: FloatArray, centres: FloatArray) -> FloatArray:
    """Unit vector (K * D,) of descriptors (N, D) and centres (K, D); zeros without descriptors."""
    if len(descriptors) == 0 or len(centres) == 0:
        return np.zeros(centres.size, np.float32)
    nearest = (descriptors @ centres.T - (centres**2).sum(axis=1) / 2).argmax(axis=1)
    sums = np.zeros_like(centres)
    np.add.at(sums, nearest, descriptors - centres[nearest])
    sums /= np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    return np.asarray(sums.ravel() / max(float(np.linalg.norm(sums)), 1e-12), np.float32)


def pool_images(names: Sequence[str], read_descriptors: Callable[[str], FloatArray], centres: FloatArray) -> FloatArray:
    """Vectors of images, one a row; of very many, projected to fewer values."""
    if len(names) <= _FEW_IMAGES or centres.size <= _PROJECTED:
        return np.stack([pool(read_descriptors(name), centres) for name in names])
    random = np.random.default_rng(0)
    projection = random.standard_normal((centres.size, _PROJECTED), np.float32) / np.float32(_PROJECTED**0.5)
    return np.stack([_unit(pool(read_descriptors(name), centres) @ projection) for name in names])


def _unit(vectors: FloatArray) -> FloatArray:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12), np.float32)


def averaged(vectors: FloatArray, count: int = _AVERAGED) -> FloatArray:
    """Each unit vector averaged with its ``count`` nearest ones, weighted by their similarity; of unit length."""
    rows, similarities = nearest_rows(vectors, count)
    found = vectors.copy()
    for rank in range(rows.shape[1]):
        found += np.maximum(similarities[:, rank, None], 0) * vectors[rows[:, rank]]
    return _unit(found)


def nearest_rows(vectors: FloatArray, count: int) -> tuple[Rows, FloatArray]:
    """The ``count`` nearest others (N, count) of each unit vector, and their similarities; exact, in blocks."""
    count = min(count, len(vectors) - 1)
    rows, similarities = (np.zeros((len(vectors), count), kind) for kind in (np.intp, np.float32))
    for start, block in _blocks(vectors):
        best = np.argpartition(-block, count, axis=1)[:, : count + 1] if count + 1 < block.shape[1] else None
        columns = np.broadcast_to(np.arange(block.shape[1]), block.shape) if best is None else np.sort(best, axis=1)
        values = np.take_along_axis(block, columns, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")[:, :count]
        rows[start : start + len(block)] = np.take_along_axis(columns, order, axis=1)
        similarities[start : start + len(block)] = np.take_along_axis(values, order, axis=1)
    return rows, similarities


def _blocks(vectors: FloatArray) -> Iterator[tuple[int, FloatArray]]:
    """Similarities of some rows with all; with themselves: below all others."""
    step = max(_BLOCK_VALUES // len(vectors), 1)
    for start in range(0, len(vectors), step):
        block = vectors[start : start + step] @ vectors.T
        block[np.arange(len(block)), np.arange(start, start + len(block))] = -2
        yield start, block


def near_identical(vectors: FloatArray) -> dict[int, int]:
    """Rows of photos that repeat an earlier one, with the row of that."""
    first: dict[int, int] = {}
    for start, block in _blocks(vectors):
        for row, other in np.argwhere(block > _IDENTICAL).tolist():
            if other < start + row and other not in first:
                first.setdefault(start + row, other)
    return first


def find_centres(names: Sequence[str], read_descriptors: Callable[[str], FloatArray], seed: int = 0) -> FloatArray:
    """Centres (K, D) of all images' descriptors, for ``pool``."""
    random, parts = np.random.default_rng(seed), []
    per_image = max(_SAMPLE // len(names), 1)
    for name in names:
        descriptors = read_descriptors(name)
        parts.append(descriptors[random.permutation(len(descriptors))[:per_image]])
    sample = np.ascontiguousarray(np.concatenate(parts), np.float32)
    count = min(_CENTRES, len(sample))
    if count == 0:
        return np.zeros((0, sample.shape[1]), np.float32)
    cv2.setRNGSeed(seed)
    criteria = (cv2.TERM_CRITERIA_MAX_ITER + cv2.TERM_CRITERIA_EPS, 10, 1e-4)
    _, _, centres = cv2.kmeans(sample, count, None, criteria, 1, cv2.KMEANS_PP_CENTERS)  # type: ignore[call-overload]
    return np.asarray(centres, np.float32)
