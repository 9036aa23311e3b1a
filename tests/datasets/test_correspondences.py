from __future__ import annotations

import math

import numpy as np
import pytest

from logpolar.datasets.correspondences import PAIR_CAUSES, find_correspondences
from logpolar.datasets.options import CorrespondenceRules
from logpolar.keypoints import Keypoints

TILTED = np.array([[0.9, -0.25, 30.0], [0.3, 0.8, -10.0], [4e-4, -3e-4, 1.0]])
EVERYWHERE = 10**6, 10**6
ALL = CorrespondenceRules(min_spacing=0, max_count=10**6)


def warp_one(homography: np.ndarray, x: float, y: float) -> np.ndarray:
    a, b, c = homography @ np.array([x, y, 1.0])
    return np.array([a / c, b / c])


def numbered(xy, size=4.0, angle=0.0) -> Keypoints:
    """Keypoints whose response is their number, so that they can be told after the search."""
    return Keypoints.from_points(xy, size, angle, np.arange(len(xy)))


def found_numbers(found) -> list[tuple[int, int]]:
    return [(int(a), int(b)) for a, b in zip(found.first.response, found.second.response, strict=True)]


def search(first, second, homography=np.eye(3), rules=ALL, seed=0):  # noqa: B008
    return find_correspondences(first, second, homography, EVERYWHERE, rules, np.random.default_rng(seed))[0]


def prediction(homography: np.ndarray, x: float, y: float, size: float, angle: float):
    """Where a keypoint goes, its size and its angle there, by warping short steps around it."""
    step = 1e-4
    place = warp_one(homography, x, y)
    right = (warp_one(homography, x + step, y) - warp_one(homography, x - step, y)) / (2 * step)
    down = (warp_one(homography, x, y + step) - warp_one(homography, x, y - step)) / (2 * step)
    ahead = math.cos(math.radians(angle)) * right + math.sin(math.radians(angle)) * down
    area = abs(right[0] * down[1] - right[1] * down[0])
    return place, size * math.sqrt(area), math.degrees(math.atan2(ahead[1], ahead[0]))


def candidates_by_loops(first: Keypoints, second: Keypoints, homography, rules) -> dict[tuple[int, int], tuple]:
    """All pairs that keep the rules but for spacing and count: distance, ln scale ratio, angle residual.

    Of keypoints at the very same place the best aligned is the nearest.
    """
    close: dict[tuple[int, int], tuple] = {}
    for i in range(len(first)):
        values = (*first.xy[i].tolist(), float(first.size[i]), float(first.angle[i]))
        place, size, angle = prediction(homography, *values)
        for j in range(len(second)):
            distance = math.dist(place, second.xy[j].tolist())
            residual = (float(second.angle[j]) - angle + 180) % 360 - 180
            if distance <= rules.max_distance and abs(residual) <= rules.max_angle:
                close[i, j] = (distance, math.log(second.size[j] / size), residual)

    def rank(values: tuple) -> tuple[float, float]:
        return round(values[0], 4), abs(values[2])

    return {
        (i, j): values
        for (i, j), values in close.items()
        if all(rank(values) <= rank(other) for (k, m), other in close.items() if k == i or m == j)
    }


@pytest.fixture(scope="module")
def scene():
    """Crowded keypoints, several at one place with different angles, and where they go, disturbed and mixed up."""
    random = np.random.default_rng(0)
    xy = random.uniform(0, 200, (250, 2))
    xy[200:] = xy[:50]
    first = numbered(xy, np.exp(random.uniform(0, 2, 250)), random.uniform(0, 360, 250))
    predicted = [
        prediction(TILTED, *row) for row in np.column_stack([first.xy, first.size, first.angle]).astype(float).tolist()
    ]
    order = random.permutation(250)
    place = np.array([values[0] for values in predicted])[order] + random.normal(0, 0.9, (250, 2))
    size = np.array([values[1] for values in predicted])[order] * np.exp(random.normal(0, 0.4, 250))
    angle = np.array([values[2] for values in predicted])[order] + random.normal(0, 18, 250)
    return first, numbered(place, size, angle)


@pytest.fixture(scope="module")
def truth(scene):
    return candidates_by_loops(*scene, TILTED, ALL)


