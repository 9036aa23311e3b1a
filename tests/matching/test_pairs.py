from __future__ import annotations

from types import SimpleNamespace

import pytest

from logpolar.errors import LogpolarError
from logpolar.matching.pairs import (
    PairingOptions,
    choose_pairs,
    exhaustive_pairs,
    read_pairs,
    sequential_pairs,
    spatial_pairs,
)

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
        assert choose_pairs(names, PairingOptions(pairing), SimpleNamespace(settings={})) == []

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


def test_spatial_pairs_are_the_nearest():
    names = ["a", "b", "c", "d", "e"]
    positions = {"a": (0, 0), "b": (1, 0), "c": (5, 0), "d": (7, 0)}
    assert spatial_pairs(names[:4], positions, 1) == [("a", "b"), ("c", "d")]
    assert spatial_pairs(names, positions, 1) == [
        *(("a", "b"), ("a", "e"), ("b", "e"), ("c", "d"), ("c", "e"), ("d", "e"))
    ]
    assert spatial_pairs(names[:2], positions, 9) == [("a", "b")]
