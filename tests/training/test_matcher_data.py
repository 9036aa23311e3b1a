"""Batches of a matcher's training."""

from __future__ import annotations

import numpy as np
import torch

from logpolar.keypoints import Keypoints
from logpolar.models.matcher_cards import keypoint_table
from logpolar.training.matcher_data import move_together


def make_tables() -> tuple[torch.Tensor, list[Keypoints]]:
    """One image with sizes and angles, one with neither."""
    random = np.random.default_rng(0)
    xy = random.uniform(0, 99, (2, 6, 2))
    images = [
        Keypoints.from_points(xy[0], random.uniform(2, 9, 6), random.uniform(0, 360, 6)),
        Keypoints.from_points(xy[1], 6.0, 0.0),
    ]
    return torch.from_numpy(np.stack([keypoint_table(each, (100, 100)) for each in images])), images


def test_keypoints_move_by_one_similarity_with_their_sizes_and_angles():
    table, _ = make_tables()
    moved = move_together(table, 1.0, torch.Generator().manual_seed(0))
    for before, after in zip(table, moved, strict=True):
        a, b = (torch.complex(each[1:, 0] - each[0, 0], each[1:, 1] - each[0, 1]) for each in (before, after))
        factor = b / a
        torch.testing.assert_close(factor, factor[:1].expand(5))  # one rotation and scale for all
        known = before[0, 4:]
        torch.testing.assert_close(after[:, 2] - before[:, 2], (factor[0].abs().log() * known[0]).expand(6))
        turned = torch.polar(torch.ones(6), after[:, 3] - before[:, 3])
        torch.testing.assert_close(turned, (factor[0] / factor[0].abs()).expand(6))
        torch.testing.assert_close(after[:, 4:], before[:, 4:])
    assert (moved[0, :, :2] - table[0, :, :2]).abs().max() > 0.05


def test_of_none_nothing_moves():
    table, _ = make_tables()
    assert torch.equal(move_together(table, 0.0, torch.Generator().manual_seed(0)), table)
