from __future__ import annotations

import base64
import json
import re
from dataclasses import replace

import cv2
import numpy as np
import pytest

from logpolar.features.features import Features
from logpolar.geometry.two_view import Geometry
from logpolar.geometry.verification import VerifiedMatches, match_and_verify
from logpolar.keypoints import Keypoints
from logpolar.matching.nearest import Matches
from logpolar.matching.options import MatchingOptions
from logpolar.sampling import Cartesian, LogPolar
from logpolar.viewing.pages import pair
from logpolar.viewing.pages.pair import Side, align_patches, atlas, nearest_candidates, pair_data, ratios, short_names

DTYPES = {"f4": "<f4", "i4": "<i4", "i2": "<i2", "i1": "i1", "u1": "u1"}
PATTERN = LogPolar(24, 8, 16)
NO_MATCHES = Matches(np.zeros((0, 2), np.int32), np.zeros(0, np.float32))


def unpack(packed):
    return np.frombuffer(base64.b64decode(packed["data"]), DTYPES[packed["type"]]).reshape(packed["shape"])


@pytest.fixture
def shown(pair_page):
    text = pair_page.read_text(encoding="utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', text).group(1))


def some_side(count, seed=0, name="a.png"):
    random = np.random.default_rng(seed)
    descriptors = random.normal(size=(count, 128)).astype(np.float32)
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    image = random.integers(0, 256, (40, 60), np.uint8)
    keypoints = Keypoints.from_points(random.uniform(0, 40, (count, 2)), np.full(count, 3.0))
    return Side(name, image, Features(keypoints, descriptors, (60, 40)))


class TestPage:
    def test_stages_and_funnel_count_the_same(self, shown):
        stage = unpack(shown["stage"])
        counts = dict(shown["funnel"])
        assert counts["agree with the geometry"] == (stage == 3).sum() == shown["inliers"] > 20
        assert counts["ratio test, 0.99"] == (stage >= 1).sum()
        assert counts["mutual nearest neighbours"] == len(stage)
        assert counts["consensus filter"] == (stage >= 2).sum() == shown["matches_count"]
        assert shown["hidden"] == 0

    def test_changes_of_size_and_rotation_are_those_of_the_view(self, shown):
        first, second = (unpack(image["keypoints"]) for image in shown["images"])
        rows = unpack(shown["matches"])[unpack(shown["stage"]) == 3]
        ratio = second[rows[:, 1], 2] / first[rows[:, 0], 2]
        rotation = (second[rows[:, 1], 3] - first[rows[:, 0], 3]) % 360
        assert np.median(ratio) == pytest.approx(0.6, rel=0.1)
        assert np.median(rotation) == pytest.approx(330, abs=5)  # OpenCV turns counter-clockwise, angles are clockwise

    def test_patches_are_in_the_atlas_in_the_order_of_the_matches(self, shown):
        data = base64.b64decode(shown["patches"][0].partition(",")[2])
        sheet = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE)
        height, width = shown["patch_size"]
        count = len(unpack(shown["stage"]))
        assert sheet.shape == (height * -(-count // 50), 50 * width)
        assert sheet[:height, :width].std() > 10

    def test_own_candidate_comes_first_among_inliers(self, shown):
        inliers = unpack(shown["stage"]) == 3
        assert (unpack(shown["candidates"])[inliers, 0] == unpack(shown["matches"])[inliers, 1]).all()
        assert (np.diff(unpack(shown["candidate_distances"]), axis=1) >= -1e-6).all()


class TestFewAndNone:
    @pytest.mark.parametrize("counts", [(0, 0), (0, 5), (5, 0), (1, 1)])
    def test_a_page_is_made(self, counts):
        sides = some_side(counts[0]), some_side(counts[1], 1)
        found = match_and_verify(sides[0].features, sides[1].features, "homography", MatchingOptions())
        data = pair_data(sides, found, PATTERN, MatchingOptions(), 3.0)
        assert len(unpack(data["stage"])) == data["matches_count"] == min(counts)
        json.dumps(data, allow_nan=False)

    def test_chance_is_no_agreement(self):
        """Inliers of a geometry that chance explains are not drawn as such."""
        sides = some_side(30), some_side(30, 1)
        matches = Matches(np.stack([np.arange(9), np.arange(9)], axis=1).astype(np.int32), np.ones(9, np.float32))
        xy = sides[0].features.keypoints.xy[:9]
        for significance, stage in ((-1.0, 2), (50.0, 3)):
            geometry = Geometry(np.eye(3), np.ones(9, np.bool_), significance)
            found = VerifiedMatches("homography", matches, geometry, xy, xy)
            data = pair_data(sides, found, PATTERN, MatchingOptions(), 3.0)
            rows = unpack(data["matches"])
            assert (unpack(data["stage"])[(rows[:, 0] == rows[:, 1]) & (rows[:, 0] < 9)] == stage).all()

    def test_more_matches_than_fit(self, monkeypatch):
        monkeypatch.setattr(pair, "MAX_MATCHES", 3)
        side = some_side(9)
        found = match_and_verify(side.features, side.features, "none")
        data = pair_data((side, side), found, PATTERN, MatchingOptions(), 3.0)
        assert (len(unpack(data["stage"])), data["hidden"]) == (3, 6)


class TestGuidedMatching:
    def test_counts_what_was_before_and_keeps_its_confidence(self):
        side = some_side(9)
        xy, every = side.features.keypoints.xy, np.tile(np.arange(9, dtype=np.int32)[:, None], 2)
        before = Matches(every[:4], np.zeros(4, np.float32), np.full(4, 0.5, np.float32))
        geometry = Geometry(np.eye(3), np.arange(9) < 7, 50.0)
        found = VerifiedMatches("homography", Matches(every, np.zeros(9)), geometry, xy, xy, unguided=before)
        data = pair_data((side, side), found, PATTERN, MatchingOptions(matcher="learned"), 3.0)
        assert [value for _, value in data["funnel"]] == [9, 4, 9, 7]
        order = np.argsort(unpack(data["matches"])[:, 0])
        np.testing.assert_array_equal(unpack(data["confidence"])[order], [0.5] * 4 + [0] * 5)


class TestSecondLook:
    def test_keypoints_of_different_looks_are_not_compared(self):
        """The second look has found the same keypoints again: each match is that of its own look."""
        once = some_side(9)
        features = once.features
        twice = Features(features.keypoints + features.keypoints, np.tile(features.descriptors, (2, 1)), (60, 40))
        side = replace(once, features=twice)
        every = np.tile(np.arange(18, dtype=np.int32)[:, None], 2)
        geometry, xy = Geometry(np.eye(3), np.ones(18, np.bool_), 50.0), twice.keypoints.xy
        found = VerifiedMatches("homography", Matches(every, np.zeros(18)), geometry, xy, xy, looks=((9, 9), (9, 9)))
        data = pair_data((side, side), found, PATTERN, MatchingOptions(0.9), 3.0)
        rows = unpack(data["matches"])
        np.testing.assert_array_equal(rows[np.argsort(rows[:, 0])], every)
        assert ((unpack(data["candidates"]) < 9) == (rows[:, :1] < 9)).all()
        assert (unpack(data["ratio"]) < 0.01).all()
        assert tuple(data["funnel"][0]) == (
            "keypoints of all looks, fewer of both",
            18,
        )
        assert [value for _, value in data["funnel"]][1:3] == [18, 18]


class TestLearnedMatcher:
    def test_confidence_and_stages(self):
        side = some_side(9)
        pairs = np.array([[0, 0], [1, 1], [2, 5]], np.int32)  # the last is no nearest neighbour
        chosen = Matches(pairs, np.ones(3, np.float32), np.array([0.9, 0.8, 0.7], np.float32))
        geometry = Geometry(np.eye(3), np.array([True, True, False]), 50.0)
        xy = side.features.keypoints.xy
        found = VerifiedMatches("homography", chosen, geometry, xy[pairs[:, 0]], xy[pairs[:, 1]])
        data = pair_data((side, side), found, PATTERN, MatchingOptions(matcher="learned"), 3.0)
        columns = (unpack(data[name]).tolist() for name in ("matches", "stage", "confidence"))
        of = {tuple(row): (stage, np.float32(sure)) for row, stage, sure in zip(*columns, strict=True)}
        assert of[0, 0] == (3, np.float32(0.9))
        assert of[2, 5] == (2, np.float32(0.7))
        assert of[4, 4] == (1, 0)
        assert [value for _, value in data["funnel"]] == [9, 3, 2]
        assert data["stages"][:2] == ["", "nearest neighbours that the matcher did not choose"]


def test_only_log_polar_patches_are_aligned_by_columns():
    side = some_side(5)
    found = match_and_verify(side.features, side.features, "none")
    polar, square = (
        pair_data((side, side), found, each, MatchingOptions(), 3.0)["polar"] for each in (PATTERN, Cartesian(12, 8, 8))
    )
    assert (polar, square) == ({"ratio": 128.0, "pixel_weight": 0.0}, None)


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (("x/a.jpg", "y/b.jpg"), ("a.jpg", "b.jpg")),
        (("x/y/a.jpg", "z/y/a.jpg"), ("x/y/a.jpg", "z/y/a.jpg")),
        (("/q/x/a.jpg", "/q/y/a.jpg"), ("x/a.jpg", "y/a.jpg")),
        (("a.jpg", "a.jpg"), ("a.jpg", "a.jpg")),
    ],
)
def test_short_names_tell_files_apart(paths, names):
    assert short_names(*paths) == names


