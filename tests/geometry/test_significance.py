from __future__ import annotations

import math

import numpy as np
import pytest

from logpolar.geometry.significance import measure_significance, sampson_error


def shifted(count: int, wrong: int = 0):
    """Points and the same 10 px further right, the last of them anywhere instead."""
    random = np.random.default_rng(0)
    first = random.uniform(0, 500, (count, 2))
    second = first + np.array([10, 0])
    second[count - wrong :] = random.uniform(0, 500, (wrong, 2))
    return first, second


def of_shift(first, second, threshold: float = 2.0):
    def error(a, b):
        return np.linalg.norm(b - a - (10, 0), axis=1)

    return measure_significance(error, first, second, error(first, second) <= threshold, threshold, 2, 1)


def test_by_hand():
    """A random pair fits with the area of a circle of 8 px over that of the square, or a little less at the border."""
    first, second = shifted(220, 200)
    inliers, chance = 20, math.pi * 64 / 500**2
    expected = -math.log10(218 * math.comb(220, inliers) * math.comb(inliers, 2) * chance ** (inliers - 2))
    assert of_shift(first, second, 8.0) == pytest.approx(expected, rel=0.2)


def test_more_inliers_are_more_significant_and_random_ones_are_not():
    values = [of_shift(*shifted(60, wrong)) for wrong in (10, 30, 50, 60)]
    assert values == sorted(values, reverse=True)
    assert values[2] > 5
    assert values[3] < 0


def test_matches_at_one_place_count_once():
    first, second = shifted(40, 30)
    repeated = [np.repeat(points, 5, axis=0) for points in (first, second)]
    assert of_shift(*repeated) == pytest.approx(of_shift(first, second), rel=0.1)


def test_a_model_that_fits_everything_is_not_significant():
    first, second = shifted(60, 60)
    assert measure_significance(lambda a, b: np.zeros(len(a)), first, second, np.ones(60, bool), 1.0, 4, 1) < 0


def test_sampson_error_is_the_distance_of_sideways_motion():
    """Epipolar lines are rows; an error of 2 rows is shared by both images."""
    matrix = np.array([[0, 0, 0], [0, 0, -1], [0, 1, 0.0]])
    error = sampson_error(matrix, np.array([[3.0, 5], [3, 5]]), np.array([[9.0, 5], [9, 7]]))
    np.testing.assert_allclose(error, [0, 2 / math.sqrt(2)])
