from __future__ import annotations

import numpy as np
import pytest

from logpolar.geometry.radius_search import close_pairs, keep_apart


@pytest.mark.parametrize("radius", [0.0, 0.4, 3.0, 40.0, 500.0])
def test_close_pairs_by_a_slow_loop(radius):
    random = np.random.default_rng(1)
    first, second = random.uniform(-30, 50, (60, 2)), random.uniform(-20, 90, (80, 2))
    second[:5] = first[:5]
    expected = [(i, j) for i, a in enumerate(first) for j, b in enumerate(second) if ((a - b) ** 2).sum() <= radius**2]
    assert len(expected) >= 5
    assert list(zip(*(each.tolist() for each in close_pairs(first, second, radius)), strict=True)) == expected


def test_close_pairs_on_the_borders_of_cells():
    """Points of a grid as wide as the radius: the four beside each, and itself, are just near enough."""
    grid = np.stack(np.meshgrid(np.arange(6.0), np.arange(5.0)), axis=2).reshape(-1, 2) * 1.5
    here, there = close_pairs(grid, grid, 1.5)
    assert len(here) == 30 + 2 * (5 * 5 + 6 * 4)
    assert np.linalg.norm(grid[here] - grid[there], axis=1).max() == 1.5


def test_no_points_no_pairs():
    none, some = np.zeros((0, 2)), np.zeros((3, 2))
    for first, second in ((none, some), (some, none), (none, none)):
        assert [len(each) for each in close_pairs(first, second, 1.0)] == [0, 0]


def test_points_at_the_end_of_the_world_and_beyond_it():
    first = np.array([[1e300, 0], [np.nan, 1], [2, np.inf], [1e12, -1e12], [3, 4]])
    assert [each.tolist() for each in close_pairs(first, np.array([[3.0, 4.5], [9, 9]]), 1.0)] == [[4], [0]]


def test_kept_apart_by_a_slow_loop():
    random = np.random.default_rng(0)
    places, order = [random.uniform(0, 100, (200, 2)) for _ in range(2)], random.permutation(200).tolist()
    expected: list[int] = []
    for index in order:
        if all(np.linalg.norm(points[index] - points[other]) >= 9 for other in expected for points in places):
            expected.append(index)
    assert keep_apart(order, places, 9, 1000).tolist() == expected
    assert keep_apart(order, places, 9, 5).tolist() == expected[:5]
    assert keep_apart([], places, 9, 5).tolist() == []
