from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from logpolar.evaluation import metrics
from logpolar.evaluation.metrics import cumulative, pooled_ranks, rank1, ranks, threshold95


def fpr95(positive, negative) -> float:
    return float(np.mean(negative < threshold95(positive)))


def fpr95_by_counting(positive, negative) -> float:
    """Accept pairs in the order of their distance until 95 % of the right ones are in."""
    for accepted, threshold in enumerate(sorted(positive), start=1):
        if 100 * accepted >= 95 * len(positive):
            wrong = sum(1 for distance in negative if distance < threshold)
            return wrong / len(negative)
    raise AssertionError


class TestFpr95:
    @pytest.mark.parametrize("count", [1, 2, 19, 20, 21, 40, 100, 101, 333])
    @pytest.mark.parametrize("decimals", [1, 9])
    def test_by_counting(self, count, decimals):
        """With one decimal there are many ties, also between right and wrong pairs."""
        random = np.random.default_rng(count)
        positive = random.normal(1, 0.3, count).round(decimals)
        negative = random.normal(1.5, 0.3, 2 * count + 1).round(decimals)
        assert fpr95(positive, negative) == pytest.approx(fpr95_by_counting(positive, negative), abs=1e-12)

    def test_a_twentieth_of_the_right_pairs_may_be_lost(self):
        positive = np.array([0.1] * 19 + [5.0])
        assert fpr95(positive, np.array([0.05, 0.2, 0.3, 4.0])) == 0.25

    def test_two_in_twenty_may_not(self):
        positive = np.array([0.1] * 18 + [5.0, 6.0])
        assert fpr95(positive, np.array([0.05, 0.2, 5.5, 7.0])) == 0.5

    def test_wrong_pairs_at_the_threshold_do_not_count(self):
        assert fpr95(np.array([1.0, 1.0]), np.array([1.0, 1.0, 0.5, 2.0])) == 0.25

    @pytest.mark.parametrize(("negative", "expected"), [([2.0, 3.0], 0), ([0.1, 0.2], 1)])
    def test_all_or_nothing(self, negative, expected):
        assert fpr95(np.array([1.0, 0.9, 1.1]), np.array(negative)) == expected

    def test_order_does_not_matter(self):
        random = np.random.default_rng(0)
        positive, negative = random.random(50), random.random(70) + 0.5
        assert fpr95(positive, negative) == fpr95(np.sort(positive)[::-1], np.sort(negative))


class TestRanks:
    @pytest.mark.parametrize("decimals", [1, 9])
    def test_by_counting(self, decimals):
        random = np.random.default_rng(0)
        distances = random.random((30, 17)).round(decimals)
        truth = random.integers(0, 17, 30)
        expected = [sum(1 for d in row if d < row[own]) for row, own in zip(distances, truth, strict=True)]
        np.testing.assert_array_equal(ranks(distances, truth), expected)

    def test_small_example(self):
        distances = np.array([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3], [0.5, 0.5, 0.1]])
        np.testing.assert_array_equal(ranks(distances, np.array([0, 1, 2, 0])), [0, 1, 2, 1])

    def test_ties_are_matches(self):
        np.testing.assert_array_equal(ranks(np.ones((2, 4)), np.array([3, 0])), [0, 0])

    def test_nothing(self):
        assert ranks(np.zeros((0, 5)), np.zeros(0, int)).shape == (0,)


def slow_ranks(first: np.ndarray, second: np.ndarray) -> list[int]:
    """One distance after the other."""
    result = []
    for k, anchor in enumerate(first.astype(np.float64)):
        squares = [float(((anchor - other) ** 2).sum()) for other in second.astype(np.float64)]
        result.append(sum(square < squares[k] for square in squares))
    return result


