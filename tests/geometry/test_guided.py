from __future__ import annotations

import numpy as np

from logpolar.geometry.guided import epipolar_error, transfer_error
from logpolar.geometry.homography import warp_points
from logpolar.geometry.significance import sampson_error


def points(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 500, (count, 2))


def test_epipolar_errors_of_all_pairs_are_those_of_each():
    matrix, first, second = np.random.default_rng(2).normal(size=(3, 3)), points(7, 0), points(5, 1)
    found = epipolar_error(matrix, first, second)
    expected = [sampson_error(matrix, np.repeat(point[None], 5, axis=0), second) for point in first]
    np.testing.assert_allclose(found(slice(0, 7)), expected, rtol=1e-4, atol=1e-3)
    np.testing.assert_array_equal(found(slice(2, 4)), found(slice(0, 7))[2:4])


def test_transfer_errors_of_all_pairs_are_those_of_each():
    matrix, first, second = np.array([[0.4, -0.3, 200], [0.3, 0.45, 20], [1e-4, -2e-4, 1]]), points(7, 0), points(5, 1)
    predicted = warp_points(matrix, first)[0]
    expected = np.linalg.norm(predicted[:, None] - second, axis=2)
    np.testing.assert_allclose(transfer_error(matrix, first, second)(slice(0, 7)), expected, rtol=1e-4)
