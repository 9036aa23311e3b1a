from __future__ import annotations

import numpy as np
import pytest

from logpolar.images import downscale, fitted_size, resize, resize_matrix, resize_points, to_gray


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


class TestFittedSize:
    def test_small_images_grow_and_large_ones_shrink(self):
        assert fitted_size((400, 300), max_size=1600, min_size=1000) == (1000, 750)
        assert fitted_size((3200, 2400), max_size=1600, min_size=1000) == (1600, 1200)
        assert fitted_size((1200, 900), max_size=1600, min_size=1000) == (1200, 900)

    def test_at_most_four_times(self):
        assert fitted_size((100, 50), min_size=1000) == (400, 200)
        assert fitted_size((1, 1), min_size=1000) == (4, 4)

    def test_never_beyond_the_largest(self):
        assert fitted_size((400, 300), max_size=800, min_size=1000) == (800, 600)

    def test_enlarging_is_smooth_and_stays_in_range(self):
        step = np.repeat(np.array([[0, 0, 1, 1]], np.float32), 4, axis=0)
        large = resize(step, (16, 16))
        assert large.shape == (16, 16) and large.dtype == np.float32
        assert large.min() == 0 and large.max() == 1
        assert len(np.unique(large[8])) > 4


class TestPositions:
    def test_corners_of_the_image_stay_corners(self):
        corners = np.array([[-0.5, -0.5], [639.5, 479.5]])
        np.testing.assert_allclose(resize_points(corners, (0.5, 0.25)), [[-0.5, -0.5], [319.5, 119.5]])

    def test_matrix_agrees(self):
        xy = np.random.default_rng(0).uniform(0, 500, (9, 2))
        homogeneous = np.concatenate([xy, np.ones((9, 1))], axis=1) @ resize_matrix((640, 480), (213, 160)).T
        np.testing.assert_allclose(homogeneous[:, :2], resize_points(xy, (213 / 640, 160 / 480)))
        np.testing.assert_array_equal(homogeneous[:, 2], 1)
