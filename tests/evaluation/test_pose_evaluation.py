from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from logpolar.evaluation.options import PhototourismOptions
from logpolar.evaluation.pose_evaluation import PoseResults, evaluate_multi_view, evaluate_stereo, tune_ratio
from logpolar.evaluation.poses import NO_POSE, PoseScore, find_pose, pose_error, relative_pose
from logpolar.sfm.known_cameras import map_images

OPTIONS = PhototourismOptions(bags_5=3, bags_10=0, bags_25=0)


class TestStereo:
    def test_true_matches(self, prepared, true_images):
        result = evaluate_stereo(prepared, true_images, OPTIONS)
        assert result.score.pairs == 10
        assert max(max(each.errors) for each in result.results) < 0.5
        assert result.score.maa10 == result.score.map15 == 1
        assert result.median("inliers") > 0.9 * result.median("matches") > 100

    def test_shuffled_descriptors(self, prepared, wrong_images):
        few = replace(prepared, pairs=prepared.pairs[:5])
        score = evaluate_stereo(few, wrong_images, replace(OPTIONS, ratio=1.0)).score
        assert score.maa10 < 0.05
        assert score.map15 < 0.15

    def test_result(self, prepared, true_images):
        plain = json.loads(json.dumps(evaluate_stereo(prepared, true_images, OPTIONS).to_dict(), allow_nan=False))
        assert plain["pairs"] == len(plain["rows"]) == 10
        assert plain["rows"][0][:2] == ["0.png", "1.png"]
        assert len(plain["rows"][0]) == len(plain["columns"])

    def test_processes_find_the_same(self, prepared, true_images):
        few = replace(prepared, pairs=prepared.pairs[:3])
        assert evaluate_stereo(few, true_images, OPTIONS, 2) == evaluate_stereo(few, true_images, OPTIONS, 1)

    def test_tuning(self, prepared, true_images):
        """Descriptors so noisy that a strict test leaves nothing to estimate a pose from."""
        random, few = np.random.default_rng(0), replace(prepared, pairs=prepared.pairs[:3])
        noisy = {n: replace(image, descriptors=_noisy(image.descriptors, random)) for n, image in true_images.items()}
        ratio, maa = tune_ratio([(few, noisy)], OPTIONS, (0.9, 0.2))
        assert ratio == 0.9
        assert maa[0.2] == 0 < maa[0.9]

    def test_poselib(self, prepared, true_images):
        pytest.importorskip("poselib")
        result = evaluate_stereo(prepared, true_images, replace(OPTIONS, estimator="poselib"))
        assert max(max(each.errors) for each in result.results) < 0.5
        first, second = true_images[0], true_images[1]
        assert find_pose(first.camera, second.camera, first.xy[:4], second.xy[:4], 1.0, "poselib") == (None, 0)


def _noisy(descriptors, random):
    noisy = descriptors + random.normal(0, 0.06, descriptors.shape).astype(np.float32)
    return noisy / np.linalg.norm(noisy, axis=1, keepdims=True)


class TestMultiView:
    def test_true_matches(self, prepared, true_images):
        result = evaluate_multi_view(prepared, true_images, OPTIONS)
        (bag,) = result.bags[5]
        assert bag.registered == 5
        assert len(bag.errors) == 10
        assert max(max(errors) for errors in bag.errors) < 0.5
        assert result.score.maa10 == result.registered == 1
        assert evaluate_multi_view(prepared, true_images, OPTIONS) == result

    def test_shuffled_descriptors(self, prepared, wrong_images):
        few = {n: replace(each, xy=each.xy[:60], descriptors=each.descriptors[:60]) for n, each in wrong_images.items()}
        result = evaluate_multi_view(replace(prepared, bags={3: [(0, 1, 2)]}), few, OPTIONS)
        assert result.score.maa10 < 0.1
        assert json.dumps(result.to_dict(), allow_nan=False)

    def test_an_image_without_matches_fails(self, prepared, true_images):
        """Four of its pairs: those of the others stay what they were."""
        blank = replace(true_images[2], xy=np.zeros((0, 2), np.float32), descriptors=np.zeros((0, 64), np.float32))
        result = evaluate_multi_view(prepared, {**true_images, 2: blank}, OPTIONS)
        (bag,) = result.bags[5]
        assert bag.registered == 4
        assert sum(errors == NO_POSE for errors in bag.errors) == 4
        assert result.score.maa10 == pytest.approx(0.6)

    def test_scores_are_means_over_sizes(self, prepared, true_images):
        several = replace(prepared, bags={3: [(0, 1, 2), (1, 2, 3)], 5: [(0, 1, 2, 3, 4)]})
        result = evaluate_multi_view(several, true_images, OPTIONS)
        assert [score.pairs for score in result.scores.values()] == [6, 10]
        assert result.score.pairs == 16
        assert list(result.to_dict()["sizes"]) == ["3", "5"]

    def test_no_bags(self, prepared, true_images):
        result = evaluate_multi_view(replace(prepared, bags={25: []}), true_images, OPTIONS)
        assert result.bags == {}
        assert result.to_dict()["maa10"] is None

    def test_nothing_to_map(self, castle_scene):
        cameras = [image.camera for image in castle_scene.images[:3]]
        assert map_images(cameras, [np.zeros((0, 2))] * 3, {}) == {}

    def test_no_temporary_folder_stays(self, prepared, true_images, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        evaluate_multi_view(prepared, true_images, OPTIONS)
        assert list(tmp_path.iterdir()) == []

    def test_poses_are_of_the_library(self, castle_scene, prepared, true_images):
        """Half a pixel too many or too few would turn the cameras."""
        own = [true_images[n] for n in range(5)]
        matched = {}
        for i in range(5):
            for j in range(i + 1, 5):
                rows = np.argwhere((own[i].descriptors @ own[j].descriptors.T) > 0.999)
                matched[i, j] = rows
        poses = map_images([image.camera for image in own], [image.xy for image in own], matched)
        found = {n: replace(own[n].camera, rotation=pose[0], translation=pose[1]) for n, pose in poses.items()}
        for i, j in matched:
            truth = relative_pose(own[i].camera, own[j].camera)
            assert max(pose_error(truth, relative_pose(found[i], found[j]))) < 0.02


class TestResults:
    def test_records_and_means(self, prepared, true_images, wrong_images):
        """Two scenes that count the same: one that is all right, one of three pairs."""
        few = replace(prepared, pairs=prepared.pairs[:3])
        found = PoseResults(0.9, {0.8: 0.5, 0.9: float("nan")})
        found.stereo["right"] = evaluate_stereo(prepared, true_images, OPTIONS)
        found.stereo["wrong"] = evaluate_stereo(few, wrong_images, OPTIONS)
        wrong = found.stereo["wrong"].score
        assert found.means()["two"] == PoseScore(13, (1 + wrong.maa10) / 2, (1 + wrong.map15) / 2)
        assert found.fractions((10,)) == [(1 + found.stereo["wrong"].fractions((10,))[0]) / 2]
        assert [(record["scene"], record["pairs"]) for record in found.records()] == [
            *(("right", 10), ("wrong", 3), ("mean", 13)),
        ]
        assert found.to_dict()["maa10_by_tuned_ratio"] == {"0.8": 0.5, "0.9": None}
