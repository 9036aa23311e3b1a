from __future__ import annotations

import numpy as np
import pytest

from logpolar.images import downscale, resize_matrix, resize_points, to_gray


class TestDownscale:
    def test_longer_side_gets_the_size(self, small):
        assert downscale(to_gray(small), 80).shape == (45, 80)

    @pytest.mark.parametrize("limit", [None, 160, 1000])
    def test_small_enough_is_the_same_array(self, small, limit):
        gray = to_gray(small)
        assert downscale(gray, limit) is gray

    def test_area_average(self):
        np.testing.assert_allclose(downscale(np.array([[0, 1, 0, 0]], np.float32), 2), [[0.5, 0]])

    def test_no_side_vanishes(self):
        assert downscale(np.zeros((1, 100), np.float32), 10).shape == (1, 10)


class TestPositions:
    def test_corners_of_the_image_stay_corners(self):
        corners = np.array([[-0.5, -0.5], [639.5, 479.5]])
        np.testing.assert_allclose(resize_points(corners, (0.5, 0.25)), [[-0.5, -0.5], [319.5, 119.5]])

    def test_matrix_agrees(self):
        xy = np.random.default_rng(0).uniform(0, 500, (9, 2))
        homogeneous = np.concatenate([xy, np.ones((9, 1))], axis=1) @ resize_matrix((640, 480), (213, 160)).T
        np.testing.assert_allclose(homogeneous[:, :2], resize_points(xy, (213 / 640, 160 / 480)))
        np.testing.assert_array_equal(homogeneous[:, 2], 1)