class TestGeometry:
    def test_epipolar_lines_of_a_pose_are_those_of_its_cameras(self):
        side = some_side(6)
        xy = side.features.keypoints.xy
        essential, camera = np.array([[0, 0, 1.0], [0, 0, -2], [-1, 2, 0]]), np.diag([50.0, 60.0, 1.0])
        found = VerifiedMatches(
            "pose", Matches(np.zeros((0, 2), np.int32), np.zeros(0)), Geometry(essential, None), xy, xy
        )
        inverse = np.linalg.inv(camera)
        np.testing.assert_allclose(
            pair._fundamental(found, (camera, camera)), inverse.T @ essential @ inverse, atol=1e-9
        )

    def test_a_lens_that_bends_lines_has_none(self):
        xy = some_side(6).features.keypoints.xy
        found = VerifiedMatches(
            "pose", Matches(np.zeros((0, 2), np.int32), np.zeros(0)), Geometry(np.eye(3), None), xy, xy
        )
        bent = "SIMPLE_RADIAL,60,40,50,30,20,0.5"
        assert pair._fundamental(found, (bent, bent)) is None


class TestCandidates:
    def test_by_sorting_all_distances(self):
        first, second = (some_side(n, n).features.descriptors for n in (7, 40))
        rows, distances = nearest_candidates(first, second)
        every = np.linalg.norm(first[:, None] - second[None], axis=2)
        np.testing.assert_array_equal(rows, every.argsort(axis=1)[:, :4])
        np.testing.assert_allclose(distances, np.sort(every, axis=1)[:, :4], atol=1e-5)

    def test_ratio_is_to_the_nearest_other(self):
        neighbours, distances = (
            np.array([[5, 7, 9], [5, 7, 9], [5, -1, -1]]),
            np.array([[1, 2, 4], [1, 2, 4], [3, 0, 0.0]]),
        )
        own, distance = np.array([5, 9, 5]), np.array([1.0, 4.0, 3.0])
        np.testing.assert_allclose(ratios(distance, neighbours, distances, own), [0.5, 4, 0])


