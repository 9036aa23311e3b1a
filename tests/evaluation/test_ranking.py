from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from logpolar.evaluation import ranking
from logpolar.evaluation.ranking import cumulative, pooled_ranks, rank1


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


@pytest.fixture(params=[16, 1000, ranking._BLOCK_BYTES], ids=["row by row", "few rows", "at once"])
def blocks(request, monkeypatch):
    monkeypatch.setattr(ranking, "_BLOCK_BYTES", request.param)


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


class TestShares:
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
        patch.setattr(ranking, "_BLOCK_BYTES", 2**20)
        tracemalloc.start()
        ranks = pooled_ranks(vectors, vectors)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert (ranks == 0).all()
    assert peak < 6 * 2**20
