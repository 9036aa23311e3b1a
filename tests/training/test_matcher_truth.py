"""Which keypoints match, against points in space that two cameras see."""

from __future__ import annotations

import numpy as np
import torch

from logpolar.training.matcher_truth import Truth, find_truth, project, transfer

BOTH = torch.ones(1, 4, dtype=torch.bool)


def camera(focal: float, shift: tuple[float, float, float], degrees: float = 0.0) -> np.ndarray:
    """Projection (3, 4) of a camera that is turned about the y axis."""
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    pose = np.concatenate([[[c, 0, s], [0, 1, 0], [-s, 0, c]], np.array(shift)[:, None]], axis=1)
    return np.array([[focal, 0, 50], [0, focal, 40], [0, 0, 1.0]]) @ pose


def see(projection: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    homogeneous = np.concatenate([points, np.ones((len(points), 1))], axis=1) @ projection.T
    return homogeneous[:, :2] / homogeneous[:, 2:], homogeneous[:, 2]


POINTS = np.array([[0, 0, 5.0], [1, 0.5, 6], [-1, 0.2, 4], [0.5, -0.7, 7]])
FIRST, SECOND = camera(100, (0, 0, 0)), camera(120, (-0.5, 0.1, 0.3), 8)


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, np.float32))[None]


def truth_of(xy, depth, masks=(BOTH, BOTH), likeness=None, projections=(FIRST, SECOND)) -> Truth:
    first, second = (torch.from_numpy(each)[None] for each in projections)
    there = project(tensor(xy[0]), tensor(depth[0]), *transfer(first, second))
    back = project(tensor(xy[1]), tensor(depth[1]), *transfer(second, first))
    if likeness is None:
        likeness = torch.zeros(1, len(xy[0]), len(xy[1]))
    return find_truth((tensor(xy[0]), tensor(xy[1])), there, back, masks, likeness, 3.0, 5.0)


class TestProjection:
    def test_is_that_of_the_camera(self):
        (here, depth), (there, _) = see(FIRST, POINTS), see(SECOND, POINTS)
        found = project(tensor(here), tensor(depth), *transfer(*(torch.from_numpy(p)[None] for p in (FIRST, SECOND))))
        np.testing.assert_allclose(found.xy[0], there, atol=1e-3)
        assert found.known.all()
        assert not found.lost.any()

    def test_zoom_is_the_ratio_of_scales(self):
        near, far = camera(300, (0, 0, 0)), camera(100, (0, 0, 0))
        here, depth = see(far, POINTS)
        found = project(tensor(here), tensor(depth), *transfer(*(torch.from_numpy(p)[None] for p in (far, near))))
        np.testing.assert_allclose(found.zoom[0], 3, rtol=1e-4)

    def test_points_behind_the_other_camera_are_lost(self):
        behind = camera(100, (0, 0, -5.5))
        here, depth = see(FIRST, POINTS)
        found = project(tensor(here), tensor(depth), *transfer(*(torch.from_numpy(p)[None] for p in (FIRST, behind))))
        assert found.lost[0].tolist() == (POINTS[:, 2] < 5.5).tolist()


class TestTruth:
    def test_points_match_themselves_in_any_order(self):
        order = np.array([2, 0, 3, 1])
        (here, depth), (there, there_depth) = see(FIRST, POINTS), see(SECOND, POINTS[order])
        found = truth_of((here, there), (depth, there_depth))
        assert found.match[0].tolist() == np.argsort(order).tolist()
        assert not (found.alone | found.back_alone).any()

    def test_between_the_limits_it_is_uncertain_and_beyond_alone(self):
        (here, depth), (there, there_depth) = see(FIRST, POINTS), see(SECOND, POINTS)
        there = there + np.array([[0, 0], [4.2, 0], [9, 0], [0, 0]])
        found = truth_of((here, there), (depth, there_depth))
        assert found.matched[0].tolist() == [True, False, False, True]
        assert found.alone[0].tolist() == [False, False, True, False]

    def test_an_unknown_depth_is_uncertain(self):
        (here, depth), (there, there_depth) = see(FIRST, POINTS), see(SECOND, POINTS)
        found = truth_of((here, there), (np.where(np.arange(4) == 1, np.nan, depth), there_depth))
        assert found.matched[0].tolist() == [True, False, True, True]
        assert not found.alone.any()
        assert not found.back_alone.any()

    def test_an_occluded_point_is_alone(self):
        (here, depth), (there, there_depth) = see(FIRST, POINTS), see(SECOND, POINTS)
        there_depth = there_depth * np.array([0.5, 1, 1, 1])  # something nearer hides point 0 from the second camera
        found = truth_of((here, there), (depth, there_depth))
        assert found.matched[0].tolist() == [False, True, True, True]
        assert found.alone[0].tolist() == [True, False, False, False]

    def test_padding_neither_matches_nor_is_alone(self):
        (here, depth), (there, there_depth) = see(FIRST, POINTS), see(SECOND, POINTS)
        mask = torch.tensor([[False, True, True, True]])
        found = truth_of((here, there), (depth, there_depth), (mask, BOTH))
        assert found.matched[0].tolist() == [False, True, True, True]
        assert found.back_alone[0].tolist() == [True, False, False, False]
        assert not found.alone.any()

    def test_of_keypoints_at_one_place_the_most_alike_match(self):
        rows = [0, 0, 1, 2]
        (here, depth), (there, there_depth) = see(FIRST, POINTS[rows]), see(SECOND, POINTS[rows])
        likeness = torch.zeros(1, 4, 4)
        likeness[0, 0, 1] = likeness[0, 1, 0] = 0.5
        found = truth_of((here, there), (depth, there_depth), likeness=likeness)
        assert found.match[0].tolist() == [1, 0, 2, 3]

    def test_tolerance_is_in_pixels_of_the_coarser_view(self):
        fine, coarse = camera(400, (0, 0, 0)), camera(100, (0, 0, 0))
        (here, depth), (there, there_depth) = see(fine, POINTS), see(coarse, POINTS)
        moved = there + np.array([2.0, 0])  # 8 pixels of the finer view
        assert truth_of((here, moved), (depth, there_depth), projections=(fine, coarse)).matched.all()
