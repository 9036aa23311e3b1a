from __future__ import annotations

import math

import numpy as np
import pytest

from logpolar.evaluation.metrics import fpr95, ranks


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

    @pytest.mark.parametrize(("positive", "negative"), [([], [1.0]), ([1.0], []), ([], [])])
    def test_nothing_is_not_a_number(self, positive, negative):
        assert math.isnan(fpr95(np.array(positive), np.array(negative)))


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
