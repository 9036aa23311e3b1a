from __future__ import annotations

import sys

import numpy as np
import pytest

from logpolar.errors import MissingExtraError
from logpolar.matching import retrieval, similar_vectors
from logpolar.matching.retrieval import pool, pool_images, shipped_centres, similar_pairs
from logpolar.models import load_model


def scene_descriptors(scene: int, image: int) -> np.ndarray:
    """Images of a scene share most of their points."""
    points = np.random.default_rng(scene).normal(size=(60, 16))
    random = np.random.default_rng(100 * scene + image + 7)
    rows = points[random.permutation(60)[:45]] + 0.2 * random.normal(size=(45, 16))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


IMAGES = {f"{scene}-{image}": scene_descriptors(scene, image) for scene in range(4) for image in range(3)}


class TestRetrieval:
    def test_finds_images_of_the_same_scene(self):
        pairs = similar_pairs(list(IMAGES), IMAGES.__getitem__, 2)
        assert len(pairs) == 4 * 3
        assert all(first[0] == second[0] for first, second in pairs)

    def test_no_more_neighbours_than_images(self):
        assert len(similar_pairs(list(IMAGES), IMAGES.__getitem__, 99)) == 12 * 11 // 2

    def test_empty_images_do_no_harm(self):
        images = {**IMAGES, "empty": np.zeros((0, 16), np.float32)}
        pairs = similar_pairs(list(images), images.__getitem__, 2)
        assert all(first[0] == second[0] for first, second in pairs if second != "empty")

    def test_pool_is_the_formula_by_loop(self):
        descriptors, centres = IMAGES["0-0"], IMAGES["1-0"][:5]
        sums = np.zeros((5, 16))
        for row in descriptors:
            nearest = min(range(5), key=lambda number: np.linalg.norm(row - centres[number]))
            sums[nearest] += row - centres[nearest]
        lengths = np.linalg.norm(sums, axis=1)
        parts = [part / length if length else part for part, length in zip(sums, lengths, strict=True)]
        expected = np.concatenate(parts) / np.sqrt(np.count_nonzero(lengths))
        np.testing.assert_allclose(pool(descriptors, centres), expected, atol=1e-5)

    def test_near_identical_photos_are_paired_with_the_first_alone(self):
        images = {**IMAGES, "copy of 0-0": IMAGES["0-0"], "second copy of 0-0": IMAGES["0-0"][::-1]}
        pairs = similar_pairs(list(images), images.__getitem__, 2, deduplicate=True)
        copies = [pair for pair in pairs if "copy" in pair[1]]
        assert copies == [("0-0", "copy of 0-0"), ("0-0", "second copy of 0-0")]
        assert set(pairs) - set(copies) == set(similar_pairs(list(IMAGES), IMAGES.__getitem__, 2))

    def test_of_more_images_than_are_compared_all_with_all_without_faiss(self, monkeypatch):
        """Found before the first image is read, which would take hours."""
        monkeypatch.setattr(similar_vectors, "MOST_EXACT", 11)
        monkeypatch.setitem(sys.modules, "faiss", None)
        with pytest.raises(MissingExtraError, match=r"12 images, more than 11, .*pip install 'logpolar\[faiss\]'"):
            similar_pairs(list(IMAGES), {}.__getitem__, 2)


class TestPooledImages:
    def test_of_very_many_images_are_projected(self, monkeypatch):
        monkeypatch.setattr(retrieval, "_FEW_IMAGES", 3)
        monkeypatch.setattr(retrieval, "_PROJECTED", 512)
        centres = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)
        vectors = pool_images(list(IMAGES), IMAGES.__getitem__, centres)
        assert vectors.shape == (12, 512)
        exact = np.stack([pool(each, centres) for each in IMAGES.values()])
        assert np.abs(vectors @ vectors.T - exact @ exact.T).max() < 0.25
        assert similar_pairs(list(IMAGES), IMAGES.__getitem__, 2, centres=centres)


class TestShippedCentres:
    @pytest.mark.parametrize(
        "model", ["logpolar-96", "logpolar-96-int8", "logpolar-96-upright", "logpolar-96-upright-int8"]
    )
    def test_are_those_of_the_model(self, model):
        centres = shipped_centres({"model": model, "model_hash": load_model(model).digest})
        assert centres.shape == (128, 128) and centres.dtype == np.float32

    def test_of_other_models_there_are_none(self):
        assert shipped_centres({"model": "logpolar-96", "model_hash": load_model("logpolar-96-v1").digest}) is None
        assert shipped_centres({"written_by": "hloc"}) is None
