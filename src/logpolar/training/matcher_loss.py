"""The loss of a matcher, of every layer: probable matches, matchability, and confidence for the early exit."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from logpolar.models.matcher_network import MatcherNetwork, log_assignment
from logpolar.training.matcher_truth import Truth

_MATCHED = -2.3
"""Log probability from which a keypoint counts as matched: 0.1."""


def decisions(log_probability: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable match of each keypoint of both images; -1 where that is improbable."""
    found = []
    for axis in (2, 1):
        best, index = log_probability.max(dim=axis)
        found.append(torch.where(best > _MATCHED, index, -1))
    return found[0], found[1]


def matcher_loss(
    network: MatcherNetwork, states: list[Tensor], descriptors: Tensor, truth: Truth, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss, and the loss of matches after the last layer alone; later layers count more."""
    total, weights = states[0].new_zeros(()), 0.0
    made, sure = [], []
    for number, (layer, values) in enumerate(zip(network.each_layer(), states, strict=True), 1):
        vectors, matchability, confidence = layer.head(values, descriptors)
        probability = log_assignment(vectors, matchability, mask)
        loss = layer_loss(probability, matchability, truth)
        total, weights = total + number * loss, weights + number
        with torch.no_grad():
            made.append(torch.cat(decisions(probability)))
        sure.append(confidence.float())
    confidence_loss = states[0].new_zeros(())
    for decided, logits in zip(made[:-1], sure[:-1], strict=True):
        same = (decided == made[-1]).float()
        each = functional.binary_cross_entropy_with_logits(logits, same, reduction="none")
        confidence_loss = confidence_loss + (each * mask).sum() / mask.sum().clamp(min=1)
    # The last layer always stops: nothing is learned there, but the weights must have a gradient.
    confidence_loss = confidence_loss + 0.0 * sure[-1].sum()
    return total / weights + 0.1 * confidence_loss / max(len(states) - 1, 1), loss.detach()


def layer_loss(log_probability: Tensor, matchability: Tensor, truth: Truth) -> Tensor:
    """Mean over pairs: half for matches, half for keypoints without one, a quarter for each image."""
    match = truth.match.clamp(min=0)
    chosen = log_probability.gather(2, match[:, :, None])[:, :, 0]
    positives = _mean(-chosen, truth.matched)
    here, there = functional.softplus(matchability.float()).chunk(2)  # -log(1 - sigmoid)
    negatives = (_mean(here, truth.alone) + _mean(there, truth.back_alone)) / 2
    return ((positives + negatives) / 2).mean()


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    """(B,): mean of the masked values of each pair; 0 if there are none."""
    return torch.where(mask, values, 0.0).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
