from __future__ import annotations

import numpy as np
import pytest

from logpolar.features.features import Features
from logpolar.geometry.options import EstimationOptions
from logpolar.geometry.verification import match_and_verify
from logpolar.keypoints import Keypoints
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
    found = match_and_verify(*pair, "pose", cameras=(CAMERA, CAMERA))
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
