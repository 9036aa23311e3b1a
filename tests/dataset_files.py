"""Small correspondence files for tests, made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from logpolar.datasets.correspondences import Correspondences
from logpolar.datasets.writing import CorrespondenceWriter, ImageRecord, PairRecord
from logpolar.images import encode_gray
from logpolar.keypoints import Keypoints

SETTINGS = {"source": "tests", "rules": {"max_count": 40}}
SUMMARY = {"left_out": {"c.jpg": "c.jpg: not an image"}, "versions": {"logpolar": "0"}}
NAMES = ["a.png", "deep/er/b.png", "Ærøskøbing 日本.png"]


def make_keypoints(count: int, seed: int = 0) -> Keypoints:
    random = np.random.default_rng(seed)
    return Keypoints.from_points(
        random.uniform(1, 1000, (count, 2)),
        np.exp(random.uniform(0, 4, count)),
        random.uniform(1, 359, count),
        random.uniform(0.01, 0.2, count),
    )


def make_image(name: str, count: int = 20, split: str = "train", seed: int = 0, **more) -> ImageRecord:
    pixels = np.random.default_rng(seed).integers(0, 256, (30 + seed, 40), np.uint8)
    size = pixels.shape[1], pixels.shape[0]
    return ImageRecord(name, split, size, make_keypoints(count, seed), encode_gray(pixels, 100), **more)


def make_pair(first: ImageRecord, second: ImageRecord, count: int = 7, seed: int = 0, **rejects: int) -> PairRecord:
    random = np.random.default_rng(seed)
    indices = np.stack([random.permutation(len(each.keypoints))[:count] for each in (first, second)], axis=1)
    found = Correspondences(
        first.keypoints[indices[:, 0]],
        second.keypoints[indices[:, 1]],
        indices.astype(np.int32),
        random.normal(0, 2, (count, 2, 2)).astype(np.float32),
        random.uniform(-1.5, 1.5, count).astype(np.float32),
        random.uniform(-25, 25, count).astype(np.float32),
    )
    return PairRecord(first.name, second.name, found, rejects)


def write(path: Path, images, pairs=(), settings=SETTINGS) -> None:
    with CorrespondenceWriter(path, settings) as writer:
        writer.add(images, pairs)


def assert_same_keypoints(found: Keypoints, given: Keypoints) -> None:
    """But for the rounding."""
    np.testing.assert_allclose(found.xy, given.xy, rtol=0, atol=0.0051)
    np.testing.assert_allclose(found.size, given.size, rtol=0, atol=0.0051)
    np.testing.assert_allclose(found.angle, given.angle, rtol=0, atol=0.0051)
    np.testing.assert_allclose(found.response, given.response, rtol=0, atol=5.1e-5)


def assert_same_correspondences(found: Correspondences, given: Correspondences) -> None:
    np.testing.assert_array_equal(found.indices, given.indices)
    assert found.indices.dtype == np.int32
    assert_same_keypoints(found.first, given.first)
    assert_same_keypoints(found.second, given.second)
    np.testing.assert_allclose(found.warp, given.warp, rtol=0, atol=5.1e-4)
    np.testing.assert_allclose(found.log_scale_ratio, given.log_scale_ratio, rtol=0, atol=5.1e-4)
    np.testing.assert_allclose(found.angle_residual, given.angle_residual, rtol=0, atol=0.0051)
