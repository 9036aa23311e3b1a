"""Image retrieval: local descriptors pooled into one vector per image (VLAD).

Each descriptor is assigned to the nearest of a few centres, found by k-means on a sample of all descriptors. The vector
is the sum of residuals to each centre, normalised per centre (Arandjelovic and Zisserman, 2013), and the similarity of
two images is the dot product. Centres without descriptors contribute zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cv2
import numpy as np

from logpolar.types import FloatArray

_CENTRES = 64
_SAMPLE = 50_000
"""Descriptors used by k-means."""


def similar_pairs(
    names: Sequence[str], read_descriptors: Callable[[str], FloatArray], neighbours: int, seed: int = 0
) -> list[tuple[str, str]]:
    """Each image with its ``neighbours`` most similar ones; sorted, no pair twice."""
    if len(names) < 2:
        return []
    centres = find_centres(names, read_descriptors, seed)
    vectors = np.stack([pool(read_descriptors(name), centres) for name in names])
    found = set()
    for number, vector in enumerate(vectors):
        similarity = vectors @ vector
        similarity[number] = -np.inf
        for other in np.argsort(-similarity, kind="stable")[: min(neighbours, len(names) - 1)]:
            found.add((min(number, int(other)), max(number, int(other))))
    return [(names[i], names[j]) for i, j in sorted(found)]


def pool(descriptors: FloatArray, centres: FloatArray) -> FloatArray:
    """Unit vector (K * D,) of descriptors (N, D) and centres (K, D); zeros without descriptors."""
    if len(descriptors) == 0 or len(centres) == 0:
        return np.zeros(centres.size, np.float32)
    nearest = (descriptors @ centres.T - (centres**2).sum(axis=1) / 2).argmax(axis=1)
    sums = np.zeros_like(centres)
    np.add.at(sums, nearest, descriptors - centres[nearest])
    sums /= np.maximum(np.linalg.norm(sums, axis=1, keepdims=True), 1e-12)
    return np.asarray(sums.ravel() / max(float(np.linalg.norm(sums)), 1e-12), np.float32)


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
