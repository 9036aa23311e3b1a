"""Synthetic cameras with known truth, a third of the matches wrong."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from logpolar.geometry.options import ESTIMATORS
from logpolar.geometry.two_view import estimate_fundamental, estimate_homography, estimate_pose

CAMERA = np.array([[800, 0, 320], [0, 820, 240], [0, 0, 1.0]])
STRING = "PINHOLE,640,480,800,820,320.5,240.5"
OTHER_CAMERA = np.array([[600, 0, 300], [0, 600, 200], [0, 0, 1.0]])


def rotation(degrees: float) -> np.ndarray:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])


def project(camera, points):
    image = points @ camera.T
    return image[:, :2] / image[:, 2:]


TURN, SHIFT = rotation(12), np.array([-1.0, 0.2, 0.1])


def two_views(noise: float = 0.0):
    """Points in depth seen by two cameras; the last third of the matches is wrong."""
    random = np.random.default_rng(0)
    world = random.uniform((-2, -1.5, 4), (2, 1.5, 9), (150, 3))
    first, second = project(CAMERA, world), project(OTHER_CAMERA, world @ TURN.T + SHIFT)
    second[100:] = random.uniform((0, 0), (600, 400), (50, 2))
    second += random.normal(0, noise, second.shape)
    cross = np.array([[0, -SHIFT[2], SHIFT[1]], [SHIFT[2], 0, -SHIFT[0]], [-SHIFT[1], SHIFT[0], 0]])
    return first, second, cross @ TURN


def assert_same_up_to_scale(matrix, expected, tolerance):
    matrix, expected = matrix / np.linalg.norm(matrix), expected / np.linalg.norm(expected)
    assert min(np.abs(matrix - expected).max(), np.abs(matrix + expected).max()) < tolerance


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_homography(estimator):
    random = np.random.default_rng(0)
    truth = np.array([[0.4, -0.3, 200], [0.3, 0.45, 20], [1e-4, -2e-4, 1]])
    first = random.uniform(0, 500, (90, 2))
    second = project(truth, np.concatenate([first, np.ones((90, 1))], axis=1))
    second[60:] += random.uniform(20, 80, (30, 2))
    found = estimate_homography(first.astype(np.float32), second.astype(np.float32), estimator=estimator)
    assert_same_up_to_scale(found.matrix, truth, 1e-4)
    assert found.inliers.tolist() == [True] * 60 + [False] * 30
    assert found.inlier_count == 60
    assert found.common_scene


def test_homography_is_refined_on_the_precise_inliers():
    """A tenth of the inliers is off by up to 2.5 px, all to one side of the image; the rest by 0.1 px."""
    random = np.random.default_rng(0)
    truth = np.array([[0.4, -0.3, 200], [0.3, 0.45, 20], [1e-4, -2e-4, 1]])
    first = random.uniform(0, 500, (200, 2))
    second = project(truth, np.concatenate([first, np.ones((200, 1))], axis=1)) + random.normal(0, 0.1, (200, 2))
    second[first[:, 0] > 450] += random.uniform(1, 1.8, 2)
    found = estimate_homography(first, second)
    corners = np.array([[0, 0, 1], [499, 0, 1], [499, 499, 1], [0, 499, 1.0]])
    assert np.linalg.norm(project(found.matrix, corners) - project(truth, corners), axis=1).max() < 0.15
    assert found.inlier_count == 200


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_fundamental(estimator):
    first, second, essential = two_views(noise=0.2)
    truth = np.linalg.inv(OTHER_CAMERA).T @ essential @ np.linalg.inv(CAMERA)
    found = estimate_fundamental(first, second, estimator=estimator)
    assert_same_up_to_scale(found.matrix, truth, 0.02)
    assert found.inliers[:100].mean() > 0.95
    assert found.inliers[100:].mean() < 0.15
    assert found.common_scene


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_pose_with_two_different_cameras(estimator):
    first, second, truth = two_views(noise=0.2)
    found = estimate_pose(first, second, CAMERA, OTHER_CAMERA, estimator=estimator, threshold=1)
    assert_same_up_to_scale(found.matrix, truth, 0.02)
    np.testing.assert_allclose(found.rotation, TURN, atol=0.01)
    np.testing.assert_allclose(found.translation, SHIFT / np.linalg.norm(SHIFT), atol=0.03)
    assert found.axis_angle[0] == pytest.approx(12, abs=0.5)
    np.testing.assert_allclose(found.axis_angle[1], (0, 1, 0), atol=0.03)
    assert found.inliers[:100].mean() > 0.95
    assert found.inliers[100:].mean() < 0.15
    assert found.common_scene
    assert found.baseline


@pytest.mark.parametrize("degrees", [0, 12])
def test_rotation_alone_has_no_baseline(degrees):
    world = np.random.default_rng(0).uniform((-2, -1.5, 4), (2, 1.5, 9), (80, 3))
    second = project(OTHER_CAMERA, world @ rotation(degrees).T) + np.random.default_rng(1).normal(0, 0.2, (80, 2))
    found = estimate_pose(project(CAMERA, world), second, CAMERA, OTHER_CAMERA)
    assert not found.baseline
    assert found.axis_angle[0] == pytest.approx(degrees, abs=0.5)


def test_camera_strings_mean_the_same_as_matrices():
    """COLMAP's principal point is half a pixel further."""
    first, second, _ = two_views(noise=0.2)
    names = STRING, "SIMPLE_PINHOLE 600 400 600 300.5 200.5"
    by_name, by_matrix = (estimate_pose(first, second, *cameras) for cameras in (names, (CAMERA, OTHER_CAMERA)))
    np.testing.assert_allclose(by_name.rotation, by_matrix.rotation, atol=1e-6)


