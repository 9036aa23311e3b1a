from __future__ import annotations

import math

import numpy as np
import pytest

from function_describer import score_pairs
from logpolar.datasets.correspondences import Correspondences, ImagePair
from logpolar.evaluation.pairs import _count_below
from logpolar.keypoints import Keypoints

VIEW = np.zeros((8, 8), np.uint8)


def make_pair(matched, others=(), ratio=None, zoom: float = 1.0) -> ImagePair:
    """A pair whose keypoints carry their number as response: 0 ... for those that match, 100 ... for the others."""
    count = len(matched)
    first = Keypoints.from_points(np.zeros((count, 2)), response=np.arange(count))
    second = Keypoints.from_points(matched, response=np.arange(count))
    pool = Keypoints.from_points(
        [*matched, *others], response=np.concatenate([np.arange(count), 100 + np.arange(len(others))])
    )
    ratio = np.zeros(count, np.float32) if ratio is None else np.array(ratio, np.float32)
    indices = np.stack([np.arange(count)] * 2, axis=1).astype(np.int32)
    warp = np.tile(zoom * np.eye(2, dtype=np.float32), (count, 1, 1))
    found = Correspondences(first, second, indices, warp, ratio, np.zeros(count, np.float32))
    return ImagePair(VIEW, VIEW + 1, first, pool, found)


