"""Synthetic cameras with known truth, a third of the matches wrong."""

from __future__ import annotations

import numpy as np
import pytest

from logpolar.geometry.two_view import estimate_essential, estimate_fundamental, estimate_homography

CAMERA = np.array([[800, 0, 320], [0, 820, 240], [0, 0, 1.0]])
OTHER_CAMERA = np.array([[600, 0, 300], [0, 600, 200], [0, 0, 1.0]])


def rotation(degrees: float) -> np.ndarray:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])


def project(camera, points):
    image = points @ camera.T
    return image[:, :2] / image[:, 2:]


def two_views(noise: float = 0.0):
    """Points in depth seen by two cameras; the last third of the matches is wrong."""
    random = np.random.default_rng(0)
    world = random.uniform((-2, -1.5, 4), (2, 1.5, 9), (150, 3))
    turn, shift = rotation(12), np.array([-1.0, 0.2, 0.1])
    first, second = project(CAMERA, world), project(OTHER_CAMERA, world @ turn.T + shift)
    second[100:] = random.uniform((0, 0), (600, 400), (50, 2))
    second += random.normal(0, noise, second.shape)
    cross = np.array([[0, -shift[2], shift[1]], [shift[2], 0, -shift[0]], [-shift[1], shift[0], 0]])
    return first, second, cross @ turn


def assert_same_up_to_scale(matrix, expected, tolerance):
    matrix, expected = matrix / np.linalg.norm(matrix), expected / np.linalg.norm(expected)
    assert min(np.abs(matrix - expected).max(), np.abs(matrix + expected).max()) < tolerance


def test_homography():
    random = np.random.default_rng(0)
    truth = np.array([[0.4, -0.3, 200], [0.3, 0.45, 20], [1e-4, -2e-4, 1]])
    first = random.uniform(0, 500, (90, 2))
    second = project(truth, np.concatenate([first, np.ones((90, 1))], axis=1))
    second[60:] += random.uniform(20, 80, (30, 2))
    found = estimate_homography(first.astype(np.float32), second.astype(np.float32))
    assert_same_up_to_scale(found.matrix, truth, 1e-4)
    assert found.inliers.tolist() == [True] * 60 + [False] * 30
    assert found.inlier_count == 60


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


def test_fundamental():
    first, second, essential = two_views(noise=0.2)
    truth = np.linalg.inv(OTHER_CAMERA).T @ essential @ np.linalg.inv(CAMERA)
    found = estimate_fundamental(first, second)
    assert_same_up_to_scale(found.matrix, truth, 0.02)
    assert found.inliers[:100].mean() > 0.95
    assert found.inliers[100:].mean() < 0.15


def test_essential_with_two_different_cameras():
    first, second, truth = two_views(noise=0.2)
    found = estimate_essential(first, second, CAMERA, OTHER_CAMERA)
    assert_same_up_to_scale(found.matrix, truth, 0.02)
    assert found.inliers[:100].mean() > 0.95
    assert found.inliers[100:].mean() < 0.15


ESTIMATES = [
    estimate_homography,
    estimate_fundamental,
    lambda a, b: estimate_essential(a, b, CAMERA, OTHER_CAMERA),
]


@pytest.mark.parametrize("estimate", ESTIMATES)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_points_give_no_matrix(estimate, count):
    points = np.random.default_rng(0).uniform(0, 100, (count, 2)).astype(np.float32)
    found = estimate(points, points)
    assert found.matrix is None
    assert found.inliers.tolist() == [False] * count


@pytest.mark.parametrize("estimate", ESTIMATES)
def test_points_all_at_one_place(estimate):
    points = np.full((20, 2), 7.0)
    found = estimate(points, points)
    assert len(found.inliers) == 20
    assert found.matrix is None or np.isfinite(found.matrix).all()


def test_different_numbers_of_points_are_refused():
    with pytest.raises(ValueError, match="3 points"):
        estimate_homography(np.zeros((3, 2)), np.zeros((4, 2)))


def test_the_same_points_give_the_same_result():
    first, second, _ = two_views(noise=0.5)
    results = [estimate_fundamental(first, second) for _ in range(2)]
    np.testing.assert_array_equal(results[0].matrix, results[1].matrix)
