"""Views for matchers: where their keypoints are seen in the original image, and how deep."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from logpolar.training.matcher_options import ViewsOptions
from logpolar.training.matcher_views import VARIANTS, SourceImage, make_view, random_warp, surface_depth

PLANE = np.concatenate([np.eye(3), np.zeros((3, 1))], axis=1)


@pytest.fixture(scope="module")
def texture() -> np.ndarray:
    noise = np.random.default_rng(0).random((120, 160)).astype(np.float32)
    return (np.clip(cv2.GaussianBlur(noise, (0, 0), 2) * 4 - 1.5, 0, 1) * 255).astype(np.uint8)


class TestSurface:
    def test_inverse_depth_of_a_plane_is_exact_at_any_resolution(self):
        x, y = np.meshgrid(np.arange(20), np.arange(10))
        surface = (0.2 + 0.001 * x + 0.002 * y).astype(np.float32)  # a map of a quarter of an 80 x 40 image
        places = np.array([[10.3, 7.7], [40.0, 20.0]])
        columns, rows = ((places + 0.5) / 4 - 0.5).T
        found = surface_depth(surface, (80, 40), places)
        np.testing.assert_allclose(found, 1 / (0.2 + 0.001 * columns + 0.002 * rows), rtol=1e-5)

    def test_holes_edges_and_what_is_outside_are_unknown(self):
        surface = np.full((10, 10), 0.5, np.float32)
        surface[5, 5], surface[:, 8:] = 0, 1.0
        found = surface_depth(surface, (10, 10), np.array([[5.2, 5.2], [7.5, 2.0], [-3.0, 2.0], [2.0, 2.0]]))
        assert np.isfinite(found).tolist() == [False, False, False, True]


class TestViews:
    def test_keypoints_lie_where_the_projection_says(self, texture):
        source, options = SourceImage(texture, PLANE), ViewsOptions(keypoints=50, altered=0.0, max_tilt=0.3)
        view = make_view(source, options, np.random.default_rng(3), plain=False)
        assert len(view.keypoints) > 5
        inside = view.depth > 0
        seen = np.concatenate([view.keypoints.xy, np.ones((len(inside), 1))], axis=1) * view.depth[:, None]
        points = seen @ np.linalg.inv(view.projection[:, :3]).T
        np.testing.assert_allclose(points[inside, 2], 1, atol=1e-4)  # in the photo's plane
        assert (points[inside, :2] > -1).all()
        assert (points[inside, :2] < (160, 120)).all()

    def test_the_image_as_it_is_has_its_own_projection_and_depth(self, texture):
        projection = np.array([[100, 0, 80, 1], [0, 100, 60, 2], [0, 0, 1, 3.0]])
        source = SourceImage(texture, projection, np.full((60, 80), 0.25, np.float32))
        view = make_view(source, ViewsOptions(keypoints=40, altered=0.0), np.random.default_rng(0), plain=True)
        np.testing.assert_array_equal(view.projection, projection)
        np.testing.assert_allclose(view.depth[np.isfinite(view.depth)], 4, rtol=1e-5)

    def test_variants_lose_sizes_and_angles_and_double_places(self, texture):
        view = make_view(SourceImage(texture, PLANE), ViewsOptions(keypoints=60), np.random.default_rng(0), plain=True)
        (_, detected, used), (_, upright, _), (fixed_keypoints, fixed, single) = (
            view.table(name, 6.0) for name in VARIANTS
        )
        assert used.all()
        assert detected[:, 4:].all()
        assert upright[:, 4].all()
        assert not upright[:, 5].any()
        assert not fixed[:, 4:].any()
        assert (fixed_keypoints.size == 6).all()
        assert len(np.unique(np.rint(view.keypoints.xy[single] * 4), axis=0)) == single.sum()

    @pytest.mark.parametrize("seed", range(5))
    def test_warps_show_the_image_no_more_than_max_zoom_smaller(self, seed):
        warp, size = random_warp((400, 300), ViewsOptions(max_tilt=0.0), np.random.default_rng(seed))
        scale = np.sqrt(np.linalg.det(warp[:2, :2]))
        assert 0.249 < scale < 1.001
        assert min(size) >= 32
