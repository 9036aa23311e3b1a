from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from logpolar.evaluation.multi_view import evaluate_multi_view
from logpolar.evaluation.options import PhototourismOptions
from logpolar.evaluation.poses import NO_POSE, pose_error, relative_pose
from logpolar.keypoints import Keypoints
from logpolar.sfm.known_cameras import map_images

OPTIONS = PhototourismOptions(bags_5=3, bags_10=0, bags_25=0)


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
        few = {
            n: replace(each, keypoints=each.keypoints[:60], descriptors=each.descriptors[:60])
            for n, each in wrong_images.items()
        }
        result = evaluate_multi_view(replace(prepared, bags={3: [(0, 1, 2)]}), few, OPTIONS)
        assert result.score.maa10 < 0.1
        assert json.dumps(result.to_dict(), allow_nan=False)

    def test_an_image_without_matches_fails(self, prepared, true_images):
        """Four of its pairs: those of the others stay what they were."""
        blank = replace(true_images[2], keypoints=Keypoints.empty(), descriptors=np.zeros((0, 64), np.float32))
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
        poses = map_images([image.camera for image in own], [image.keypoints.xy for image in own], matched)
        found = {n: replace(own[n].camera, rotation=pose[0], translation=pose[1]) for n, pose in poses.items()}
        for i, j in matched:
            truth = relative_pose(own[i].camera, own[j].camera)
            assert max(pose_error(truth, relative_pose(found[i], found[j]))) < 0.02
