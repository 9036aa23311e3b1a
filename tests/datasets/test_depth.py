from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from logpolar.datasets.depth import confirmed_inverse_depth, invert, nearest
from logpolar.datasets.options import DepthRules
from logpolar.geometry.cameras import Camera
from synthetic_world import Pinhole, pixel_grid, standard_world

RULES = DepthRules(max_drift=1, max_difference=0.01)
VIEWS = (0, 3, 5)
"""Of the six, one of each distance."""


def library_camera(camera: Pinhole, scale: float = 1) -> Camera:
    """A camera of the synthetic world, in the library's form, for a map smaller by ``scale``."""
    own = Camera(camera.width, camera.height, camera.intrinsics, camera.rotation, camera.translation)
    return own.resized(round(camera.width * scale), round(camera.height * scale))


class TestInvert:
    def test_by_hand(self):
        inverse = invert(np.float32([[2, 4], [0, 0.5]]))
        assert inverse.dtype == np.float32
        assert inverse.tolist() == [[0.5, 0.25], [0, 2]]

    def test_leaves_its_input_alone(self):
        depth = np.float32([2, 0])
        invert(depth)
        assert depth.tolist() == [2, 0]


class TestNearest:
    VALUES = np.arange(1, 13, dtype=np.float32).reshape(3, 4)

    def test_rounds_to_the_nearest_pixel(self):
        x, y = np.array([0, 1.4, 1.6, 2.9, 0.2]), np.array([0, 0.4, 0.6, 1.7, 2.3])
        assert nearest(self.VALUES, x, y).tolist() == [1, 2, 7, 12, 9]

    def test_zero_outside(self):
        """The map ends half a pixel past the centres of its border pixels."""
        x, y = np.array([-0.4, -0.6, 3.4, 3.6, 1, 1, 1, 1]), np.array([1, 1, 1, 1, -0.4, -0.6, 2.4, 2.6])
        assert nearest(self.VALUES, x, y).tolist() == [5, 0, 8, 0, 2, 0, 10, 0]

    def test_zero_where_there_is_no_place(self):
        x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e12])
        assert nearest(self.VALUES, x, np.ones(5)).tolist() == [0] * 5

    def test_keeps_the_shape(self):
        x, y = np.meshgrid(np.arange(4), np.arange(3))
        np.testing.assert_array_equal(nearest(self.VALUES, x, y), self.VALUES)
        assert nearest(self.VALUES, np.zeros(7), np.zeros(7)).shape == (7,)

    def test_no_places(self):
        assert nearest(self.VALUES, np.zeros(0), np.zeros(0)).shape == (0,)

    def test_many_places(self):
        assert nearest(self.VALUES, np.ones(40000), np.zeros(40000)).tolist() == [2] * 40000


@pytest.fixture(scope="module")
def world():
    return standard_world()


@pytest.fixture(scope="module")
def exact(world):
    return [world.depth_map(camera) for camera in world.cameras]


def confirm(world, maps, view, rules=RULES, scales=None):
    """The confirmed inverse depth of a view, by all others; ``max_drift`` is in pixels of the full image."""
    scales = scales or [1] * len(maps)
    cameras = [library_camera(camera, scale) for camera, scale in zip(world.cameras, scales, strict=True)]
    others = [(maps[k], cameras[k]) for k in range(len(maps)) if k != view]
    return confirmed_inverse_depth(maps[view], cameras[view], others, rules, scales[view])


def views_that_see(world, view):
    """In how many other views each pixel is visible, exactly."""
    camera = world.cameras[view]
    grid = pixel_grid(camera.width, camera.height)
    seen = [world.transfer(camera, other, grid).visible for other in world.cameras if other is not camera]
    return np.sum(seen, axis=0).reshape(camera.height, camera.width)


