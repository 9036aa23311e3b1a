from __future__ import annotations

import math
from dataclasses import replace

import cv2
import numpy as np
import pytest

from logpolar.datasets.image_transforms import ImageTransform
from logpolar.datasets.options import SecondViewRules
from logpolar.evaluation.poses.stereo import (
    NO_POSE,
    StereoPair,
    matched_errors,
    mean_average_accuracy,
    pose_error,
    relative_pose,
    stereo_errors,
)
from logpolar.geometry.cameras import Camera
from synthetic_world import Pinhole, standard_world


def as_camera(own: Pinhole) -> Camera:
    return Camera(own.width, own.height, own.intrinsics, own.rotation, own.translation)


@pytest.fixture(scope="module")
def pair() -> StereoPair:
    """What two cameras both see of the synthetic world, to the last bit; descriptors tell all points apart."""
    world, random = standard_world(0, 4, 160, 120), np.random.default_rng(0)
    points = world.sparse_points(random, 300)
    both = points.seen[:, 0] & points.seen[:, 3]
    assert both.sum() > 150
    descriptors = random.normal(size=(both.sum(), 32)).astype(np.float32)
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    cameras = as_camera(world.cameras[0]), as_camera(world.cameras[3])
    return StereoPair(*cameras, points.xy[both, 0], points.xy[both, 3], descriptors, descriptors)


class TestErrors:
    def test_exact_points_give_the_exact_pose(self, pair):
        assert max(stereo_errors(pair, 0.9)) < 0.01

    def test_a_pixel_of_noise(self, pair):
        noise = np.random.default_rng(1).normal(0, 0.3, pair.second_xy.shape)
        errors = stereo_errors(replace(pair, second_xy=pair.second_xy + noise), 0.9)
        assert 0.01 < max(errors) < 5

    def test_some_wrong_matches_do_no_harm(self, pair):
        descriptors = pair.second_descriptors.copy()
        descriptors[:40] = np.roll(descriptors[:40], 1, axis=0)
        assert max(stereo_errors(replace(pair, second_descriptors=descriptors), None)) < 1

    def test_shuffled_descriptors(self, pair):
        errors = [
            stereo_errors(
                replace(pair, second_descriptors=np.random.default_rng(seed).permutation(pair.second_descriptors)), None
            )
            for seed in range(5)
        ]
        assert np.median([max(error) for error in errors]) > 10

    def test_wrong_cameras(self, pair):
        """What is measured against is the pose, what it is estimated with are the intrinsics."""
        rotation = cv2.Rodrigues(np.array([0, np.radians(20), 0]))[0]
        second = pair.second_camera
        turned = replace(second, rotation=rotation @ second.rotation, translation=rotation @ second.translation)
        assert stereo_errors(replace(pair, second_camera=turned), 0.9)[0] == pytest.approx(20, abs=0.05)
        longer = replace(second, matrix=second.matrix * np.array([[2], [2], [1]]))
        assert max(stereo_errors(replace(pair, second_camera=longer), 0.9)) > 1

    @pytest.mark.parametrize("count", [0, 1, 4])
    def test_too_few_matches(self, pair, count):
        few = replace(pair, first_xy=pair.first_xy[:count], first_descriptors=pair.first_descriptors[:count])
        assert stereo_errors(few, None) == NO_POSE == (180, 180)

    def test_the_ratio_decides(self, pair):
        """Doubles of all descriptors fail any test of the ratio; noise, since no distance at all would pass."""
        noise = np.random.default_rng(1).normal(0, 0.05, pair.first_descriptors.shape).astype(np.float32)
        noisy = pair.first_descriptors + noise
        double = replace(
            pair,
            first_descriptors=noisy / np.linalg.norm(noisy, axis=1, keepdims=True),
            second_xy=np.concatenate([pair.second_xy] * 2),
            second_descriptors=np.concatenate([pair.second_descriptors] * 2),
        )
        assert stereo_errors(double, 0.99) == NO_POSE
        assert max(stereo_errors(double, 1.0)) < 0.01

    def test_the_threshold_decides(self, pair):
        noise = np.random.default_rng(1).normal(0, 1, pair.second_xy.shape)
        noisy = replace(pair, second_xy=pair.second_xy + noise)
        assert stereo_errors(noisy, 0.9, 0.05) != stereo_errors(noisy, 0.9, 3.0)

    def test_again_and_again(self, pair):
        noise = np.random.default_rng(1).normal(0, 1, pair.second_xy.shape)
        noisy = replace(pair, second_xy=pair.second_xy + noise)
        assert len({stereo_errors(noisy, 0.9) for _ in range(4)}) == 1

    @pytest.mark.parametrize("rules", [SecondViewRules(3), SecondViewRules(rotate=90), SecondViewRules(1.5, -130)])
    def test_altered_images_have_the_same_pose(self, pair, rules):
        transform = ImageTransform.of(pair.second_camera.width, pair.second_camera.height, rules)
        second = transform.camera(pair.second_camera)
        xy = pair.second_xy @ transform.linear.T + transform.matrix[:2, 2]
        assert max(stereo_errors(replace(pair, second_camera=second, second_xy=xy), 0.9)) < 0.01
        plain = replace(second, matrix=pair.second_camera.matrix)
        assert max(stereo_errors(replace(pair, second_camera=plain, second_xy=xy), 0.9)) > 1

    def test_the_threshold_is_as_wide_for_a_turned_image(self, pair):
        """By a quarter turn there are zeros where the focal lengths were."""
        noise = np.random.default_rng(2).normal(0, 0.5, pair.second_xy.shape)
        errors = []
        for turn in (0, 90):
            transform = ImageTransform.of(pair.second_camera.width, pair.second_camera.height, SecondViewRules(1, turn))
            xy = (pair.second_xy + noise) @ transform.linear.T + transform.matrix[:2, 2]
            camera = transform.camera(pair.second_camera)
            errors.append(matched_errors(pair.first_camera, camera, pair.first_xy, xy, 1.0))
        assert errors[0] == pytest.approx(errors[1], abs=0.5)
        assert max(errors[1]) < 5


