from __future__ import annotations

import builtins
import json
from dataclasses import replace

import numpy as np
import pytest

from function_describer import uncached
from logpolar.errors import MissingExtraError
from logpolar.evaluation.cache import Uncached
from logpolar.evaluation.descriptors.keypoint_sources import KeypointSource
from logpolar.evaluation.descriptors.whole_features import WholeFeature
from logpolar.evaluation.options import PhototourismOptions
from logpolar.evaluation.phototourism import describe_images, prepare_scene
from logpolar.evaluation.pose_evaluation import (
    DescribedImage,
    PoseResults,
    PreparedScene,
    evaluate_multi_view,
    evaluate_stereo,
    tune_ratio,
)
from logpolar.evaluation.posed_scenes import PosedImage, PosedScene, draw_bags, draw_pairs
from logpolar.evaluation.poses import NO_POSE, PoseScore, find_pose, pose_error, relative_pose
from logpolar.features.sift import root_sift
from logpolar.geometry.cameras import Camera
from logpolar.keypoints import Keypoints
from logpolar.sfm.known_cameras import map_images

OPTIONS = PhototourismOptions(bags_5=3, bags_10=0, bags_25=0)


@pytest.fixture(scope="module")
def points(posed_world):
    return posed_world.sparse_points(np.random.default_rng(0), 200)


@pytest.fixture(scope="module")
def scene(posed_world) -> PosedScene:
    """Camera 5 sees nothing that others do, by what the pairs say."""
    cameras = [Camera(c.width, c.height, c.intrinsics, c.rotation, c.translation) for c in posed_world.cameras]
    views = [image for image, _ in posed_world.views]
    images = [PosedImage(f"{n}.png", camera, lambda n=n: views[n]) for n, camera in enumerate(cameras)]
    return PosedScene("castle", images, [(i, j) for i in range(5) for j in range(i + 1, 5)])


@pytest.fixture(scope="module")
def prepared(scene, points) -> PreparedScene:
    """Keypoints where the points of the world are, to the last bits of a float32."""
    keypoints = {n: Keypoints.from_points(points.xy[points.seen[:, n], n]) for n in range(5)}
    return PreparedScene(scene, scene.pairs, {5: [(0, 1, 2, 3, 4)]}, {}, keypoints)


@pytest.fixture(scope="module")
def true_images(scene, points, prepared) -> dict[int, DescribedImage]:
    """Each point of the world has a descriptor of its own."""
    own = np.random.default_rng(1).normal(size=(len(points.xyz), 64)).astype(np.float32)
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    return {
        n: DescribedImage(scene.images[n].camera, keypoints.xy, own[points.seen[:, n]])
        for n, keypoints in prepared.keypoints.items()
    }


@pytest.fixture(scope="module")
def wrong_images(true_images) -> dict[int, DescribedImage]:
    random = np.random.default_rng(2)
    return {n: replace(image, descriptors=random.permutation(image.descriptors)) for n, image in true_images.items()}


class TestDrawing:
    def test_pairs(self, scene):
        assert draw_pairs(scene, 0, 0) == draw_pairs(scene, 10, 0) == draw_pairs(scene, 99, 5) == scene.pairs
        some = draw_pairs(scene, 4, 0)
        assert len(set(some)) == 4
        assert set(some) < set(scene.pairs)
        assert some == draw_pairs(scene, 4, 0)
        assert len({tuple(draw_pairs(scene, 4, seed)) for seed in range(6)}) > 1

    def test_bags_hang_together(self, scene):
        chain = replace(scene, pairs=[(0, 1), (1, 2), (2, 3), (4, 5)])
        assert set(draw_bags(chain, 3, 50, 0)) == {(0, 1, 2), (1, 2, 3)}
        assert draw_bags(chain, 3, 1, 0) == draw_bags(chain, 3, 1, 0)
        assert draw_bags(chain, 5, 3, 0) == []

    def test_bags_of_a_size_differ(self, scene):
        bags = draw_bags(scene, 3, 8, 1)
        assert len(set(bags)) == 8
        assert 5 not in {row for bag in bags for row in bag}


class TestStereo:
    def test_true_matches(self, prepared, true_images):
        result = evaluate_stereo(prepared, true_images, OPTIONS)
        assert result.score.pairs == 10
        assert max(max(each.errors) for each in result.results) < 0.5
        assert result.score.maa10 == result.score.map15 == 1
        assert result.median("inliers") > 0.9 * result.median("matches") > 100

    def test_shuffled_descriptors(self, prepared, wrong_images):
        score = evaluate_stereo(prepared, wrong_images, replace(OPTIONS, ratio=1.0)).score
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

    def test_without_poselib(self, scene, monkeypatch):
        imported = builtins.__import__

        def refuse(name, *arguments):
            if name == "poselib":
                raise ImportError(name)
            return imported(name, *arguments)

        monkeypatch.setattr(builtins, "__import__", refuse)
        with pytest.raises(MissingExtraError, match=r"logpolar\[poselib\]"):
            prepare_scene(scene, replace(OPTIONS, estimator="poselib"))


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
        result = evaluate_multi_view(replace(prepared, bags={3: [(0, 1, 2)]}), wrong_images, OPTIONS)
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

    def test_nothing_to_map(self, scene):
        cameras = [image.camera for image in scene.images[:3]]
        assert map_images(cameras, [np.zeros((0, 2))] * 3, {}) == {}

    def test_no_temporary_folder_stays(self, prepared, true_images, tmp_path, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        evaluate_multi_view(prepared, true_images, OPTIONS)
        assert list(tmp_path.iterdir()) == []

    def test_poses_are_of_the_library(self, scene, prepared, true_images):
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


class TestDetected:
    def test_real_keypoints(self, scene):
        options = replace(OPTIONS, keypoints=300)
        ready = prepare_scene(scene, options)
        assert ready.bags == {}
        assert set(ready.views) == {row for pair in ready.pairs for row in pair}
        assert all(0 < len(keypoints) <= 300 for keypoints in ready.keypoints.values())
        counted = []
        images = describe_images(ready, uncached(lambda view, points: counted.append(1) or root_sift(view, points)))
        assert len(counted) == len(ready.views)
        # Tiny images, some at 2.5 times the distance: far from right, and as far from chance, which is below 0.05.
        assert evaluate_stereo(ready, images, options).score.maa10 > 0.2

    def test_own_keypoints(self, scene, prepared, true_images):
        """A whole feature that finds the points of the world: poses are right, whatever was prepared."""
        ready = prepare_scene(scene, replace(OPTIONS, keypoints=5, pairs=4))
        by_view = {
            view.tobytes(): (prepared.keypoints[row], true_images[row].descriptors) for row, view in ready.views.items()
        }
        feature = WholeFeature(lambda view: by_view[view.tobytes()])
        images = describe_images(ready, Uncached(feature), KeypointSource(feature.detect, {"kind": "truth"}))
        result = evaluate_stereo(ready, images, OPTIONS)
        assert max(max(each.errors) for each in result.results) < 0.5

    def test_wrong_descriptors(self, scene):
        ready = prepare_scene(scene, replace(OPTIONS, pairs=1))
        with pytest.raises(ValueError, match="finite"):
            describe_images(ready, uncached(lambda view, points: np.full((len(points), 8), np.nan, np.float32)))