class TestConfirmedInExactWorld:
    @pytest.mark.parametrize("view", VIEWS)
    def test_what_two_others_see_is_confirmed(self, world, exact, view):
        """All but pixels at edges, where the nearest pixel of the other map is of another surface."""
        seen = views_that_see(world, view)
        confirmed = confirm(world, exact, view) > 0
        assert (seen >= 2).mean() > 0.4
        assert confirmed[seen >= 2].mean() > 0.99

    @pytest.mark.parametrize("view", VIEWS)
    def test_what_none_sees_is_not(self, world, exact, view):
        """But for edges again: a pixel away another view does see the surface."""
        seen = views_that_see(world, view)
        confirmed = confirm(world, exact, view) > 0
        assert confirmed[seen == 0].mean() < 0.01
        assert confirmed[seen < 2].mean() < 0.05
        assert not confirmed[exact[view] == 0].any()

    @pytest.mark.parametrize("view", VIEWS)
    def test_it_is_the_inverse_depth(self, world, exact, view):
        inverse = confirm(world, exact, view)
        error = np.abs(inverse * exact[view] - 1)[inverse > 0]
        assert inverse.dtype == np.float32
        assert np.median(error) < 0.001
        assert error.max() < RULES.max_difference

    def test_wrong_depths_in_one_view_are_refused(self, world, exact):
        random = np.random.default_rng(0)
        maps = [depth.copy() for depth in exact]
        wrong = random.random(maps[2].shape) < 0.2
        maps[2][wrong] = random.uniform(2, 12, wrong.sum())
        off = wrong & (np.abs(maps[2] - exact[2]) > 0.03 * exact[2])
        confirmed = confirm(world, maps, 2) > 0
        assert off.sum() > 12000
        assert confirmed[off].mean() < 0.005
        assert confirmed[~wrong & (exact[2] > 0)].mean() > 0.98

    def test_wrong_depths_in_another_view_do_no_harm(self, world, exact):
        """They confirm nothing, and what the rest confirms stays as it is."""
        random = np.random.default_rng(0)
        maps = [
            random.uniform(2, 12, depth.shape).astype(np.float32) if k == 3 else depth for k, depth in enumerate(exact)
        ]
        inverse = confirm(world, maps, 2)
        known = inverse > 0
        assert known.mean() > 0.9
        assert np.abs(inverse * exact[2] - 1)[known].max() < RULES.max_difference

    @pytest.mark.parametrize("shift", [0.97, 1.03])
    def test_a_depth_map_of_another_scale_confirms_nothing(self, world, exact, shift):
        maps = [depth * np.float32(shift if k == 2 else 1) for k, depth in enumerate(exact)]
        assert (confirm(world, maps, 2) > 0).mean() < 0.02

    def test_a_wrong_pose_confirms_nothing(self, world, exact):
        cameras = [library_camera(camera) for camera in world.cameras]
        moved = Camera(320, 240, cameras[2].matrix, cameras[2].rotation, cameras[2].translation + np.array([0.3, 0, 0]))
        others = [(exact[k], cameras[k]) for k in range(6) if k != 2]
        assert (confirmed_inverse_depth(exact[2], moved, others, RULES, 1) > 0).mean() < 0.1

    def test_more_views_confirm_less(self, world, exact):
        shares = [(confirm(world, exact, 2, replace(RULES, min_views=least)) > 0).mean() for least in range(1, 7)]
        assert all(more >= fewer for more, fewer in pairwise(shares))
        assert shares[0] > 0.95
        assert shares[3] < 0.5
        assert shares[5] == 0  # there are only five others

    def test_maps_of_different_resolution(self, world):
        scales = [1, 0.5, 1, 0.5, 0.75, 1.5]
        maps = [world.depth_map(camera, scale) for camera, scale in zip(world.cameras, scales, strict=True)]
        for view in VIEWS:
            seen = views_that_see(world, view)
            inverse = confirm(world, maps, view, scales=scales)
            known = inverse > 0
            assert inverse.shape == maps[view].shape
            assert known.mean() > 0.95 * (seen >= 2).mean()
            assert np.abs(inverse * maps[view] - 1)[known].max() < RULES.max_difference
            assert np.median(np.abs(inverse * maps[view] - 1)[known]) < 0.002


WIDE = 100
"""Columns of the maps below."""


def beside(shift: float, focal: float = 100.0) -> Camera:
    """A camera moved to the right."""
    matrix = np.array([[focal, 0, 49.5], [0, focal, 4.5], [0, 0, 1]])
    return Camera(WIDE, 10, matrix, np.eye(3), np.array([-shift, 0, 0.0]))


def wall(depth: float) -> np.ndarray:
    return np.full((10, WIDE), depth, np.float32)


def confirm_wall(own: float, others, **rules):
    """A wall at depth ``own``, before which the others, pairs of shift and depth, stand beside; its middle column."""
    maps = [(wall(depth), beside(shift)) for shift, depth in others]
    pixel = rules.pop("pixel", 1.0)
    return confirmed_inverse_depth(wall(own), beside(0), maps, replace(RULES, **rules), pixel)[:, 50]


