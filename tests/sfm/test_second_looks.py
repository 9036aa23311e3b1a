"""Second looks at the pairs of an exact world: what they add is true, and is there once."""

from __future__ import annotations

from functools import partial

import cv2
import numpy as np
import pytest

from colmap_scene import open_few
from logpolar.errors import StorageError
from logpolar.features.features import Features
from logpolar.features.files import FeatureFile
from logpolar.keypoints import Keypoints
from logpolar.matching.files import MatchFile
from logpolar.matching.nearest import Matches
from logpolar.sfm.second_looks import LookSources, look_at_pairs, merge_features, merge_looks, merge_matches
from synthetic_world import standard_world

PAIRS = [("0.png", "1.png"), ("1.png", "2.png"), ("0.png", "deep/5.png")]


def epipolar_errors(pair, first, second) -> np.ndarray:
    """Pixels of points (N, 2) of the second photo from the lines of the first's, by the true cameras."""
    cameras = dict(
        zip(["0.png", "1.png", "2.png", "3.png", "4.png", "deep/5.png"], standard_world().cameras, strict=True)
    )
    a, b = (cameras[name] for name in pair)
    rotation = b.rotation @ a.rotation.T
    x, y, z = b.translation - rotation @ a.translation
    essential = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ rotation
    matrix = np.linalg.inv(b.intrinsics).T @ essential @ np.linalg.inv(a.intrinsics)
    lines = np.concatenate([first, np.ones((len(first), 1))], axis=1) @ matrix.T
    return np.abs((lines[:, :2] * second).sum(axis=1) + lines[:, 2]) / np.linalg.norm(lines[:, :2], axis=1)


def look(scene, folder, pairs=PAIRS, overwrite=False, **changes):
    files = scene / "photos", scene / "features.h5", scene / "matches.h5"
    sources = LookSources(*files, partial(open_few), region_size=400, **changes)
    return look_at_pairs(sources, folder / "looks.h5", pairs, overwrite=overwrite)


@pytest.fixture(scope="module")
def looked(scene, tmp_path_factory):
    folder = tmp_path_factory.mktemp("looked")
    report = look(scene, folder)
    files = scene / "features.h5", scene / "matches.h5", folder / "looks.h5", folder / "merged.h5"
    merge_looks(*files, ["0.png", "1.png", "2.png", "3.png", "deep/5.png"], PAIRS)
    return folder, report


class TestLooks:
    def test_what_is_added_agrees_with_the_true_cameras(self, scene, looked):
        folder, report = looked
        assert (report.pairs, report.gained >= 2) == (3, True)
        with FeatureFile(folder / "looks.h5") as file:
            names = file.names()
            assert names[-1] == "1.png 2.png 2"
            assert "0.png deep%2F5.png 1" in names
            first, second = (file.read(f"0.png 1.png {side}") for side in (1, 2))
        assert report.matches >= len(first) == len(second) > 50
        errors = epipolar_errors(PAIRS[0], first.keypoints.xy, second.keypoints.xy)
        assert (errors < 2).mean() > 0.95
        assert np.allclose(np.linalg.norm(first.descriptors, axis=1), 1, atol=1e-3)

    def test_pairs_that_are_done_are_not_looked_at_again(self, scene, looked, monkeypatch):
        monkeypatch.setattr("logpolar.sfm.second_looks.look_again", None)
        assert look(scene, looked[0]) == looked[1]

    def test_other_settings_are_refused(self, scene, looked):
        files = scene / "photos", scene / "features.h5", scene / "matches.h5"
        with pytest.raises(StorageError, match="region_size"):
            look_at_pairs(LookSources(*files, partial(open_few), region_size=300), looked[0] / "looks.h5", PAIRS)

    def test_nothing_is_added_where_a_photo_is_masked(self, scene, tmp_path):
        mask = np.zeros((240, 320), np.uint8)
        mask[:, 160:] = 255
        cv2.imwrite(str(tmp_path / "mask.png"), mask)
        look(scene, tmp_path, PAIRS[:1], masks={"1.png": tmp_path / "mask.png"})
        with FeatureFile(tmp_path / "looks.h5") as file:
            first, second = (file.read(f"0.png 1.png {side}") for side in (1, 2))
        assert len(first) > 10
        assert (second.keypoints.xy[:, 0] >= 159.5).all()
        assert (first.keypoints.xy[:, 0] < 150).any()


class TestMerging:
    def test_the_first_look_stays_and_matches_of_both_are_there(self, scene, looked):
        folder, report = looked
        gained = 0
        with FeatureFile(folder / "merged.h5") as merged, FeatureFile(scene / "features.h5") as before:
            features = {name: merged.read(name) for name in merged.names()}
            assert sorted(features) == ["0.png", "1.png", "2.png", "3.png", "deep/5.png"]
            for name, found in features.items():
                whole = before.read(name)
                np.testing.assert_array_equal(found.keypoints.xy[: len(whole)], whole.keypoints.xy)
                assert found.scale == whole.scale
        with MatchFile(folder / "merged.h5") as merged, MatchFile(scene / "matches.h5") as before:
            assert merged.pairs() == sorted(PAIRS)
            for pair in PAIRS:
                rows, earlier = merged.read(*pair).indices, before.read(*pair).indices
                assert set(map(tuple, earlier.tolist())) <= set(map(tuple, rows.tolist()))
                assert len(np.unique(rows[:, 0])) == len(np.unique(rows[:, 1])) == len(rows)
                gained += len(rows) - len(earlier)
                here, there = (features[name].keypoints.xy[rows[:, side]] for side, name in enumerate(pair))
                assert (epipolar_errors(pair, here, there) < 3).mean() > 0.8
        assert 0.3 * report.matches < gained <= report.matches

    def test_keypoints_at_one_place_become_one(self):
        def features(xy) -> Features:
            xy = np.array(xy, np.float32).reshape(-1, 2)
            return Features(Keypoints.from_points(xy, 6.0), np.zeros((len(xy), 4), np.float32), (90, 90), 0.5)

        whole = features([[10, 10], [10, 10], [50, 50]])  # twice at one place: two angles
        parts = [features([[11, 10], [30, 30], [70, 70]]), features([[31.5, 30], [49, 50], [80, 80]]), features([])]
        joined, (first, second, third) = merge_features(whole, parts)
        np.testing.assert_array_equal(joined.keypoints.xy[3:], [[30, 30], [70, 70], [80, 80]])
        assert (first.tolist(), second.tolist(), third.tolist()) == ([0, 3, 4], [3, 2, 5], [])

    def test_matches_of_the_first_look_go_first_and_each_keypoint_has_one(self):
        earlier = Matches(np.array([[0, 0], [1, 2]], np.int32), np.ones(2, np.float32))
        found = merge_matches(earlier, np.array([0, 5, 6, 6, 7]), np.array([4, 2, 6, 7, 6]))
        assert found.indices.tolist() == [[0, 0], [1, 2], [6, 6]]
        assert found.distances.tolist() == [1, 1, 0]


def test_a_photo_without_new_keypoints_is_as_it_was():
    whole = Features(Keypoints.from_points(np.zeros((1, 2)), 6.0), np.zeros((1, 4), np.float32), (9, 9))
    joined, rows = merge_features(whole, [])
    assert (len(joined), rows) == (1, [])