class TestAlignment:
    @pytest.mark.parametrize(("rolled", "moved"), [(0, 0), (3, 0), (-5, 2), (0, -4)])
    def test_undoes_what_was_done(self, rolled, moved):
        wide = np.random.default_rng(0).normal(size=(4, 16, 40)).cumsum(axis=2).astype(np.float32)
        first = wide[:, :, 12:28]
        second = np.roll(wide[:, :, 12 - moved : 28 - moved], rolled, axis=1)
        roll, shift, correlation = align_patches(first, second)
        np.testing.assert_array_equal(roll, rolled)
        np.testing.assert_array_equal(shift, moved)
        assert (correlation > 0.8).all()

    def test_blank_patches(self):
        _, _, correlation = align_patches(np.ones((2, 8, 8), np.float32), np.zeros((2, 8, 8), np.float32))
        np.testing.assert_array_equal(correlation, 0)


def test_atlas_stretches_each_patch():
    patches = np.stack([np.full((2, 3), 0.5), np.arange(6).reshape(2, 3) / 50]).astype(np.float32)
    sheet = atlas(patches)
    assert sheet.shape == (2, 150)
    np.testing.assert_array_equal(sheet[:, 3:6].ravel(), [0, 51, 102, 153, 204, 255])
    assert not sheet[:, 6:].any()


class TestUpright:
    """Photos that a camera stored sideways are shown upright, with everything in them."""

    @pytest.mark.parametrize("orientation", [1, 3, 6, 8])
    def test_keypoints_point_to_the_same_pixels(self, orientation):
        image = np.zeros((40, 60), np.uint8)
        image[10:13, 30:45] = 255  # a bar: from its left end, angle 0 points along it
        keypoints = Keypoints(*(np.array(each, np.float32) for each in ([[31, 11]], [4], [0], [1])))
        shown = Side("a.png", image, Features(keypoints, np.ones((1, 4), np.float32), (60, 40)), orientation).shown()
        data = base64.b64decode(shown["photo"].partition(",")[2])
        photo = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE)
        assert photo.shape == (shown["height"], shown["width"])
        x, y, _, angle = unpack(shown["keypoints"])[0]
        direction = np.cos(np.radians(angle)), np.sin(np.radians(angle))
        for far, bright in ((0, True), (11, True), (-8, False)):
            at = round(float(y + far * direction[1])), round(float(x + far * direction[0]))
            assert (photo[at] > 128) == bright

    def test_geometry_maps_what_is_shown(self):
        matrix = np.array([[1.1, 0.1, 3], [-0.2, 0.9, 5], [1e-4, 2e-4, 1]])
        here = np.array([[10.0, 8, 1], [20, 15, 1], [30, 5, 1]])
        there = here @ matrix.T
        sides = [replace(some_side(3), orientation=each) for each in (6, 8)]
        found = VerifiedMatches(
            "homography", NO_MATCHES, Geometry(matrix, np.ones(0, np.bool_)), here[:0, :2], here[:0, :2]
        )
        shown = pair._geometry(found, None, sides[0].to_upright, sides[1].to_upright)
        mapped = (here @ sides[0].to_upright.T) @ np.array(shown["matrix"]).T
        expected = there @ sides[1].to_upright.T
        np.testing.assert_allclose(mapped[:, :2] / mapped[:, 2:], expected[:, :2] / expected[:, 2:], atol=1e-9)