class TestConfirmedByHand:
    """A wall at 2 m, cameras of focal length 100 px beside each other: 1 m is 50 px."""

    def test_mean_of_all_that_agree(self):
        """Each other camera looks straight on, too: its depth is the depth here, in inverse depth the mean is taken."""
        others = [(0.04, 2.01), (-0.04, 1.99), (0.02, 2.004)]
        expected = np.mean([1 / 2, 1 / 2.01, 1 / 1.99, 1 / 2.004])
        np.testing.assert_allclose(confirm_wall(2.0, others), expected, rtol=1e-6)

    def test_those_that_disagree_have_no_part_in_it(self):
        others = [(0.04, 2.01), (-0.04, 1.99), (0.02, 3.0), (0.06, 1.0), (0.02, 0.0)]
        np.testing.assert_allclose(confirm_wall(2.0, others), np.mean([1 / 2, 1 / 2.01, 1 / 1.99]), rtol=1e-6)

    @pytest.mark.parametrize(("difference", "agrees"), [(0.009, True), (0.011, False), (-0.009, True), (-0.011, False)])
    def test_largest_difference_of_depth(self, difference, agrees):
        """From the same place nothing drifts."""
        found = confirm_wall(2.0, [(0.0, 2 * (1 + difference))], min_views=1)
        assert (found > 0).all() == (found > 0).any() == agrees

    @pytest.mark.parametrize(
        ("drift", "pixel", "agrees"), [(0.2, 1, False), (0.3, 1, True), (0.15, 2, True), (0.3, 0.5, False)]
    )
    def test_largest_drift(self, drift, pixel, agrees):
        """From 1 m beside, 0.5 % of depth is 50 px * (1 - 1 / 1.005) = 0.249 px; ``pixel`` is the unit of drift."""
        maps = [(np.full((10, 200), 2.01, np.float32), beside(1.0))]
        rules = replace(RULES, min_views=1, max_drift=drift)
        found = confirmed_inverse_depth(wall(2.0), beside(0), maps, rules, pixel)[:, 75]
        assert (found > 0).all() == (found > 0).any() == agrees

    @pytest.mark.parametrize(("count", "known"), [(0, False), (1, False), (2, True), (3, True)])
    def test_two_others_must_agree(self, count, known):
        assert (confirm_wall(2.0, [(0.02, 2.0)] * count) > 0).all() == known

    def test_unknown_depth_stays_unknown(self):
        depth = wall(2.0)
        depth[:, 40:60] = 0
        found = confirmed_inverse_depth(depth, beside(0), [(wall(2.0), beside(0.0))] * 3, RULES, 1)
        np.testing.assert_array_equal(found > 0, depth > 0)

    def test_unknown_depth_confirms_nothing(self):
        """A hole of the other map, ten columns further left in it."""
        other = wall(2.0)
        other[:, 40:60] = 0
        found = confirmed_inverse_depth(wall(2.0), beside(0), [(other, beside(0.2))] * 2, RULES, 1)
        columns = np.flatnonzero(found[5] == 0)
        assert columns.tolist() == [*range(10), *range(50, 70)]  # the first ten are left of the other image

    def test_cameras_that_look_the_other_way_confirm_nothing(self):
        back = Camera(WIDE, 10, beside(0).matrix, np.diag([-1.0, 1, -1]), np.zeros(3))
        assert not confirmed_inverse_depth(wall(2.0), beside(0), [(wall(2.0), back)] * 3, RULES, 1).any()

    def test_noise_is_averaged_down(self):
        """Nine depths of each pixel, with nothing refused: a third of the noise is left."""
        random = np.random.default_rng(0)

        def noisy() -> np.ndarray:
            return (2 * (1 + 0.01 * random.standard_normal((10, WIDE)))).astype(np.float32)

        others = [(noisy(), beside(0.02 * step)) for step in (-4, -3, -2, -1, 1, 2, 3, 4)]
        found = confirmed_inverse_depth(noisy(), beside(0), others, DepthRules(max_drift=99, max_difference=1), 1)
        error = found[:, 8:-8] * 2 - 1
        assert error.std() == pytest.approx(0.01 / 3, rel=0.1)
        assert abs(error.mean()) < 0.001

    @pytest.mark.parametrize("count", [255, 256, 300])
    def test_more_views_than_a_byte_can_count(self, count):
        found = confirm_wall(2.0, [(0.02, 2.0)] * count, max_neighbours=count)
        np.testing.assert_allclose(found, 0.5, rtol=1e-5)
