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
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

import cv2
import numpy as np

from logpolar.matching.similar_vectors import averaged, check_search, near_identical, nearest_rows, unit
from logpolar.types import FloatArray

_CENTRES = 64
_SAMPLE = 50_000
"""Descriptors used by k-means."""

_FEW_IMAGES = 10_000
_PROJECTED = 2048
"""Length to which vectors of more images than that are projected, at random: the memory would not hold them."""


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
    check_search(len(names))
    if centres is None:
        centres = find_centres(names, read_descriptors, seed)
    vectors = pool_images(names, read_descriptors, centres)
    copies = near_identical(vectors) if deduplicate else {}
    kept = np.array([row for row in range(len(names)) if row not in copies], np.intp)
    vectors = averaged(vectors[kept] if copies else vectors)
    found = set(copies.items())
    for row, others in enumerate(nearest_rows(vectors, neighbours)[0]):
        found |= {(int(kept[row]), int(kept[other])) for other in others if other != row}
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
    projection = None
    if len(names) > _FEW_IMAGES and centres.size > _PROJECTED:
        random = np.random.default_rng(0)
        projection = random.standard_normal((centres.size, _PROJECTED), np.float32) / np.float32(_PROJECTED**0.5)
    found = np.empty((len(names), centres.size if projection is None else _PROJECTED), np.float32)
    for row, name in enumerate(names):
        vector = pool(read_descriptors(name), centres)
        found[row] = vector if projection is None else unit(vector @ projection)
    return found


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
