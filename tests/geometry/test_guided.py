from __future__ import annotations

import numpy as np

from logpolar.geometry.guided import near_epipolar_lines, near_predictions
from logpolar.geometry.homography import warp_points
from logpolar.geometry.significance import sampson_error


def points(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0, 500, (count, 2))


def check(near, errors: np.ndarray, limit: float) -> None:
    """``near`` allows what is within the limit, whatever the block; rounding may decide closer than a thousandth."""
    found, clear = near(slice(0, len(errors))), np.abs(errors / limit - 1) > 1e-3
    np.testing.assert_array_equal(found[clear], errors[clear] <= limit)
    assert 0 < found.sum() < found.size
    np.testing.assert_array_equal(near(slice(2, 4)), found[2:4])


def test_points_near_epipolar_lines_have_small_sampson_errors():
    matrix, first, second = np.random.default_rng(2).normal(size=(3, 3)), points(40, 0), points(50, 1)
    errors = np.stack([sampson_error(matrix, np.repeat(point[None], 50, axis=0), second) for point in first])
    check(near_epipolar_lines(matrix, first, second, 5.0), errors, 10.0)


def test_points_near_predictions_have_small_transfer_errors():
    matrix, first, second = (
        np.array([[0.4, -0.3, 200], [0.3, 0.45, 20], [1e-4, -2e-4, 1]]),
        points(40, 0),
        points(50, 1),
    )
    errors = np.linalg.norm(warp_points(matrix, first)[0][:, None] - second, axis=2)
    check(near_predictions(matrix, first, second, 20.0), errors, 40.0)
