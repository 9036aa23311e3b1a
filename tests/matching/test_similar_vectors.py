from __future__ import annotations

import numpy as np
import pytest

from logpolar.matching import similar_vectors
from logpolar.matching.similar_vectors import averaged, near_identical, nearest_rows


def unit(shape, seed=0):
    vectors = np.random.default_rng(seed).normal(size=shape)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


class TestVectors:
    @pytest.mark.parametrize("values", [1, 100, 2**20])
    def test_nearest_in_blocks_are_those_of_a_sort(self, monkeypatch, values):
        monkeypatch.setattr(similar_vectors, "_BLOCK_VALUES", values)
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

    def test_equal_similarities_are_taken_in_order(self, monkeypatch):
        monkeypatch.setattr(similar_vectors, "_BLOCK_VALUES", 20)
        rows, similarities = nearest_rows(np.zeros((7, 4), np.float32), 3)
        assert rows.tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 3]] + [[0, 1, 2]] * 4
        assert not similarities.any()

    def test_of_one_there_are_none(self):
        assert nearest_rows(unit((1, 4)), 5)[0].shape == (1, 0)


class TestFaiss:
    """The bound lowered, the truth by comparing all with all."""

    @pytest.fixture(autouse=True)
    def beyond_the_bound(self, monkeypatch):
        pytest.importorskip("faiss", reason="needs the extra 'faiss'")
        monkeypatch.setattr(similar_vectors, "MOST_EXACT", 100)

    @staticmethod
    def places(count: int, images: int, noise: float) -> np.ndarray:
        """``images`` vectors of each of ``count`` places, one after the other."""
        near = np.repeat(unit((count, 64)), images, axis=0) + noise * unit((count * images, 64), 1)
        return (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)

    def test_finds_what_is_near_and_its_similarity(self):
        vectors = self.places(60, 30, 0.7)
        rows, similarities = nearest_rows(vectors, 5)
        everything = vectors.astype(np.float64) @ vectors.T
        np.fill_diagonal(everything, -9)
        expected = np.argsort(-everything, axis=1)[:, :5]
        found = [len(set(a) & set(b)) / 5 for a, b in zip(rows.tolist(), expected.tolist(), strict=True)]
        assert np.mean(found) > 0.95
        np.testing.assert_allclose(similarities, np.take_along_axis(everything, rows, 1), atol=0.02)
        assert (np.diff(similarities, axis=1) <= 0).all()

    def test_is_the_same_in_each_run(self):
        vectors = self.places(300, 6, 0.7)
        assert np.array_equal(nearest_rows(vectors, 5)[0], nearest_rows(vectors, 5)[0])

    def test_places_that_stay_empty_hold_the_row_itself(self, monkeypatch):
        monkeypatch.setattr(similar_vectors, "_PROBED", 1)
        vectors = self.places(2, 300, 0.1)
        rows, similarities = nearest_rows(vectors, 599)
        own = np.arange(600)[:, None]
        assert (rows == own).any() and not similarities[rows == own].any()
        others = [[each for each in row if each != number] for number, row in enumerate(rows.tolist())]
        assert all(len(row) == len(set(row)) for row in others)
        np.testing.assert_allclose(np.linalg.norm(averaged(vectors), axis=1), 1, atol=1e-5)

    def test_near_identical_photos(self):
        vectors = self.places(100, 5, 0.1)
        assert near_identical(vectors) == {row: row // 5 * 5 for row in range(500) if row % 5}

    def test_frames_of_a_pan_are_not_all_copies_of_the_first(self):
        """Each resembles the one before it, but not those before that."""
        angles = np.arange(300) * 0.4  # cosine of 0.4: 0.92; of 0.8: 0.7
        vectors = np.zeros((300, 64), np.float32)
        vectors[np.arange(300), 2 * (np.arange(300) // 10)] = np.cos(angles)
        vectors[np.arange(300), 2 * (np.arange(300) // 10) + 1] = np.sin(angles)
        everything = vectors @ vectors.T
        found = near_identical(vectors)
        assert found and all(everything[row, first] > 0.9 and first not in found for row, first in found.items())
