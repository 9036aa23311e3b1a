from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from logpolar.features.features import Features
from logpolar.geometry import verification
from logpolar.geometry.guided import match_near
from logpolar.geometry.options import EstimationOptions
from logpolar.geometry.verification import match_and_verify
from logpolar.keypoints import Keypoints
from logpolar.matching.nearest import match_features
from logpolar.matching.options import MatchingOptions

CAMERA = "SIMPLE_PINHOLE,400,400,500,200,200"


@pytest.fixture(scope="module")
def pair() -> tuple[Features, Features]:
    """120 points in depth, seen from two places; of 30 the descriptor leads elsewhere."""
    random = np.random.default_rng(0)
    world = random.uniform((-1, -1, 4), (1, 1, 8), (120, 3))
    views = [500 * moved[:, :2] / moved[:, 2:] + 199.5 for moved in (world, world + np.array([0.5, 0, 0]))]
    descriptors = random.normal(size=(120, 16)).astype(np.float32)
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    elsewhere = np.r_[np.arange(90), 90 + random.permutation(30)]
    first = Features(Keypoints.from_points(views[0], 4.0), descriptors, (400, 400))
    return first, Features(Keypoints.from_points(views[1], 4.0), descriptors[elsewhere], (400, 400))


def test_pose(pair):
    unguided = EstimationOptions(guided=False)
    found = match_and_verify(*pair, "pose", MatchingOptions(), unguided, cameras=(CAMERA, CAMERA))
    np.testing.assert_allclose(found.pose.rotation, np.eye(3), atol=1e-4)
    np.testing.assert_allclose(found.pose.translation, (1, 0, 0), atol=1e-4)
    assert found.geometry.inliers[:90].all()
    assert found.geometry.inliers[90:].mean() < 0.3
    plain = found.to_dict()
    assert (plain["geometry"], plain["matches"], plain["common_scene"]) == ("pose", 120, True)
    assert np.shape(plain["rotation"]) == (3, 3)


@pytest.mark.parametrize("model", ["fundamental", "homography"])
def test_without_cameras(pair, model):
    found = match_and_verify(*pair, model, MatchingOptions(0.8), EstimationOptions("opencv", threshold=2))
    assert found.pose is None
    assert found.to_dict()["rotation"] is None
    assert found.geometry.inlier_count >= (85 if model == "fundamental" else 4)


def test_none(pair):
    found = match_and_verify(*pair, "none")
    assert found.geometry.inliers.all()
    assert found.to_dict()["common_scene"] is None


def test_a_pose_needs_cameras(pair):
    with pytest.raises(ValueError, match="cameras"):
        match_and_verify(*pair, "pose")


@pytest.mark.parametrize("model", ["pose", "fundamental", "homography"])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_guided_matching_finds_what_the_ratio_test_rejects(model, scale):
    """Every second point has a twin elsewhere in the second image, whose descriptor is as near."""
    random = np.random.default_rng(0)
    xy = random.uniform(20, 380, (100, 2))
    depth = np.full(100, 5.0) if model == "homography" else random.uniform(4, 8, 100)
    moved = xy + np.stack([250 / depth, np.zeros(100)], axis=1)
    descriptors = random.normal(size=(100, 32)).astype(np.float32)
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    noise = 0.02 * random.normal(size=(150, 32)).astype(np.float32)
    twins = np.concatenate([descriptors, descriptors[:50]]) + noise
    twins /= np.linalg.norm(twins, axis=1, keepdims=True)
    there = np.concatenate([moved, random.uniform(0, 400, (50, 2))])
    first = Features(Keypoints.from_points(xy, 4.0), descriptors, (400, 400), scale)
    second = Features(Keypoints.from_points(there, 4.0), twins, (400, 400), scale)
    matching, options = MatchingOptions(0.8), EstimationOptions(threshold=1)
    plain, found = (
        match_and_verify(first, second, model, matching, replace(options, guided=guided), cameras=(CAMERA, CAMERA))
        for guided in (False, True)
    )
    assert plain.unguided is None
    np.testing.assert_array_equal(found.unguided.indices, plain.matches.indices)
    assert plain.geometry.inlier_count < 65
    assert found.geometry.inlier_count > 90
    right = found.matches.indices[:, 0] == found.matches.indices[:, 1]
    assert right.mean() > 0.9
    assert found.geometry.significance == plain.geometry.significance


def test_matches_of_a_learned_matcher_are_not_guided(pair, monkeypatch):
    def match(first, second, options, *, device):
        return match_features(first, second, replace(options, matcher="nearest"), device=device)

    asked = []

    def match_again(*arguments):
        asked.append(arguments)
        return match_near(*arguments)

    monkeypatch.setattr(verification, "match_features", match)
    monkeypatch.setattr(verification, "match_near", match_again)
    assert match_and_verify(*pair, matching=MatchingOptions(matcher="learned")).geometry.common_scene
    assert not asked
    assert match_and_verify(*pair).geometry.common_scene
    assert asked


def test_guided_matching_needs_a_common_scene(pair):
    """Nothing can be predicted from matches that agree by chance."""
    shuffled = replace(pair[1], descriptors=np.random.default_rng(0).permutation(pair[1].descriptors))
    plain, found = (
        match_and_verify(pair[0], shuffled, "fundamental", estimation=EstimationOptions(guided=guided))
        for guided in (False, True)
    )
    assert not plain.geometry.common_scene
    np.testing.assert_array_equal(found.matches.indices, plain.matches.indices)
