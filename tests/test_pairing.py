from __future__ import annotations

import numpy as np
import pytest

from logpolar.errors import LogpolarError
from logpolar.likeness import pool, similar_pairs
from logpolar.pairing import PairingOptions, choose_pairs, exhaustive_pairs, read_pairs, sequential_pairs

NAMES = [f"{number}.jpg" for number in range(5)]


class TestChoice:
    def test_exhaustive(self):
        pairs = exhaustive_pairs(NAMES)
        assert len(pairs) == len({frozenset(pair) for pair in pairs}) == 10
        assert choose_pairs(NAMES, PairingOptions()) == pairs

    @pytest.mark.parametrize(("overlap", "count"), [(1, 4), (2, 7), (99, 10)])
    def test_sequential(self, overlap, count):
        pairs = sequential_pairs(NAMES, overlap)
        assert len(pairs) == count
        assert all(1 <= NAMES.index(b) - NAMES.index(a) <= overlap for a, b in pairs)
        assert choose_pairs(NAMES, PairingOptions("sequential", overlap)) == pairs

    @pytest.mark.parametrize("names", [[], ["a.jpg"]])
    @pytest.mark.parametrize("pairing", ["exhaustive", "sequential", "retrieval"])
    def test_too_few_images_are_no_pairs(self, names, pairing):
        assert choose_pairs(names, PairingOptions(pairing), lambda name: np.zeros((3, 128), np.float32)) == []

    @pytest.mark.parametrize("options", [{"pairing": "some"}, {"overlap": 0}, {"neighbours": 0}])
    def test_impossible_options(self, options):
        with pytest.raises(ValueError, match=next(iter(options))):
            PairingOptions(**options)


class TestFile:
    def write(self, tmp_path, text):
        (tmp_path / "pairs.txt").write_text(text)
        return tmp_path / "pairs.txt"

    def test_comments_doubles_and_order(self, tmp_path):
        path = self.write(tmp_path, "# pairs\n\n1.jpg 0.jpg\n 2.jpg\t3.jpg \n0.jpg 1.jpg\n")
        assert read_pairs(path, NAMES) == [("1.jpg", "0.jpg"), ("2.jpg", "3.jpg")]

    def test_names_with_spaces(self, tmp_path):
        path = self.write(tmp_path, "my photo 1.jpg my photo 2.jpg\n")
        assert read_pairs(path, ["my photo 1.jpg", "my photo 2.jpg"]) == [("my photo 1.jpg", "my photo 2.jpg")]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("0.jpg 1.jpg\n0.jpg 9.jpg\n", "line 2: no image '9.jpg'"),
            ("0.jpg\n", "line 1: '0.jpg' is not a pair"),
            ("0.jpg 0.jpg\n", "with itself"),
            ("# nothing\n", "no pairs"),
        ],
    )
    def test_mistakes_are_named(self, tmp_path, text, words):
        with pytest.raises(LogpolarError, match=words):
            read_pairs(self.write(tmp_path, text), NAMES)

    def test_ambiguous_names(self, tmp_path):
        with pytest.raises(LogpolarError, match="more than one"):
            read_pairs(self.write(tmp_path, "a b c\n"), ["a", "b c", "a b", "c"])

    def test_missing_and_binary(self, tmp_path):
        with pytest.raises(LogpolarError, match="no such file"):
            read_pairs(tmp_path / "none.txt", NAMES)
        (tmp_path / "pairs.txt").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(LogpolarError, match="not a text file"):
            read_pairs(tmp_path / "pairs.txt", NAMES)


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
