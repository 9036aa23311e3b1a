from __future__ import annotations

import numpy as np
import pytest

from logpolar.datasets.depth import Planes, fit_planes, invert
from logpolar.datasets.options import DepthRules

RULES = DepthRules(max_drift=1, max_difference=0.01)
VIEWS = (0, 3, 5)
"""Of the six, one of each distance."""


SLOPE = np.array([0.0011, -0.0007])


@pytest.fixture(scope="module")
def exact(world):
    return [world.depth_map(camera) for camera in world.cameras]


def plane_map(width: int = 60, height: int = 50) -> np.ndarray:
    """An inverse depth that is linear in the pixel."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return (0.3 + SLOPE[0] * x + SLOPE[1] * y).astype(np.float32)


def fit(inverse, *xy, radius=2.0, **rules) -> Planes:
    return fit_planes(inverse, np.array(xy, np.float64).reshape(-1, 2), np.full(len(xy), radius), DepthRules(**rules))


class TestPlanes:
    @pytest.mark.parametrize("radius", [0.5, 2, 3.3, 8, 14])
    def test_exact_on_a_plane_at_any_place_between_pixels(self, radius):
        xy = np.random.default_rng(0).uniform(20, 30, (40, 2))
        found = fit_planes(plane_map(), xy, np.full(40, radius), RULES)
        assert found.known.all()
        np.testing.assert_allclose(found.inverse_depth, 0.3 + xy @ SLOPE, rtol=1e-6)
        np.testing.assert_allclose(found.slope, np.tile(SLOPE, (40, 1)), atol=2e-7)
        np.testing.assert_allclose(found.depth, 1 / (0.3 + xy @ SLOPE), rtol=1e-6)

    def test_what_is_linear_in_depth_is_not_taken_for_a_plane(self):
        """Depth 2 + 0.06 x is bent in inverse depth: on 9 px it deviates by more than 0.1 %."""
        inverse = 1 / (2 + 0.06 * np.arange(60, dtype=np.float32))[None].repeat(50, axis=0)
        assert not fit(inverse, (30, 25), radius=8, max_roughness=0.001).known[0]
        assert fit(plane_map(), (30, 25), radius=8, max_roughness=0.001).known[0]

    def test_refused_at_a_step(self):
        step = plane_map()
        step[:, 30:] *= 1.2
        columns = [20, 26, 27, 28, 29, 30, 31, 32, 33, 34, 40]
        known = fit(step, *[(column, 25) for column in columns]).known
        assert known.tolist() == [abs(column - 29.5) > 2 for column in columns]

    @pytest.mark.parametrize(("bump", "known"), [(0.02, True), (0.06, False), (-0.06, False)])
    def test_roughness(self, bump, known):
        rough = plane_map()
        rough[24, 31] *= 1 + bump
        assert fit(rough, (30, 25)).known[0] == known

    def test_larger_keypoints_have_larger_windows(self):
        """A step six pixels away is within a radius of 8, not of 2."""
        step = plane_map()
        step[:, 36:] *= 1.2
        assert fit(step, (30, 25), radius=2).known[0]
        assert fit(step, (30, 25), radius=5).known[0]
        assert not fit(step, (30, 25), radius=8).known[0]

    def test_each_keypoint_has_its_own_window(self):
        step = plane_map()
        step[:, 36:] *= 1.2
        found = fit_planes(step, np.array([[30.0, 25], [30, 25], [20, 25]]), np.array([2, 8, 8.0]), RULES)
        assert found.known.tolist() == [True, False, True]

    def test_larger_windows_find_the_slope_of_noisy_maps_better(self):
        noisy = plane_map(200, 200) * (1 + 0.003 * np.random.default_rng(0).standard_normal((200, 200)))
        xy = np.random.default_rng(1).uniform(30, 170, (200, 2))
        errors = []
        for radius in (2, 8):
            found = fit_planes(noisy.astype(np.float32), xy, np.full(200, radius), RULES)
            assert found.known.all()
            errors.append(np.std(found.slope - SLOPE))
        assert errors[1] == pytest.approx(errors[0] / 4, rel=0.2)

    def test_unknown_centre(self):
        holed = plane_map()
        holed[25, 30] = 0
        known = fit(holed, (30, 25), (30.4, 24.6), (31, 25), (29, 24)).known
        assert known.tolist() == [False, False, True, True]

    @pytest.mark.parametrize(("rows", "known"), [(5, True), (3, True), (2, False)])
    def test_half_of_the_samples_are_enough(self, rows, known):
        """13 of 25: three rows of five, not two."""
        band = np.zeros((50, 60), np.float32)
        band[25 : 25 + rows] = plane_map()[25 : 25 + rows]
        found = fit(band, (30, 25))
        assert found.known[0] == known
        if known:
            np.testing.assert_allclose(found.slope[0], SLOPE, atol=1e-6)

    def test_exactly_thirteen_samples(self):
        for count, known in ((13, True), (12, False)):
            holed = np.zeros((50, 60), np.float32)
            offsets = sorted(((x, y) for x in range(-2, 3) for y in range(-2, 3)), key=lambda o: (max(map(abs, o)), o))
            for x, y in offsets[:count]:
                holed[25 + y, 30 + x] = plane_map()[25 + y, 30 + x]
            assert fit(holed, (30, 25)).known[0] == known

    def test_at_the_border_and_outside(self):
        places = {
            (0, 25): True,
            (59, 25): True,
            (30, 0): True,
            (30, 49): True,
            (-0.4, 25): True,
            (0, 0): False,  # only nine samples
            (59, 49): False,
            (-0.6, 25): False,
            (59.6, 25): False,
            (30, -0.6): False,
            (30, 49.6): False,
            (-40, 25): False,
            (30, 900): False,
        }
        found = fit(plane_map(), *places)
        assert found.known.tolist() == list(places.values())
        for (x, y), inverse in zip(places, found.inverse_depth, strict=True):
            assert inverse == pytest.approx(0.3 + SLOPE @ [x, y], rel=1e-5) if places[x, y] else inverse == 0

    def test_rows_of_unknown_are_zero(self):
        found = fit(plane_map(), (-40, 25), (30, 25))
        assert found.inverse_depth[0] == 0
        assert found.slope[0].tolist() == [0, 0]
        assert np.isnan(found.depth[0])
        assert np.isfinite(found.depth[1])

    def test_all_unknown(self):
        assert not fit(np.zeros((50, 60), np.float32), (30, 25), (0, 0)).known.any()

    def test_no_keypoints(self):
        found = fit(plane_map())
        assert found.known.shape == found.depth.shape == (0,)
        assert found.slope.shape == (0, 2)

    def test_at_an_offset(self):
        found = fit(plane_map(), (30, 25), (20, 20))
        there = found.at(np.array([[3.0, -2.0], [0.5, 0.25]]))
        np.testing.assert_allclose(there, [0.3 + SLOPE @ [33, 23], 0.3 + SLOPE @ [20.5, 20.25]], rtol=1e-6)

    @pytest.mark.parametrize("index", [np.array([2, 0]), np.array([True, False, True])])
    def test_some_of_them(self, index):
        found = fit(plane_map(), (30, 25), (20, 20), (10, 30))
        some = found[index]
        np.testing.assert_array_equal(some.inverse_depth, found.inverse_depth[index])
        np.testing.assert_array_equal(some.slope, found.slope[index])

    def test_on_the_ground_of_the_exact_world(self, world, exact):
        """Where the window lies on one surface, its plane is that of the surface."""
        camera = world.cameras[0]
        xy = np.random.default_rng(0).uniform([5, 5], [314, 234], (400, 2))
        window = np.array([(x, y) for x in range(-3, 4) for y in range(-3, 4)])
        surface = world.cast(camera, (xy[:, None] + window).reshape(-1, 2))[1].reshape(400, -1)
        flat = (surface == surface[:, :1]).all(axis=1) & (surface[:, 0] >= 0)
        found = fit_planes(invert(exact[0]), xy[flat], np.full(flat.sum(), 2), RULES)
        assert flat.sum() > 200
        assert found.known.all()
        np.testing.assert_allclose(found.depth, world.cast(camera, xy[flat])[0], rtol=1e-5)
        ahead = world.cast(camera, xy[flat] + np.array([1, 2]))[0]
        np.testing.assert_allclose(found.at(np.tile([1.0, 2.0], (flat.sum(), 1))), 1 / ahead, rtol=1e-5)
