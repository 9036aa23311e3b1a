from __future__ import annotations

import numpy as np

from logpolar.matching.retrieval import pool, similar_pairs


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
