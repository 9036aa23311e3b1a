from __future__ import annotations

import numpy as np
import pytest

from logpolar.errors import StorageError
from logpolar.geometry.cameras import Camera
from logpolar.sfm.known_cameras import map_images


@pytest.fixture(scope="module")
def cameras(posed_world):
    return [Camera(c.width, c.height, c.intrinsics, c.rotation, c.translation) for c in posed_world.cameras]


@pytest.fixture(scope="module")
def keypoints_and_matches(posed_world):
    """Exact projections; a point has the same row in all images, whether it is seen or not."""
    points = posed_world.sparse_points(np.random.default_rng(0), 100)
    matches = {}
    for i in range(len(posed_world.cameras)):
        for j in range(i + 1, len(posed_world.cameras)):
            both = np.flatnonzero(points.seen[:, i] & points.seen[:, j])
            matches[i, j] = np.stack([both, both], axis=1)
    return [np.nan_to_num(points.xy[:, n]) for n in range(len(posed_world.cameras))], matches


def test_relative_rotations_are_those_of_the_world(cameras, keypoints_and_matches):
    """Half a pixel too many or too few would rotate the cameras."""
    poses = map_images(cameras, *keypoints_and_matches)
    assert len(poses) >= 5
    for i, (first, _) in poses.items():
        for j, (second, _) in poses.items():
            truth = cameras[i].rotation @ cameras[j].rotation.T
            angle = np.degrees(np.arccos(np.clip((np.trace(first @ second.T @ truth.T) - 1) / 2, -1, 1)))
            assert angle < 0.05
    again = map_images(cameras, *keypoints_and_matches)
    assert {n: pose[0].tolist() for n, pose in again.items()} == {n: pose[0].tolist() for n, pose in poses.items()}


def test_nothing_matched_is_no_model(cameras):
    assert map_images(cameras[:3], [np.zeros((0, 2))] * 3, {}) == {}


def test_errors_of_colmap_are_one_line(cameras, monkeypatch):
    def fail(*arguments):
        raise RuntimeError("no more memory\nstack trace")

    monkeypatch.setattr("logpolar.sfm.known_cameras.run_mapper", fail)
    with pytest.raises(StorageError, match=r"COLMAP could not map 3 images \(no more memory\)"):
        map_images(cameras[:3], [np.zeros((0, 2))] * 3, {})
