"""Batches of a matcher's training."""

from __future__ import annotations

import torch

from logpolar.training.matcher_data import move_together


def make_tables() -> torch.Tensor:
    """Of two views: positions, and columns that stay as they are."""
    return torch.rand(2, 6, 6, generator=torch.Generator().manual_seed(0)) * 2 - 1


def test_keypoints_move_and_scale_together():
    table = make_tables()
    moved = move_together(table, 1.0, torch.Generator().manual_seed(0))
    for before, after in zip(table, moved, strict=True):
        factor = (after[1:, :2] - after[0, :2]) / (before[1:, :2] - before[0, :2])
        torch.testing.assert_close(factor, factor[:1, :1].expand(5, 2))  # one scale for all
        assert (after[:, :2] - before[:, :2]).abs().max() > 0.05
    assert torch.equal(moved[..., 2:], table[..., 2:])


def test_of_none_nothing_moves():
    table = make_tables()
    assert torch.equal(move_together(table, 0.0, torch.Generator().manual_seed(0)), table)