def unit_vectors(random: np.random.Generator, count: int, size: int) -> np.ndarray:
    vectors = random.normal(size=(count, size))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(params=[16, 1000, metrics._BLOCK_BYTES], ids=["row by row", "few rows", "at once"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(metrics, "_BLOCK_BYTES", request.param)


@pytest.mark.usefixtures("blocks")
class TestAgainstLoop:
    @pytest.mark.parametrize("length", [1.0, 512.0], ids=["unit vectors", "as long as SIFT's"])
    def test_random(self, length):
        random = np.random.default_rng(1)
        first, second = (length * unit_vectors(random, 83, 16) for _ in range(2))
        assert pooled_ranks(first, second).tolist() == slow_ranks(first, second)

    def test_vectors_of_different_length(self):
        random = np.random.default_rng(2)
        first, second = (random.uniform(0.1, 3, (61, 1)) * unit_vectors(random, 61, 5) for _ in range(2))
        first, second = first.astype(np.float32), second.astype(np.float32)
        assert pooled_ranks(first, second).tolist() == slow_ranks(first, second)

    def test_ties(self):
        """Small whole numbers: many distances are equal, and exactly so."""
        random = np.random.default_rng(3)
        first, second = (random.integers(-1, 2, (90, 4)).astype(np.float32) for _ in range(2))
        slow = slow_ranks(first, second)
        assert pooled_ranks(first, second).tolist() == slow
        assert len(np.unique(second, axis=0)) < 90
        assert 0 < sum(rank == 0 for rank in slow) < 90

    def test_equal_positives_tie_whatever_their_column(self):
        """Vectors that are no round numbers, each four times."""
        random = np.random.default_rng(4)
        second = np.tile(unit_vectors(random, 25, 128), (4, 1))
        first = second + np.float32(0.01) * unit_vectors(random, 100, 128)
        assert pooled_ranks(first, second).tolist() == [0] * 100
        wrong = np.roll(second, 1, axis=0)
        assert all(rank > 0 and rank % 4 == 0 for rank in pooled_ranks(first, wrong).tolist())


class TestOddCases:
    def test_all_the_same(self):
        assert pooled_ranks(np.ones((7, 3)), np.ones((7, 3))).tolist() == [0] * 7

    def test_one(self):
        assert pooled_ranks(np.ones((1, 3)), np.zeros((1, 3))).tolist() == [0]

    def test_none(self):
        ranks = pooled_ranks(np.zeros((0, 128)), np.zeros((0, 128)))
        assert ranks.shape == (0,)
        assert ranks.dtype == np.int64
        assert math.isnan(rank1(ranks))
        assert np.isnan(cumulative(ranks, [1, 10])).all()

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    @pytest.mark.parametrize("broken", [0, 1], ids=["anchor", "positive"])
    def test_not_finite(self, broken, value):
        """No comparison with NaN is true: such descriptors would be the best of all."""
        sets = [np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)]
        sets[broken][1, 1] = value
        with pytest.raises(ValueError, match="not finite"):
            pooled_ranks(*sets)

    @pytest.mark.parametrize("shape", [(3, 4), (4, 3), (4,)])
    def test_shapes(self, shape):
        with pytest.raises(ValueError, match=r"\(N, D\)"):
            pooled_ranks(np.zeros((4, 4)), np.zeros(shape))


class TestFractions:
    ranks = np.array([0, 3, 0, 1, 9])

    def test_rank1(self):
        assert rank1(self.ranks) == 0.4

    def test_cumulative(self):
        assert cumulative(self.ranks, [1, 2, 3, 4, 9, 10, 1000]).tolist() == [0.4, 0.6, 0.6, 0.8, 0.8, 1, 1]

    def test_first_place_is_rank1(self):
        assert cumulative(self.ranks, [1])[0] == rank1(self.ranks)


def test_memory_is_bounded():
    """What is allocated at a time, where the whole matrix would be 36 MB, stays near the block."""
    vectors = unit_vectors(np.random.default_rng(5), 3000, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "_BLOCK_BYTES", 2**20)
        tracemalloc.start()
        ranks = pooled_ranks(vectors, vectors)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (ranks == 0).all()
    assert peak < 6 * 2**20