def test_threshold_is_in_pixels_of_the_images_as_described():
    """Photos four times as large, described at the size of the others: the same inliers, in other pixels."""
    first, second, _ = two_views(noise=0.5)
    large = [(points + 0.5) * 4 - 0.5 for points in (first, second)]
    plain, scaled = estimate_fundamental(first, second), estimate_fundamental(*large, scales=(0.25, 0.25))
    np.testing.assert_array_equal(scaled.inliers, plain.inliers)
    assert scaled.inlier_count > estimate_fundamental(*large).inlier_count
    lines = np.concatenate([large[0], np.ones((150, 1))], axis=1) @ scaled.matrix.T
    off = np.abs((lines * np.concatenate([large[1], np.ones((150, 1))], axis=1)).sum(axis=1))
    assert (off / np.linalg.norm(lines[:, :2], axis=1))[:100].max() < 4 * 4
    cameras = [np.diag([4, 4, 1.0]) @ camera for camera in (CAMERA, OTHER_CAMERA)]
    posed = estimate_pose(*large, *cameras, scales=(0.25, 0.25))
    assert posed.inlier_count > estimate_pose(*large, *cameras).inlier_count


ESTIMATES = [
    estimate_homography,
    estimate_fundamental,
    lambda a, b, **options: estimate_pose(a, b, CAMERA, OTHER_CAMERA, **options),
]


@pytest.mark.parametrize("estimate", ESTIMATES)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_points_give_no_matrix(estimate, count):
    points = np.random.default_rng(0).uniform(0, 100, (count, 2)).astype(np.float32)
    found = estimate(points, points)
    assert found.matrix is None
    assert found.inliers.tolist() == [False] * count


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_points_at_one_place_or_on_a_line_give_no_matrix(estimate):
    for points in (np.full((40, 2), 7.0), np.linspace(0, 100, 40)[:, None] * (1, 2)):
        found = estimate(points, points)
        assert found.matrix is None
        assert found.inliers.tolist() == [False] * 40
        assert not found.common_scene


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("estimate", ESTIMATES)
def test_points_that_are_not_finite_are_left_out(estimate, estimator):
    points = np.random.default_rng(0).uniform(0, 500, (60, 2))
    broken = points.copy()
    broken[:5], broken[5] = np.nan, np.inf
    found = estimate(points, broken, estimator=estimator)
    assert not found.inliers[:6].any()
    assert found.inliers[6:].mean() > 0.9


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_identical_images_are_a_common_scene(estimate):
    points = np.random.default_rng(0).uniform(0, 500, (60, 2))
    found = estimate(points, points)
    assert found.inlier_count == 60
    assert found.common_scene


@pytest.mark.parametrize("estimate", [*ESTIMATES, lambda a, b: estimate_pose(a, b, STRING, STRING)])
@pytest.mark.parametrize("shapes", [((3, 2), (4, 2)), ((9, 3), (9, 3)), ((9,), (9,))])
def test_points_of_other_shapes_are_refused(estimate, shapes):
    first, second = map(np.zeros, shapes)
    with pytest.raises(ValueError, match=re.escape(f"must have shapes (N, 2), not {shapes[0]} and {shapes[1]}")):
        estimate(first, second)


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_points_far_outside_any_image_give_no_warning(estimate):
    points = 1e30 * np.random.default_rng(0).uniform(0, 500, (60, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = estimate(points, points)
    assert found.inliers.shape == (60,)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_seed_decides(estimator):
    first, second, _ = two_views(noise=0.5)
    found = [estimate_fundamental(first, second, estimator=estimator, seed=seed) for seed in (3, 3)]
    np.testing.assert_array_equal(found[0].matrix, found[1].matrix)
    assert found[0].significance == found[1].significance
