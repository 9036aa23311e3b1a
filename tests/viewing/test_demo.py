from __future__ import annotations

import cv2
import numpy as np
import pytest

from logpolar.viewing.demo import demo_pair, demo_picture, run_demo


@pytest.fixture(scope="module")
def outcome():
    return run_demo(demo_pair(), "logpolar-96")


def corners_through(pair):
    height, width = pair.first.shape[:2]
    corners = np.array([[[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]], np.float64)
    return cv2.perspectiveTransform(corners, pair.homography)[0]


def area(polygon):
    return cv2.contourArea(polygon.astype(np.float32))


class TestPair:
    def test_first_view_is_the_photo(self, photo):
        np.testing.assert_array_equal(demo_pair().first, photo)

    def test_second_view_holds_the_whole_photo(self):
        pair = demo_pair(zoom=2, rotation=30)
        corners = corners_through(pair)
        assert corners.min() > -0.01
        assert (corners.max(axis=0) <= np.array(pair.second.shape[1::-1])).all()

    def test_zoom_makes_it_smaller(self):
        assert area(corners_through(demo_pair(zoom=2))) == pytest.approx(
            4 * area(corners_through(demo_pair(zoom=4))), rel=1e-3
        )

    def test_rotation_is_in_degrees_and_clockwise(self):
        upright, turned = (corners_through(demo_pair(zoom=1, rotation=rotation)) for rotation in (0, 90))
        # The top edge, which pointed to the right, points down after a quarter rotation clockwise.
        along, across = upright[1] - upright[0], turned[1] - turned[0]
        np.testing.assert_allclose(across, [-along[1], along[0]], atol=0.01)

    def test_homography_says_where_the_photo_went(self):
        pair = demo_pair(zoom=2, noise=0)
        back = cv2.warpPerspective(
            pair.second, pair.homography, pair.first.shape[1::-1], flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        )
        inside = (slice(50, -50), slice(50, -50))
        blurred = cv2.GaussianBlur(pair.first, (0, 0), 2)
        assert np.abs(back.astype(float) - blurred)[inside].mean() < 4

    def test_noise_has_the_strength_asked_for(self):
        clean, noisy = demo_pair(noise=0).second.astype(float), demo_pair(noise=8).second.astype(float)
        plain = (clean == 110).all(axis=2)
        assert plain.sum() > 1000
        assert (noisy - clean)[plain].std() == pytest.approx(8, rel=0.1)

    def test_seed_decides_the_noise(self):
        np.testing.assert_array_equal(demo_pair(seed=1).second, demo_pair(seed=1).second)
        assert (demo_pair(seed=1).second != demo_pair(seed=2).second).any()


class TestRun:
    def test_model_and_baseline_are_compared_on_the_same_keypoints(self, outcome):
        keypoints, results = outcome
        assert [result.name for result in results] == ["logpolar-96", "RootSIFT"]
        assert all(0 < result.matches <= min(map(len, keypoints)) for result in results)

    def test_log_polar_finds_more_correct_matches_than_root_sift(self, outcome):
        ours, baseline = outcome[1]
        assert ours.correct > 1.05 * baseline.correct
        assert ours.correct / ours.matches > baseline.correct / baseline.matches

    def test_homography_is_found(self, outcome):
        for result in outcome[1]:
            assert result.error < 0.2
            assert 0.8 * result.correct <= result.inliers <= result.matches
            assert result.correct <= result.matches

    def test_picture_shows_both_with_lines(self, outcome):
        results = outcome[1]
        picture = demo_picture(results)
        assert picture.shape[0] == sum(result.picture.shape[0] + 8 for result in results)
        green = (picture == (80, 200, 60)).all(axis=2)
        middle = len(picture) // 2
        assert green[:middle].sum() > 500
        assert green[middle:].sum() > 500
        assert (picture == (60, 60, 230)).all(axis=2).sum() > 50

    def test_nothing_to_match(self):
        pair = demo_pair()
        blank = type(pair)(pair.first, np.full_like(pair.second, 90), pair.homography)
        for result in run_demo(blank, "logpolar-96-small")[1]:
            assert (result.matches, result.correct, result.inliers) == (0, 0, 0)
            assert result.error == np.inf