class TestRules:
    def test_by_loops(self, scene, truth):
        found = search(*scene, TILTED)
        assert 60 < len(truth) < 200
        assert sorted(found_numbers(found)) == sorted(truth)

    def test_mismatches_by_loops(self, scene, truth):
        found = search(*scene, TILTED)
        expected = np.array([truth[pair][1:] for pair in found_numbers(found)])
        np.testing.assert_allclose(found.log_scale_ratio, expected[:, 0], atol=1e-4)
        np.testing.assert_allclose(found.angle_residual, expected[:, 1], atol=1e-2)

    def test_keypoints_come_back_unchanged(self, scene):
        found = search(*scene, TILTED)
        for kept, given in zip((found.first, found.second), scene, strict=True):
            number = kept.response.astype(int)
            np.testing.assert_array_equal(kept.xy, given.xy[number])
            np.testing.assert_array_equal(kept.size, given.size[number])
            np.testing.assert_array_equal(kept.angle, given.angle[number])

    def test_what_is_warped_exactly_agrees_exactly(self):
        grid = np.stack(np.meshgrid(np.arange(20, 200, 30), np.arange(20, 200, 30)), axis=-1).reshape(-1, 2)
        random = np.random.default_rng(0)
        first = numbered(grid, np.exp(random.uniform(0, 3, len(grid))), random.uniform(0, 360, len(grid)))
        rows = np.column_stack([first.xy, first.size, first.angle]).astype(float).tolist()
        place, size, angle = (np.array(values) for values in zip(*(prediction(TILTED, *r) for r in rows), strict=True))
        found = search(first, numbered(place, size, angle), TILTED, CorrespondenceRules())
        assert sorted(found_numbers(found)) == [(k, k) for k in range(len(grid))]
        np.testing.assert_allclose(found.log_scale_ratio, 0, atol=1e-5)
        np.testing.assert_allclose(found.angle_residual, 0, atol=1e-3)

    def test_turn_and_zoom_by_hand(self):
        """A quarter turn clockwise (x towards y) and twice the size."""
        homography = np.array([[0, -2, 100], [2, 0, 0], [0, 0, 1.0]])
        found = search(numbered([[10, 20]], 3, 30), numbered([[60, 20]], 12, 110), homography)
        assert found.log_scale_ratio[0] == pytest.approx(math.log(2), abs=1e-6)
        assert found.angle_residual[0] == pytest.approx(-10, abs=1e-4)

    @pytest.mark.parametrize(("distance", "count"), [(1.49, 1), (1.51, 0)])
    def test_distance(self, distance, count):
        shift = distance / math.sqrt(2)
        assert len(search(numbered([[50, 50]]), numbered([[50 + shift, 50 - shift]]))) == count

    def test_distance_is_that_of_the_second_image(self):
        zoom = np.diag([3, 3, 1.0])
        assert len(search(numbered([[10, 10]]), numbered([[31.2, 30]]), zoom)) == 1
        assert len(search(numbered([[10, 10]]), numbered([[32, 30]]), zoom)) == 0

    @pytest.mark.parametrize(("angle", "count"), [(24.9, 1), (25.1, 0), (335.1, 1), (334.9, 0), (180, 0)])
    def test_angle(self, angle, count):
        assert len(search(numbered([[50, 50]]), numbered([[50, 50]], 4, angle))) == count

    @pytest.mark.parametrize("swap", [False, True])
    def test_scales_may_disagree_by_a_factor_of_eight(self, swap):
        sides = numbered([[50, 50]], 2), numbered([[50, 50]], 15.9)
        found = search(*sides[::-1] if swap else sides)
        assert abs(found.log_scale_ratio[0]) == pytest.approx(math.log(7.95), abs=1e-5)
        sides = numbered([[50, 50]], 2), numbered([[50, 50]], 16.1)
        assert len(search(*sides[::-1] if swap else sides)) == 0

    def test_scales_that_differ_too_much_do_not_compete(self):
        first, second = numbered([[50, 50]], 2), numbered([[50, 50], [50.5, 50]], [40, 3])
        assert found_numbers(search(first, second)) == [(0, 1)]

    def test_every_keypoint_of_the_first_is_found_or_counted_by_cause(self):
        random = np.random.default_rng(3)
        first = Keypoints.from_points(random.uniform(0, 120, (400, 2)), random.uniform(1, 30, 400), 0)
        second = Keypoints.from_points(
            random.uniform(0, 90, (500, 2)), random.uniform(1, 30, 500), 20 * random.normal(size=500)
        )
        rules = CorrespondenceRules(max_count=20)
        unlucky = random.random(500) < 0.3
        checks = [("occluded", lambda here, there: ~unlucky[there])]
        found, rejects = find_correspondences(first, second, np.eye(3), (90, 90), rules, random, checks)
        assert set(rejects) <= set(PAIR_CAUSES)
        assert sum(rejects.values()) + len(found) == 400
        past = (first.xy > 89.5).any(axis=1).sum()
        assert 0 < rejects["outside the other image"] <= past
        assert all(rejects[cause] > 0 for cause in ("no keypoint near", "occluded", "orientation differs"))
        assert all(rejects[cause] > 0 for cause in ("scale differs", "too close to another", "over the limit per pair"))

    def test_only_the_nearest(self):
        assert found_numbers(search(numbered([[50, 50]]), numbered([[51, 50], [50.5, 50]]))) == [(0, 1)]
        assert found_numbers(search(numbered([[51, 50], [50.5, 50]]), numbered([[50, 50]]))) == [(1, 0)]

    def test_copies_correspond_once(self):
        assert len(search(numbered([[50, 50]] * 3), numbered([[50, 50]] * 2))) == 1

    def test_angles_at_one_place_do_not_compete(self):
        first, second = numbered([[50, 50]] * 2, 4, [10, 100]), numbered([[50.2, 50], [50.4, 50]], 4, [95, 5])
        assert sorted(found_numbers(search(first, second))) == [(0, 1), (1, 0)]

    @pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 5), (5, 0)])
    def test_empty(self, first, second):
        points = numbered(np.arange(10.0).reshape(5, 2))
        found = search(points[:first], points[:second])
        assert len(found) == 0
        assert found.first.xy.shape == found.second.xy.shape == (0, 2)
        assert found.log_scale_ratio.shape == found.angle_residual.shape == (0,)

    def test_nothing_in_common(self):
        assert len(search(numbered([[50, 50]]), numbered([[150, 50]]))) == 0


