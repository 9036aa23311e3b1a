from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import cv2
import numpy as np
import pytest

from logpolar.datasets.image_transforms import ImageTransform
from logpolar.datasets.options import SecondViewRules
from logpolar.evaluation.options import PhototourismOptions
from logpolar.evaluation.poses import (
    NO_POSE,
    PoseScore,
    SecondLook,
    estimate_errors,
    evaluate_stereo,
    fractions_within,
    pose_error,
    relative_pose,
    tune_ratio,
)
from logpolar.geometry import verification
from logpolar.geometry.cameras import Camera
from logpolar.geometry.two_view import estimate_pose
from logpolar.matching.nearest import match_features
from synthetic_world import Pinhole, standard_world

OPTIONS = PhototourismOptions(bags_5=3, bags_10=0, bags_25=0)


def as_camera(own: Pinhole) -> Camera:
    return Camera(own.width, own.height, own.intrinsics, own.rotation, own.translation)


@dataclass(frozen=True, eq=False)
class Pair:
    """Two cameras, and matched points (N, 2)."""

    first_camera: Camera
    second_camera: Camera
    first_xy: np.ndarray
    second_xy: np.ndarray

    def errors(self, threshold: float = 1.0):
        cameras = self.first_camera, self.second_camera
        matrices = [camera.matrix for camera in cameras]
        return estimate_errors(*cameras, estimate_pose(self.first_xy, self.second_xy, *matrices, threshold=threshold))


@pytest.fixture(scope="module")
def pair() -> Pair:
    """What two cameras both see of the synthetic world, to the last bit."""
    world, random = standard_world(0, 4, 160, 120), np.random.default_rng(0)
    points = world.sparse_points(random, 300)
    both = points.seen[:, 0] & points.seen[:, 3]
    assert both.sum() > 150
    cameras = as_camera(world.cameras[0]), as_camera(world.cameras[3])
    return Pair(*cameras, points.xy[both, 0], points.xy[both, 3])


class TestErrors:
    def test_exact_points_give_the_exact_pose(self, pair):
        assert max(pair.errors()) < 0.01

    def test_a_pixel_of_noise(self, pair):
        noise = np.random.default_rng(1).normal(0, 0.3, pair.second_xy.shape)
        errors = replace(pair, second_xy=pair.second_xy + noise).errors()
        assert 0.01 < max(errors) < 5

    def test_some_wrong_matches_do_no_harm(self, pair):
        xy = pair.second_xy.copy()
        xy[:40] = np.roll(xy[:40], 1, axis=0)
        assert max(replace(pair, second_xy=xy).errors()) < 1

    def test_shuffled_matches(self, pair):
        first, second = pair.first_xy[:40], pair.second_xy[:40]  # the estimator searches long where there is nothing
        shuffled = [np.random.default_rng(seed).permutation(second) for seed in range(5)]
        assert np.median([max(replace(pair, first_xy=first, second_xy=xy).errors()) for xy in shuffled]) > 10

    def test_wrong_cameras(self, pair):
        """What is measured against is the pose, what it is estimated with are the intrinsics."""
        rotation = cv2.Rodrigues(np.array([0, np.radians(20), 0]))[0]
        second = pair.second_camera
        turned = replace(second, rotation=rotation @ second.rotation, translation=rotation @ second.translation)
        assert replace(pair, second_camera=turned).errors()[0] == pytest.approx(20, abs=0.05)
        longer = replace(second, matrix=second.matrix * np.array([[2], [2], [1]]))
        assert max(replace(pair, second_camera=longer).errors()) > 1

    @pytest.mark.parametrize("count", [0, 1, 4])
    def test_too_few_matches(self, pair, count):
        few = replace(pair, first_xy=pair.first_xy[:count], second_xy=pair.second_xy[:count])
        assert few.errors() == NO_POSE == (180, 180)

    def test_the_threshold_decides(self, pair):
        noise = np.random.default_rng(1).normal(0, 1, pair.second_xy.shape)
        noisy = replace(pair, second_xy=pair.second_xy + noise)
        assert noisy.errors(0.05) != noisy.errors(3.0)

    def test_again_and_again(self, pair):
        noise = np.random.default_rng(1).normal(0, 1, pair.second_xy.shape)
        noisy = replace(pair, second_xy=pair.second_xy + noise)
        assert len({noisy.errors() for _ in range(4)}) == 1

    @pytest.mark.parametrize("rules", [SecondViewRules(3), SecondViewRules(rotate=90), SecondViewRules(1.5, -130)])
    def test_altered_images_have_the_same_pose(self, pair, rules):
        transform = ImageTransform.of(pair.second_camera.width, pair.second_camera.height, rules)
        second = transform.camera(pair.second_camera)
        xy = pair.second_xy @ transform.linear.T + transform.matrix[:2, 2]
        assert max(replace(pair, second_camera=second, second_xy=xy).errors()) < 0.01
        plain = replace(second, matrix=pair.second_camera.matrix)
        assert max(replace(pair, second_camera=plain, second_xy=xy).errors()) > 1

    def test_the_threshold_is_as_wide_for_a_turned_image(self, pair):
        """By a quarter turn there are zeros where the focal lengths were."""
        noise = np.random.default_rng(2).normal(0, 0.5, pair.second_xy.shape)
        errors = []
        for turn in (0, 90):
            transform = ImageTransform.of(pair.second_camera.width, pair.second_camera.height, SecondViewRules(1, turn))
            xy = (pair.second_xy + noise) @ transform.linear.T + transform.matrix[:2, 2]
            camera = transform.camera(pair.second_camera)
            errors.append(replace(pair, second_camera=camera, second_xy=xy).errors())
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


