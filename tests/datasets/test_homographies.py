from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest

from logpolar.datasets import homographies
from logpolar.datasets.homographies import change_light, make_photo_pair, make_view_pair
from logpolar.datasets.options import CorrespondenceRules, KeypointRules, ViewOptions
from logpolar.geometry.homography import warp_points, wrap_degrees
from logpolar.images import encode_gray, to_bytes

OPTIONS = ViewOptions(min_side=90, rules=CorrespondenceRules(max_count=40))
SEEDS = range(6)


@pytest.fixture(scope="module")
def pixels(gray):
    return to_bytes(gray)


@pytest.fixture(scope="module")
def pairs(pixels):
    return [make_view_pair(pixels[:300, 50:450], pixels[300:], OPTIONS, np.random.default_rng(s)) for s in SEEDS]


@pytest.fixture
def same_light(monkeypatch):
    monkeypatch.setattr(homographies, "change_light", lambda view, random: view)
    monkeypatch.setattr(homographies, "compress", lambda view, quality, random: encode_gray(view, 100))


def correlation_inside(pair, shift=(0.0, 0.0)) -> float:
    """Of the second view and the first, warped and shifted, where both show the photo."""
    homography = np.array([[1, 0, shift[0]], [0, 1, shift[1]], [0, 0, 1.0]]) @ pair.homography
    shape = pair.second.shape[::-1]
    first = cv2.GaussianBlur(pair.first, (0, 0), 0.5 * max(1 / pair.zoom, 1))
    warped = cv2.warpPerspective(first, homography, shape)
    inside = cv2.erode(cv2.warpPerspective(np.full_like(first, 255), homography, shape), np.ones((9, 9))) == 255
    assert inside.sum() > 1000
    return float(np.corrcoef(warped[inside], pair.second[inside])[0, 1])


def same(one, other) -> bool:
    return (
        np.array_equal(one.first, other.first)
        and np.array_equal(one.second, other.second)
        and np.array_equal(one.homography, other.homography)
        and np.array_equal(one.correspondences.first.xy, other.correspondences.first.xy)
        and np.array_equal(one.correspondences.second.xy, other.correspondences.second.xy)
        and np.array_equal(one.second_keypoints.xy, other.second_keypoints.xy)
    )


class TestViews:
    def test_homography_maps_the_first_view_to_the_second(self, pixels, same_light):
        for seed in SEEDS:
            pair = make_view_pair(pixels[:300, 50:450], pixels[300:], OPTIONS, np.random.default_rng(seed))
            assert correlation_inside(pair) > 0.98

    def test_also_in_another_light(self, pairs):
        """Light changes spare the place of things: every shift by a few pixels makes the views less alike."""
        for pair in pairs:
            right = correlation_inside(pair)
            assert right > 0.8
            assert all(correlation_inside(pair, shift) < right for shift in ((3, 0), (-3, 0), (0, 3), (0, -3)))

    def test_first_view_is_a_crop_of_the_photo(self, pixels, same_light):
        photo = pixels[:300, 50:450]
        pair = make_view_pair(photo, pixels[300:], OPTIONS, np.random.default_rng(0))
        assert cv2.matchTemplate(photo, pair.first, cv2.TM_SQDIFF).min() == 0
        assert (np.array(pair.first.shape) >= np.array(photo.shape) * OPTIONS.min_crop - 1).all()

    def test_backdrop_shows_past_the_edge(self, pixels, same_light):
        photo, backdrop = np.maximum(pixels[:200, :200], 1), np.zeros((50, 60), np.uint8)
        options = replace(OPTIONS, max_zoom=1.0001, max_rotation=180.0)
        views = [make_view_pair(photo, backdrop, options, np.random.default_rng(seed)).second for seed in range(4)]
        assert any((view == 0).mean() > 0.05 for view in views)
        bright = [make_view_pair(photo, backdrop + 255, options, np.random.default_rng(s)).second for s in range(4)]
        for dark_view, bright_view in zip(views, bright, strict=True):
            np.testing.assert_array_equal(bright_view[dark_view == 0], 255)

    def test_zoom_is_within_bounds_and_that_of_the_homography(self, pixels):
        zooms = []
        for seed in range(30):
            options = replace(OPTIONS, max_zoom=2.25, keypoints=KeypointRules(max_keypoints=1))
            pair = make_view_pair(pixels[:260, :260], pixels, options, np.random.default_rng(seed))
            zooms.append(pair.zoom)
            centre = (np.array(pair.first.shape[::-1]) - 1) / 2
            _, jacobian = warp_points(pair.homography, centre[None])
            assert abs(np.log(np.sqrt(abs(np.linalg.det(jacobian[0]))) / pair.zoom)) < 0.5
            assert min(pair.second.shape) >= options.min_side
        assert 1 / 2.25 <= min(zooms) < 0.6
        assert 1.2 < max(zooms) <= 1.5

    def test_without_changes_only_a_shift_is_left(self, pixels):
        options = replace(OPTIONS, max_zoom=1.0, max_tilt=0.0, max_rotation=1e-6)
        pair = make_view_pair(pixels, pixels, options, np.random.default_rng(0))
        matrix = pair.homography / pair.homography[2, 2]
        np.testing.assert_allclose(matrix[:2, :2], np.eye(2), atol=1e-4)
        np.testing.assert_allclose(matrix[2], [0, 0, 1], atol=1e-6)
        assert pair.zoom == 1

    def test_turns_up_to_the_limit(self, pixels):
        turns = []
        for seed in range(20):
            options = replace(OPTIONS, max_tilt=0.0, max_rotation=30.0, keypoints=KeypointRules(max_keypoints=1))
            matrix = make_view_pair(pixels[:200, :200], pixels, options, np.random.default_rng(seed)).homography
            turns.append(np.degrees(np.arctan2(matrix[1, 0], matrix[0, 0])))
        assert 15 < np.abs(turns).max() <= 30.01