class TestSpacing:
    @pytest.fixture(params=[1, 2, 3])
    def found(self, request, scene):
        return search(*scene, TILTED, CorrespondenceRules(), request.param)

    def test_seven_pixels_in_both_images(self, found):
        assert len(found) > 20
        for points in (found.first.xy, found.second.xy):
            gap = np.linalg.norm(points[:, None].astype(float) - points[None], axis=2)
            assert gap[~np.eye(len(gap), dtype=bool)].min() >= 7 - 1e-4

    def test_no_more_than_needed_is_left_out(self, found, scene, truth):
        kept = set(found_numbers(found))
        assert kept <= set(truth)
        for i, j in set(truth) - kept:
            here = np.linalg.norm(found.first.xy - scene[0].xy[i], axis=1).min()
            there = np.linalg.norm(found.second.xy - scene[1].xy[j], axis=1).min()
            assert min(here, there) < 7

    def test_large_mismatches_yield_only_to_their_like(self, found, scene, truth):
        rare = {pair for pair, values in truth.items() if abs(values[1]) >= math.log(1.5)}
        kept = np.array([pair for pair in found_numbers(found) if pair in rare])
        lost = rare - set(found_numbers(found))
        assert lost
        for i, j in lost:
            here = np.linalg.norm(scene[0].xy[kept[:, 0]] - scene[0].xy[i], axis=1).min()
            there = np.linalg.norm(scene[1].xy[kept[:, 1]] - scene[1].xy[j], axis=1).min()
            assert min(here, there) < 7

    def test_close_in_the_second_image_alone_is_too_close(self):
        half = np.diag([0.5, 0.5, 1.0])
        first = numbered([[0, 0], [10, 0], [100, 0]], 4)
        assert len(search(first, numbered(first.xy / 2, 2), half, CorrespondenceRules())) == 2

    def test_max_count(self, scene):
        assert len(search(*scene, TILTED, CorrespondenceRules(max_count=9))) == 9

    def test_rare_mismatches_survive_a_small_count(self):
        xy = np.stack(np.meshgrid(np.arange(0, 200, 10), np.arange(0, 200, 10)), axis=-1).reshape(-1, 2)
        size = np.full(len(xy), 4.0)
        size[[17, 203, 390]] = 8, 2, 6.5
        found = search(numbered(xy), numbered(xy, size), rules=CorrespondenceRules(max_count=5))
        assert {17, 203, 390} <= set(found.first.response.astype(int).tolist())
        assert len(found) == 5

    def test_seed_decides(self, scene):
        rules = CorrespondenceRules(max_count=10)
        one, same, other = (found_numbers(search(*scene, TILTED, rules, seed)) for seed in (4, 4, 5))
        assert one == same != other
