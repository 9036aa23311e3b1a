"""Keypoints of score maps in torch: peaks with sub-pixel positions, and random ones to learn from.

``keypoints.peaks`` finds the same peaks in numpy; ``tests/training/test_detector_peaks.py`` holds the two together.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from logpolar.keypoints.peaks import NMS_RADIUS, TEMPERATURE, WINDOW

CELL = 8
"""Side, in pixels, of the cells of which each proposes one random keypoint."""


class Peaks(NamedTuple):
    """K keypoints of each of N score maps."""

    xy: Tensor  # (N, K, 2), differentiable
    logit: Tensor  # (N, K), of the highest pixel
    exists: Tensor  # (N, K): maps with fewer peaks are filled up
    spread: Tensor  # (N, K): mean squared distance, in pixels, of the scores around from ``xy``


def find_peaks(logits: Tensor, count: int, allowed: Tensor | None = None) -> Peaks:
    """The ``count`` highest local maxima of maps (N, height, width); ``allowed`` (N, height, width) masks others."""
    _, height, width = logits.shape
    with torch.no_grad():
        size = 2 * NMS_RADIUS + 1
        highest = functional.max_pool2d(logits[:, None], size, 1, NMS_RADIUS)[:, 0]
        frame = torch.zeros_like(logits, dtype=torch.bool)
        frame[:, WINDOW : height - WINDOW, WINDOW : width - WINDOW] = True
        lowest = -functional.max_pool2d(-logits[:, None], size, 1, NMS_RADIUS)[:, 0]
        is_peak = (logits == highest) & (logits > lowest) & frame
        is_peak = is_peak if allowed is None else is_peak & allowed
        ranked = torch.where(is_peak, logits, -math.inf).flatten(1)
        values, place = ranked.topk(min(count, ranked.shape[1]), dim=1)
    x, y = place % width, place // width
    xy, spread = _refine(logits, x.clamp(WINDOW, width - 1 - WINDOW), y.clamp(WINDOW, height - 1 - WINDOW))
    return Peaks(xy, logits.flatten(1).gather(1, place), values > -math.inf, spread)


def _refine(logits: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Soft-argmax over the window around pixels (N, K), and the spread of the scores."""
    steps = torch.arange(-WINDOW, WINDOW + 1, device=logits.device)
    down, across = (each.reshape(-1) for each in torch.meshgrid(steps, steps, indexing="ij"))
    index = (y[..., None] + down) * logits.shape[2] + x[..., None] + across
    window = logits.flatten(1).gather(1, index.flatten(1)).view(index.shape)
    weights = (window / TEMPERATURE).softmax(dim=-1)
    offsets = torch.stack([across, down], dim=-1).to(logits.dtype)
    shift = weights @ offsets
    spread = (weights * (offsets - shift[..., None, :]).square().sum(dim=-1)).sum(dim=-1)
    return torch.stack([x, y], dim=-1) + shift, spread


class Proposals(NamedTuple):
    """One random pixel of each of C cells of N score maps."""

    xy: Tensor  # (N, C, 2)
    accepted: Tensor  # (N, C)
    log_probability: Tensor  # (N, C) of the pixel and of the decision, differentiable


def propose(logits: Tensor, generator: torch.Generator) -> Proposals:
    """Keypoints at random: in every cell of a grid at a random offset a pixel is drawn by the softmax of the cell's
    logits, and becomes a keypoint with the probability sigmoid(logit)."""
    number, height, width = logits.shape
    rows, columns = height // CELL - 1, width // CELL - 1
    shift = torch.randint(0, CELL + 1, (2,), generator=generator, device=logits.device)
    y = torch.arange(rows * CELL, device=logits.device) + shift[0]
    x = torch.arange(columns * CELL, device=logits.device) + shift[1]
    cut = logits.index_select(1, y).index_select(2, x)
    cells = cut.view(number, rows, CELL, columns, CELL).transpose(2, 3).reshape(number, rows * columns, CELL * CELL)
    noise = torch.rand(cells.shape, generator=generator, device=logits.device).clamp(1e-9, 1 - 1e-7)
    with torch.no_grad():
        chosen = (cells - (-noise.log()).log()).argmax(dim=-1, keepdim=True)  # Gumbel's trick
    logit = cells.gather(-1, chosen)[..., 0]
    lots = torch.rand(logit.shape, generator=generator, device=logits.device)
    accepted = lots < logit.detach().sigmoid()
    decision = functional.logsigmoid(torch.where(accepted, logit, -logit))
    log_probability = cells.log_softmax(dim=-1).gather(-1, chosen)[..., 0] + decision
    cell, within = torch.arange(rows * columns, device=logits.device), chosen[..., 0]
    place_x = x[(cell % columns * CELL) + within % CELL]
    place_y = y[(cell // columns * CELL) + within // CELL]
    return Proposals(torch.stack([place_x, place_y], dim=-1).float(), accepted, log_probability)


def imitate(logits: Tensor, votes: Tensor) -> Tensor:
    """Loss of proposals, see ``propose``, against the keypoints that other detectors agree on: ``votes`` as maps.

    In cells with votes the pixel with the most should be drawn and accepted, in the others none.
    """

    def cells(values: Tensor) -> Tensor:
        number, height, width = values.shape
        rows, columns = height // CELL, width // CELL
        cut = values[:, : rows * CELL, : columns * CELL].reshape(number, rows, CELL, columns, CELL)
        return cut.transpose(2, 3).reshape(number, rows * columns, CELL * CELL)

    scores, most = cells(logits), cells(votes).max(dim=-1)
    target = most.indices[..., None]
    drawn = scores.log_softmax(dim=-1)
    wanted = -drawn.gather(-1, target)[..., 0] + functional.softplus(-scores.gather(-1, target)[..., 0])
    unwanted = (drawn.exp() * functional.softplus(scores)).sum(dim=-1)
    return torch.where(most.values > 0, wanted, unwanted).mean()