def describer(first: dict[int, list[float]], second: dict[int, list[float]]):
    """Descriptors by view and number of the keypoint."""

    def describe(view, keypoints):
        table = second if view.any() else first
        vectors = np.array([table[int(number)] for number in keypoints.response], np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return describe


def axis(number: int) -> list[float]:
    return np.eye(40)[number].tolist()


GRID = [[20.0 * k, 10.0] for k in range(12)]


class TestWholeScores:
    def test_perfect_descriptors(self):
        table = {k: axis(k) for k in range(12)} | {100 + k: axis(20 + k) for k in range(3)}
        pair = make_pair(GRID, [[0.0, 100.0], [50.0, 100.0], [90.0, 100.0]])
        score = score_pairs([pair, pair], describer(table, table))
        assert (score.pairs, score.correspondences) == (2, 24)
        assert score.rank1 == 1
        assert score.fpr95 == 0

    def test_shuffled_descriptors(self):
        """Each finds its neighbour instead: one wrong pair in eleven is at distance 0, right ones at sqrt 2."""
        first = {k: axis(k) for k in range(12)}
        second = {k: axis((k + 1) % 12) for k in range(12)}
        score = score_pairs([make_pair(GRID)], describer(first, second))
        assert score.rank1 == 0
        assert score.fpr95 == pytest.approx(1 / 11)

    def test_random_descriptors_are_near_chance(self):
        random = np.random.default_rng(0)

        def describe(view, keypoints):
            vectors = random.normal(size=(len(keypoints), 3))
            return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

        score = score_pairs([make_pair(GRID) for _ in range(100)], describe)
        assert score.correspondences == 1200
        assert score.rank1 == pytest.approx(1 / 12, abs=0.03)

    def test_nothing(self):
        for pairs in ([], [make_pair([])]):
            score = score_pairs(pairs, describer({}, {}))
            assert (score.pairs, score.correspondences, score.scales_differ_2x, score.zoom_2x) == (0, 0, 0, 0)
            shares = (score.fpr95, score.rank1, score.rank1_scales_differ_2x, score.rank1_zoom_2x)
            assert all(math.isnan(share) for share in shares)

    def test_pairs_without_correspondences_do_not_count(self):
        table = {k: axis(k) for k in range(12)}
        score = score_pairs([make_pair([]), make_pair(GRID)], describer(table, table))
        assert (score.pairs, score.correspondences) == (1, 12)


class TestByHand:
    """Two right pairs; one keypoint far from both that looks just like the first; one near, which is no wrong answer.

    Angles on a circle of the first view: 0 and 90 degrees; of the second: 30 and 80, others 10 and 0.
    """

    pair = make_pair([[10.0, 10.0], [50.0, 50.0]], [[30.0, 30.0], [14.0, 13.0]])

    @staticmethod
    def on_circle(degrees: float) -> list[float]:
        return [math.cos(math.radians(degrees)), math.sin(math.radians(degrees))]

    def score(self, pair):
        first = {0: self.on_circle(0), 1: self.on_circle(90)}
        second = {0: self.on_circle(30), 1: self.on_circle(80), 100: self.on_circle(10), 101: self.on_circle(0)}
        return score_pairs([pair], describer(first, second))

    def test_rank(self):
        """First: the far keypoint (10 degrees off) beats the right one (30). Second: the right one wins (10)."""
        assert self.score(self.pair).rank1 == 0.5

    def test_fpr95(self):
        """Right pairs at 30 and 10 degrees; wrong pairs at 80, 10, 60 and 80: one of four below 30."""
        assert self.score(self.pair).fpr95 == 0.25

    def test_near_keypoints_count_beyond_seven_pixels(self):
        """Moved away, the keypoint that looks the same is a wrong answer: angles 0 and 90, two of six below 30."""
        moved = make_pair([[10.0, 10.0], [50.0, 50.0]], [[30.0, 30.0], [10.0, 17.5]])
        assert self.score(moved).fpr95 == pytest.approx(2 / 6)

    def test_other_view_is_described_as_such(self):
        views = []

        def describe(view, keypoints):
            views.append((int(view[0, 0]), len(keypoints)))
            return np.ones((len(keypoints), 1), np.float32)

        score_pairs([self.pair], describe)
        assert sorted(views) == [(0, 2), (1, 3)]


class TestGroups:
    @staticmethod
    def table(wrong):
        """Perfect descriptors, but for some keypoints that look like nothing."""
        first = {k: axis(20) if k in wrong else axis(k) for k in range(12)}
        second = {k: axis(k) for k in range(12)} | {100: axis(20)}
        return describer(first, second)

    def test_scales_that_differ(self):
        """Numbers 0, 3 and 5 disagree by more than 2x, either way; 3 is missed, as is 7, which agrees."""
        ratio = np.zeros(12)
        ratio[[0, 3, 5, 6]] = math.log(2.1), -math.log(3), math.log(4), math.log(1.9)
        pair = make_pair(GRID, [[0.0, 100.0]], ratio)
        score = score_pairs([pair], self.table({3, 7}))
        assert score.rank1 == pytest.approx(10 / 12)
        assert score.scales_differ_2x == 3
        assert score.rank1_scales_differ_2x == pytest.approx(2 / 3)
        assert score.zoom_2x == 0
        assert math.isnan(score.rank1_zoom_2x)

    def test_views_that_are_smaller(self):
        """Of the pair that is 2.5x smaller those that agree in scale count, all but number 1 and 2."""
        ratio = np.zeros(12)
        ratio[[1, 2, 4]] = math.log(1.3), -math.log(1.4), math.log(1.2)
        others = [[0.0, 100.0]]
        pairs = [
            make_pair(GRID, others, ratio, 0.4),
            make_pair(GRID, others, zoom=0.6),
            make_pair(GRID, others, zoom=2),
        ]
        score = score_pairs(pairs, self.table({2, 4}))
        assert score.zoom_2x == 10
        assert score.rank1_zoom_2x == pytest.approx(9 / 10)
        assert score.scales_differ_2x == 0
        assert math.isnan(score.rank1_scales_differ_2x)

    def test_as_dictionary(self):
        values = score_pairs([make_pair(GRID, [[0.0, 100.0]])], self.table({4})).to_dict()
        assert values["rank1"] == 0.91667
        assert values["pairs"] == 1
        assert values["correspondences"] == 12


class TestCountsBelowThresholds:
    """Of many thresholds at once, against one comparison for each."""

    @pytest.mark.parametrize("seed", range(20))
    def test_is_one_comparison_for_each(self, seed):
        random = np.random.default_rng(seed)
        distances = (random.random(random.integers(0, 3000)) * random.choice([0.5, 2])).astype(np.float32)
        if seed % 2:
            distances = distances.round(2)  # ties with thresholds
        drawn = random.choice(distances, 5) if len(distances) else []
        thresholds = np.sort(np.concatenate([drawn, 2 * random.random(9), [0.0]]))
        found = _count_below(distances, thresholds)
        assert found.tolist() == [int((distances < each).sum()) for each in thresholds]

    def test_nothing_is_below_zero(self):
        assert _count_below(np.zeros((2, 3), np.float32), np.array([-1.0, 0.0])).tolist() == [0, 0]

    def test_no_thresholds(self):
        assert _count_below(np.ones(3, np.float32), np.zeros(0)).tolist() == []
