from __future__ import annotations

import numpy as np

from logpolar.keypoints import Keypoints
from logpolar.matching.consensus import agreeing


def matched_keypoints(correct: int = 200, wrong: int = 100):
    """A view 3 times smaller and rotated by 70 degrees, with noise, and keypoints that match at random."""
    random, count = np.random.default_rng(0), correct + wrong
    first = Keypoints.from_points(
        random.uniform(0, 600, (count, 2)), random.uniform(3, 12, count), random.uniform(0, 360, count)
    )
    radians = np.radians(70)
    linear = np.array([[np.cos(radians), -np.sin(radians)], [np.sin(radians), np.cos(radians)]]) / 3
    xy, size, angle = first.xy @ linear.T, first.size / 3, first.angle + 70
    xy[correct:] = random.uniform(0, 200, (wrong, 2))
    size[correct:], angle[correct:] = random.uniform(1, 12, wrong), random.uniform(0, 360, wrong)
    noise = random.normal(0, (0.1, 8), (count, 2))
    return first, Keypoints.from_points(xy, size * np.exp(noise[:, 0]), angle + noise[:, 1])


def test_matches_that_agree_with_those_around_them_are_kept():
    keep = agreeing(*matched_keypoints())
    assert keep[:200].mean() > 0.97
    assert keep[200:].mean() < 0.25


def test_keypoints_without_size_or_angle_agree_by_their_positions():
    first, second = matched_keypoints()
    bare = [Keypoints.from_points(keypoints.xy) for keypoints in (first, second)]
    for pair in (bare, (first, bare[1])):
        keep = agreeing(*pair)
        assert keep[:200].mean() > 0.9
        assert keep[200:].mean() < 0.25
    keep = agreeing(*(Keypoints.from_points(keypoints.xy) for keypoints in matched_keypoints(0, 300)))
    assert keep.mean() < 0.15


def test_no_match_agrees_among_random_ones():
    assert agreeing(*matched_keypoints(0, 300)).mean() < 0.15


def test_keypoints_from_columns_of_a_table():
    """Their positions are not contiguous in the table, which OpenCV's search refuses."""
    pair = matched_keypoints()
    tables = [keypoints.table for keypoints in pair]
    again = [Keypoints.from_points(table[:, :2], table[:, 2], table[:, 3]) for table in tables]
    np.testing.assert_array_equal(agreeing(*again), agreeing(*pair))


def test_few_matches():
    first, second = matched_keypoints(4, 0)
    for count in (0, 1, 4):
        assert agreeing(first[:count], second[:count]).tolist() == [False] * count


def test_points_at_one_place():
    """Size and angle still tell; positions do not. A keypoint never votes for itself."""
    turned = Keypoints.from_points(np.zeros((8, 2)), [4, 5] * 4, np.arange(8) * 45.0)
    assert agreeing(turned, turned).all()
    other = Keypoints.from_points(np.zeros((8, 2)), [4, 5] * 4, np.arange(8) * 90.0)
    assert not agreeing(turned, other).any()
    bare = Keypoints.from_points(np.zeros((8, 2)))
    assert not agreeing(bare, bare).any()
