"""Which keypoints of two views match, from geometry: on the device, in batches of fixed shape.

A keypoint of known depth is projected into the other view. Two keypoints match if each is projected close to the other;
they do not if one of them is projected far from the other. Anything else is uncertain: it is neither, and a keypoint is
known to have no match only if no keypoint of the other view is uncertain. Distances are in pixels of the coarser view.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Projected(NamedTuple):
    """Keypoints (B, N) of one view in the other: positions, how much larger things are there, and what is known."""

    xy: Tensor  # (B, N, 2)
    zoom: Tensor  # (B, N)
    known: Tensor  # (B, N): the depth is known
    lost: Tensor  # (B, N): it is known not to be in the other view


class Truth(NamedTuple):
    """Of B pairs of views with N keypoints each."""

    match: Tensor  # (B, N) int64: keypoint of the second view; -1: none, or not known
    matched: Tensor  # (B, N) of the first view
    back_matched: Tensor  # (B, N) of the second view
    alone: Tensor  # (B, N) of the first view: known to have no match
    back_alone: Tensor  # (B, N)
    correct: Tensor  # (B, N, N): the keypoints are close in both views
    incorrect: Tensor  # (B, N, N): the keypoints are far apart in one of them


def transfer(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Homography of infinity (B, 3, 3) and shift (B, 3) between projections (B, 3, 4): ``cameras.Transfer``.

    In float64; results in float32.
    """
    infinite = second[:, :, :3] @ torch.linalg.inv(first[:, :, :3])
    shift = second[:, :, 3] - (infinite @ first[:, :, 3:])[:, :, 0]
    return infinite.float(), shift.float()


def project(xy: Tensor, depth: Tensor, infinite: Tensor, shift: Tensor) -> Projected:
    """Keypoints (B, N, 2) of depths (B, N), by the convention of ``matcher_sources``, in the other view."""
    known = torch.isfinite(depth)
    deep = torch.where(known, depth, 1.0)
    x, y = xy[..., 0], xy[..., 1]
    u, v, w = (
        deep * (infinite[:, row, 0, None] * x + infinite[:, row, 1, None] * y + infinite[:, row, 2, None])
        + shift[:, row, None]
        for row in range(3)
    )
    lost = known & ((deep <= 0) | (w <= 0))
    inverse = 1 / torch.where(w > 0, w, 1.0)
    place = torch.stack([u * inverse, v * inverse], dim=-1)
    # The derivative at constant depth: (row 0, 1) of the homography less the position times row 2, over w.
    rows = [deep[..., None] * infinite[:, None, row, :2] for row in range(3)]
    du = (rows[0] - place[..., :1] * rows[2]) * inverse[..., None]
    dv = (rows[1] - place[..., 1:] * rows[2]) * inverse[..., None]
    area = (du[..., 0] * dv[..., 1] - du[..., 1] * dv[..., 0]).abs()
    return Projected(place, area.clamp(1e-6, 1e6).sqrt(), known, lost)


def find_truth(
    xy: tuple[Tensor, Tensor],
    there: Projected,
    back: Projected,
    masks: tuple[Tensor, Tensor],
    likeness: Tensor,
    positive: float,
    negative: float,
) -> Truth:
    """Truth of pairs of views; ``there``: the first view's keypoints in the second, ``back``: the reverse.

    ``masks`` (B, N): False for padding. ``likeness`` (B, N, N), descriptors' dot products, chooses among keypoints at
    one place, which differ in angle or size only.
    """
    both = masks[0][:, :, None] & masks[1][:, None, :]
    gap = _distance(there.xy[:, :, None], xy[1][:, None, :]) / there.zoom.clamp(min=1)[:, :, None]
    gap_back = _distance(back.xy[:, None, :], xy[0][:, :, None]) / back.zoom.clamp(min=1)[:, None, :]
    lost = there.lost[:, :, None] | back.lost[:, None, :]
    known = there.known[:, :, None] & back.known[:, None, :]
    correct = both & known & ~lost & (gap <= positive) & (gap_back <= positive)
    far = (there.known[:, :, None] & (gap > negative)) | (back.known[:, None, :] & (gap_back > negative)) | lost
    incorrect = both & far
    score = torch.where(correct, likeness - 0.1 * (gap + gap_back), -1e4)
    match, match_back = score.argmax(dim=2), score.argmax(dim=1)
    rows = torch.arange(match.shape[1], device=match.device)
    mutual = match_back.gather(1, match) == rows
    matched = mutual & correct.any(dim=2)
    mutual_back = match.gather(1, match_back) == rows
    back_matched = mutual_back & correct.any(dim=1)
    alone = masks[0] & (far | ~both).all(dim=2)
    back_alone = masks[1] & (far | ~both).all(dim=1)
    return Truth(torch.where(matched, match, -1), matched, back_matched, alone, back_alone, correct, incorrect)


def _distance(first: Tensor, second: Tensor) -> Tensor:
    difference = first - second
    return (difference[..., 0].square() + difference[..., 1].square()).sqrt()