class TestRulesInPractice:
    def test_places(self, pairs):
        for pair in pairs:
            found = pair.correspondences
            assert len(found) >= 5
            warped, _ = warp_points(pair.homography, found.first.xy)
            assert np.linalg.norm(warped - found.second.xy, axis=1).max() <= 1.5 + 1e-4

    def test_angles(self, pairs):
        for pair in pairs:
            found = pair.correspondences
            radians = np.radians(found.first.angle)
            step = 1e-2 * np.stack([np.cos(radians), np.sin(radians)], axis=1)
            start, end = (warp_points(pair.homography, found.first.xy + sign * step)[0] for sign in (-1, 1))
            predicted = np.degrees(np.arctan2(*(end - start).T[::-1]))
            residual = wrap_degrees(found.second.angle - predicted)
            np.testing.assert_allclose(wrap_degrees(residual - found.angle_residual), 0, atol=0.1)
            assert np.abs(residual).max() <= 25.1

    def test_spacing_and_count(self, pairs):
        for pair in pairs:
            found = pair.correspondences
            assert len(found) <= 40
            for points in (found.first.xy, found.second.xy):
                gap = np.linalg.norm(points[:, None] - points[None], axis=2) + 1e3 * np.eye(len(points))
                assert gap.min() >= 7 - 1e-4
        assert max(len(pair.correspondences) for pair in pairs) == 40

    def test_matched_keypoints_are_among_the_detected(self, pairs):
        for pair in pairs:
            detected = set(map(tuple, pair.second_keypoints.xy.tolist()))
            assert set(map(tuple, pair.correspondences.second.xy.tolist())) <= detected

    def test_scales_agree_for_most(self, pairs):
        ratios = np.concatenate([pair.correspondences.log_scale_ratio for pair in pairs])
        assert abs(np.median(ratios)) < np.log(1.1)


class TestLight:
    def test_picture_stays_the_same_picture(self, pixels):
        view = pixels[:120, 150:300]
        changed = [change_light(view, np.random.default_rng(seed)) for seed in range(12)]
        assert all(one.shape == view.shape and one.dtype == np.uint8 for one in changed)
        assert all(np.corrcoef(one.reshape(-1), view.reshape(-1))[0, 1] > 0.8 for one in changed)
        assert sum(np.abs(one.astype(float) - view).mean() > 3 for one in changed) >= 6

    def test_given_view_is_left_alone(self, pixels):
        view = pixels[:60, :60].copy()
        for seed in range(6):
            change_light(view, np.random.default_rng(seed))
        np.testing.assert_array_equal(view, pixels[:60, :60])

    def test_seed_decides(self, pixels):
        one, again, other = (change_light(pixels[:60, :60], np.random.default_rng(seed)) for seed in (3, 3, 4))
        np.testing.assert_array_equal(one, again)
        assert not np.array_equal(one, other)


@pytest.fixture(scope="module")
def made(photos):
    return [make_photo_pair(photos, 5, OPTIONS, (photo, view)) for photo in range(3) for view in range(2)]


class TestPhotoPairs:
    def test_count_and_order(self, made, photos):
        """Each first view is a crop of its photo in another light: it fits there better than in the others."""
        assert len(made) == 6
        pictures = [cv2.imread(str(file), cv2.IMREAD_GRAYSCALE) for file in photos]
        for number, pair in enumerate(made):
            fit = [cv2.matchTemplate(picture, pair.first, cv2.TM_CCOEFF_NORMED).max() for picture in pictures]
            assert np.argmax(fit) == number // 2

    def test_pairs_differ(self, made):
        assert not any(same(made[a], made[b]) for a in range(6) for b in range(a))

    def test_another_seed(self, made, photos):
        other = make_photo_pair(photos[:1], 6, OPTIONS, (0, 0))
        assert not same(other, made[0])


def test_views_need_not_turn(photo):
    gray = cv2.cvtColor(photo, cv2.COLOR_BGR2GRAY)
    options = ViewOptions(max_rotation=0, max_tilt=0, max_zoom=1)
    for seed in range(4):
        pair = make_view_pair(gray, gray, options, np.random.default_rng(seed))
        np.testing.assert_allclose(pair.homography[:2, :2], np.eye(2), atol=1e-6)
