from __future__ import annotations

import numpy as np
import pytest

from logpolar.matching import retrieval
from logpolar.matching.retrieval import (
    averaged,
    near_identical,
    nearest_rows,
    pool,
    pool_images,
    shipped_centres,
    similar_pairs,
)
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


def unit(shape, seed=0):
    vectors = np.random.default_rng(seed).normal(size=shape)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


class TestVectors:
    @pytest.mark.parametrize("values", [1, 100, 2**20])
    def test_nearest_in_blocks_are_those_of_a_sort(self, monkeypatch, values):
        monkeypatch.setattr(retrieval, "_BLOCK_VALUES", values)
        vectors = unit((23, 8))
        rows, similarities = nearest_rows(vectors, 5)
        everything = vectors.astype(np.float64) @ vectors.T
        np.fill_diagonal(everything, -9)
        assert rows.tolist() == np.argsort(-everything, axis=1)[:, :5].tolist()
        np.testing.assert_allclose(similarities, np.take_along_axis(everything, rows, 1), atol=1e-6)
        assert nearest_rows(vectors, 99)[0].shape == (23, 22)

    def test_average_is_the_formula_by_loop(self):
        vectors = unit((9, 4))
        for row, found in enumerate(averaged(vectors, 2)):
            others = sorted((float(vectors[row] @ each), i) for i, each in enumerate(vectors) if i != row)[-2:]
            expected = vectors[row] + sum(max(weight, 0) * vectors[i] for weight, i in others)
            np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-5)

    def test_of_an_empty_image_stays_zero(self):
        vectors = np.concatenate([unit((5, 4)), np.zeros((1, 4), np.float32)])
        assert not averaged(vectors)[5].any()
        assert near_identical(vectors) == {}

    def test_copies_of_copies_belong_to_the_first(self):
        vectors = np.stack([unit((1, 64))[0]] * 3 + [unit((1, 64), 1)[0]])
        assert near_identical(vectors) == {1: 0, 2: 0}

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
    @pytest.mark.parametrize("model", ["logpolar-96", "logpolar-96-int8"])
    def test_are_those_of_the_model(self, model):
        centres = shipped_centres({"model": model, "model_hash": load_model(model).digest})
        assert centres.shape == (128, 128) and centres.dtype == np.float32

    def test_of_other_models_there_are_none(self):
        assert shipped_centres({"model": "logpolar-96", "model_hash": load_model("logpolar-96-v1").digest}) is None
        assert shipped_centres({"written_by": "hloc"}) is None