class TestScores:
    ERRORS = ((0.5, 0.1), (4.0, 5.0), (9.5, 0.0), (0.0, 14.0), (15.1, 1.0), NO_POSE)

    def test_2019_by_hand(self):
        """Within 5: two of six (5 itself counts), within 10: three, within 15: four."""
        assert PoseScore.of(self.ERRORS).map15 == pytest.approx((2 + 3 + 4) / 18)

    def test_2020_by_hand(self):
        """0.5 counts at ten thresholds, 5 at six (5 ... 10), 9.5 at one."""
        score = PoseScore.of(self.ERRORS)
        assert score.maa10 == pytest.approx((10 + 6 + 1) / 60)
        assert score.pairs == 6

    def test_fractions_by_hand(self):
        assert fractions_within(self.ERRORS, (0.4, 5, 15)) == pytest.approx([0, 2 / 6, 4 / 6])
        assert math.isnan(fractions_within([], (5,))[0])

    def test_nothing(self):
        assert PoseScore.of([]).to_dict() == {"pairs": 0, "maa10": None, "map15": None}
        assert math.isnan(PoseScore.mean([]).maa10)

    def test_scenes_count_the_same(self):
        mean = PoseScore.mean([PoseScore(10, 1.0, 0.5), PoseScore(1, 0.0, 0.25), PoseScore.of([])])
        assert (mean.pairs, mean.maa10, mean.map15) == (11, 0.5, 0.375)


def _noisy(descriptors, random):
    noisy = descriptors + random.normal(0, 0.06, descriptors.shape).astype(np.float32)
    return noisy / np.linalg.norm(noisy, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def result(prepared, true_images):
    return evaluate_stereo(prepared, true_images, OPTIONS)


class TestStereo:
    def test_true_matches(self, result):
        assert result.score.pairs == 10
        assert max(max(each.errors) for each in result.results) < 0.5
        assert result.score.maa10 == result.score.map15 == 1
        assert result.median("inliers") > 0.9 * result.median("matches") > 100

    def test_shuffled_descriptors(self, prepared, wrong_images):
        few = replace(prepared, pairs=prepared.pairs[:2])  # each of which takes a second
        score = evaluate_stereo(few, wrong_images, replace(OPTIONS, ratio=1.0)).score
        assert score.maa10 < 0.05
        assert score.map15 < 0.15

    def test_result(self, result):
        plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
        assert plain["pairs"] == len(plain["rows"]) == 10
        assert plain["rows"][0][:2] == ["0.png", "1.png"]
        assert len(plain["rows"][0]) == len(plain["columns"])

    def test_processes_find_the_same(self, prepared, true_images):
        few = replace(prepared, pairs=prepared.pairs[:3])
        assert evaluate_stereo(few, true_images, OPTIONS, 2) == evaluate_stereo(few, true_images, OPTIONS, 1)

    def test_matching_is_on_the_device(self, prepared, true_images, result, monkeypatch):
        used = []

        def spy(first, second, options, *, device):
            used.append(device)
            return match_features(first, second, options)

        monkeypatch.setattr(verification, "match_features", spy)
        assert evaluate_stereo(prepared, true_images, OPTIONS, device="cuda:3") == result
        assert set(used) == {"cuda:3"}

    def test_a_second_look_adds_the_matches_of_regions(self, prepared, true_images, result):
        """Here a region has all features of the image: every match is found twice."""
        asked = []

        def extract(row, region):
            asked.append((row, region))
            return true_images[row].features

        for look, times in (("same", 2), ("another method", 3)):  # which looks at the whole images as well
            asked.clear()
            again = evaluate_stereo(
                prepared, true_images, replace(OPTIONS, second_look=look), second=SecondLook(extract, OPTIONS)
            )
            assert [row for row, _ in asked] == [row for pair in prepared.pairs for row in pair * (times - 1)]
            assert all(max(region.size) <= 320 and region.factor <= 4 for _, region in asked)
            assert [each.matches for each in again.results] == [times * each.matches for each in result.results]
            assert max(max(each.errors) for each in again.results) < 0.5

    def test_tuning(self, prepared, true_images):
        """Descriptors so noisy that a strict test leaves nothing to estimate a pose from."""
        random, few = np.random.default_rng(0), replace(prepared, pairs=prepared.pairs[:3])
        noisy = {n: replace(image, descriptors=_noisy(image.descriptors, random)) for n, image in true_images.items()}
        ratio, maa = tune_ratio([(few, noisy)], OPTIONS, (0.9, 0.2))
        assert ratio == 0.9
        assert maa[0.2] == 0 < maa[0.9]

    def test_estimators(self, prepared, true_images):
        result = evaluate_stereo(prepared, true_images, replace(OPTIONS, estimator="opencv", threshold=1.0))
        assert max(max(each.errors) for each in result.results) < 0.5
