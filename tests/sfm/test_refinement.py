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
    found, report = refine(images, first, second)
    assert (report.tracks, report.keypoints) == (len(xy), 2 * len(xy))
    assert report.moved > 0.5 * len(xy)
    assert (found["a"] == first.xy).all()
    moved = (found["b"] != second.xy).any(axis=1)
    assert 0 <= report.moved - moved.sum() < 5  # a step may be smaller than float32 can show
    before, after = (np.linalg.norm(each[moved] - there[moved], axis=1) for each in (second.xy, found["b"]))
    assert np.median(before) > 0.4
    assert np.median(after) < 0.1
    assert (after < before).mean() > 0.8


def test_what_does_not_agree_stays(pair):
    images, xy, there, _ = pair
    other = there[::-1].copy()  # wrong matches
    _, report = refine(images, Keypoints.from_points(xy), Keypoints.from_points(other))
    assert report.moved < 0.05 * len(xy)


def test_nothing_in_nothing_out():
    none = Keypoints.empty()
    flat = {"a": np.zeros((40, 40), np.float32), "b": np.zeros((40, 40), np.float32)}
    found, report = refine(flat, none, none)
    assert (len(found["a"]), report.tracks, report.moved, report.median_move) == (0, 0, 0, 0)
    one = Keypoints.from_points([[20, 20]])
    found, report = refine(flat, one, one)
    assert (found["b"] == one.xy).all()
    assert report.moved == 0


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
