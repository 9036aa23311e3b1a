from __future__ import annotations

import numpy as np

from logpolar.geometry.homography import warp_points, warp_shape, wrap_degrees, zoom_of
from logpolar.keypoints import Keypoints

TILTED = np.array([[0.9, -0.25, 30.0], [0.3, 0.8, -10.0], [4e-4, -3e-4, 1.0]])


def warp_one(homography: np.ndarray, x: float, y: float) -> np.ndarray:
    a, b, c = homography @ np.array([x, y, 1.0])
    return np.array([a / c, b / c])


def test_points():
    xy = np.random.default_rng(0).uniform(-50, 300, (20, 2))
    expected = [warp_one(TILTED, *point) for point in xy.tolist()]
    np.testing.assert_allclose(warp_points(TILTED, xy)[0], expected, rtol=1e-12)


def test_jacobian_by_finite_differences():
    xy = np.random.default_rng(0).uniform(-50, 300, (20, 2))
    _, jacobian = warp_points(TILTED, xy)
    for axis in (0, 1):
        step = np.zeros(2)
        step[axis] = 1e-4
        difference = (warp_points(TILTED, xy + step)[0] - warp_points(TILTED, xy - step)[0]) / 2e-4
        np.testing.assert_allclose(jacobian[:, :, axis], difference, atol=1e-7)


def test_scale_of_the_homography_does_not_matter():
    xy = np.random.default_rng(0).uniform(0, 300, (5, 2))
    for one, other in zip(warp_points(TILTED, xy), warp_points(-3 * TILTED, xy), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_wrapped_angles():
    angles = np.array([0, 179.5, 180, -180, -180.5, 359, -359, 725])
    np.testing.assert_allclose(wrap_degrees(angles), [0, 179.5, -180, -180, 179.5, -1, 1, 5])


def test_shape_of_a_similarity():
    keypoints = Keypoints.from_points(np.zeros((2, 2)), size=[3, 5], angle=[10, 350])
    radians = np.radians(30)
    jacobian = 2 * np.array([[[np.cos(radians), -np.sin(radians)], [np.sin(radians), np.cos(radians)]]] * 2)
    angle, size = warp_shape(jacobian, keypoints)
    np.testing.assert_allclose(wrap_degrees(angle), [40, 20], atol=1e-4)
    np.testing.assert_allclose(size, [6, 10], rtol=1e-6)
    np.testing.assert_allclose(zoom_of(jacobian), 2)