class TestPoseError:
    def test_relative_pose_carries_points_over(self, pair):
        rotation, translation = relative_pose(pair.first_camera, pair.second_camera)
        point = np.array([0.3, -0.2, 0.5])
        here, there = (c.rotation @ point + c.translation for c in (pair.first_camera, pair.second_camera))
        np.testing.assert_allclose(rotation @ here + translation, there)

    @pytest.mark.parametrize("degrees", [0, 1e-6, 0.5, 90, 179.9999, 180])
    def test_rotation(self, degrees):
        rotation = cv2.Rodrigues(np.radians(degrees) * np.array([0, 0.6, 0.8]))[0]
        step = np.array([1.0, 0, 0])
        assert pose_error((np.eye(3), step), (rotation, step)) == pytest.approx(
            (degrees, 0), abs=1e-4 if degrees > 90 else 1e-9
        )

    @pytest.mark.parametrize(
        ("direction", "error"), [((2, 0, 0), 0), ((-1, 0, 0), 0), ((1, 1, 0), 45), ((-1, 1, 0), 45), ((0, 0, 3), 90)]
    )
    def test_translation_without_length_and_sign(self, direction, error):
        found = np.eye(3), np.array(direction, float)
        assert pose_error((np.eye(3), np.array([5.0, 0, 0])), found) == pytest.approx((0, error))


class TestMeanAverageAccuracy:
    def test_by_hand(self):
        """0.5 counts at all ten thresholds, 3 at eight of them (3 ... 10), 10 at one, 10.1 at none."""
        errors = [(0.5, 0.1), (1.0, 3.0), (10.0, 0.0), (0.0, 10.1)]
        assert mean_average_accuracy(errors) == pytest.approx((10 + 8 + 1 + 0) / 40)

    def test_other_thresholds(self):
        assert mean_average_accuracy([(0.5, 0.1), (2.0, 0.0)], most=2) == pytest.approx((2 + 1) / 4)

    def test_all_and_nothing(self):
        assert mean_average_accuracy([(0, 0), (1, 1)]) == 1
        assert mean_average_accuracy([NO_POSE] * 3) == 0
        assert math.isnan(mean_average_accuracy([]))
