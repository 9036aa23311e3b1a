"""Refined keypoints against exact correspondences: a surface seen by two cameras, and noisy positions."""

from __future__ import annotations

import numpy as np
import pytest

from logpolar.keypoints import Keypoints
from logpolar.sfm.refinement import reference_of, refine_keypoints
from synthetic_world import standard_world


@pytest.fixture(scope="module")
def pair():
    """Gray images of two cameras, exact points in both, and similarity of the surface between them."""
    world = standard_world(cameras=6)
    first, second = world.cameras[:2]
    xy = np.random.default_rng(0).uniform([20, 20], [300, 220], (400, 2))
    moved = world.transfer(first, second, xy)
    inside = (moved.xy > 20).all(axis=1) & (moved.xy < [300, 220]).all(axis=1)
    keep = np.flatnonzero(moved.visible & inside)
    images = {name: world.views[row][0].astype(np.float32) / 255 for row, name in enumerate("ab")}
    return images, xy[keep], moved.xy[keep], moved.jacobian[keep]


def refine(images, first, second, rows=None):
    matches = {("a", "b"): np.repeat(np.arange(len(first.xy))[:, None], 2, axis=1) if rows is None else rows}
    return refine_keypoints({"a": first, "b": second}, matches, images.__getitem__)


def test_noisy_positions_become_exact(pair):
    images, xy, there, jacobian = pair
    random = np.random.default_rng(1)
    scale = np.sqrt(np.abs(np.linalg.det(jacobian)))
    angle = np.degrees(np.arctan2(jacobian[:, 1, 0], jacobian[:, 0, 0]))
    noisy = there + random.normal(scale=0.5, size=there.shape)
    first, second = Keypoints.from_points(xy, 4.0), Keypoints.from_points(noisy, 4 * scale, angle)
    refined = refine(images, first, second)
    found, report = refined.positions, refined.report
    assert (report.tracks, report.keypoints) == (len(xy), 2 * len(xy))
    assert report.moved > 0.5 * len(xy)
    assert (found["a"] == first.xy).all()
    moved = (found["b"] != second.xy).any(axis=1)
    assert 0 <= report.moved - moved.sum() < 10  # a step may be smaller than float32 can show
    before, after = (np.linalg.norm(each[moved] - there[moved], axis=1) for each in (second.xy, found["b"]))
    assert np.median(before) > 0.4
    assert np.median(after) < 0.1
    assert (after < before).mean() > 0.8


def test_what_does_not_agree_stays(pair):
    images, xy, there, _ = pair
    other = there[::-1].copy()  # wrong matches
    found = refine(images, Keypoints.from_points(xy), Keypoints.from_points(other))
    assert found.report.moved < 0.05 * len(xy)
    assert found.kept["a", "b"].all()  # nothing says which end of a match is wrong


def test_matches_with_a_neighbour_are_dropped(pair):
    """Every third match of a third photo, a copy of the second one, is with a keypoint far beside the right one."""
    images, xy, there, jacobian = pair
    scale = np.sqrt(np.abs(np.linalg.det(jacobian)))
    angle = np.degrees(np.arctan2(jacobian[:, 1, 0], jacobian[:, 0, 0]))
    wrong = np.arange(len(xy)) % 3 == 0
    beside = np.clip(there + np.where(wrong, 9.0, 0)[:, None], 0, [319, 239])
    second, third = Keypoints.from_points(there, 4 * scale, angle), Keypoints.from_points(beside, 4 * scale, angle)
    rows = np.repeat(np.arange(len(xy))[:, None], 2, axis=1)
    given = {"a": Keypoints.from_points(xy, 4.0), "b": second, "c": third}
    matches = dict.fromkeys([("a", "b"), ("a", "c"), ("b", "c")], rows)
    found = refine_keypoints(given, matches, lambda name: images["a" if name == "a" else "b"])
    settled = np.linalg.norm(found.positions["a"] - xy, axis=1) < 0.5
    assert found.kept["a", "b"].mean() > 0.9
    for pair_with_third in (("a", "c"), ("b", "c")):
        assert found.kept[pair_with_third][~wrong].mean() > 0.9
        assert found.kept[pair_with_third][wrong & settled].mean() < 0.4
    assert found.report.dropped == sum((~each).sum() for each in found.kept.values()) > 0


def test_a_pair_that_agrees_nowhere_keeps_its_matches(pair):
    images, xy, there, _ = pair
    rows = np.repeat(np.arange(len(xy))[:, None], 2, axis=1)
    given = {"a": Keypoints.from_points(xy, 4.0), "b": Keypoints.from_points(there, 4.0)}
    given["night"] = Keypoints.from_points(there, 4.0)
    dark = {**images, "night": 1 - images["b"]}
    found = refine_keypoints(given, dict.fromkeys([("a", "b"), ("b", "night")], rows), dark.__getitem__)
    assert found.kept["b", "night"].all()


def test_nothing_in_nothing_out():
    none = Keypoints.empty()
    flat = {"a": np.zeros((40, 40), np.float32), "b": np.zeros((40, 40), np.float32)}
    refined = refine(flat, none, none)
    found, report = refined.positions, refined.report
    assert (len(found["a"]), report.tracks, report.moved, report.median_move) == (0, 0, 0, 0)
    one = Keypoints.from_points([[20, 20]])
    refined = refine(flat, one, one)
    assert (refined.positions["b"] == one.xy).all()
    assert refined.report.moved == 0


def test_references_are_those_with_the_most_matches():
    edges = np.array([[0, 1], [1, 2], [3, 4], [2, 6]])
    found = reference_of(8, edges)
    assert found[[5, 7]].tolist() == [-1, -1]
    assert len(set(found[[0, 1, 2, 6]])) == 1
    assert found[0] in (1, 2)
    assert found[3] == found[4] in (3, 4)


def test_long_chains_are_one_track():
    order = np.random.default_rng(0).permutation(500)
    found = reference_of(500, np.stack([order[:-1], order[1:]], axis=1))
    assert len(set(found)) == 1
