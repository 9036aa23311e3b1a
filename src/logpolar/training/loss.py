"""The loss: hardest-in-batch triplets, as HardNet and the paper's code have it, and what may be added to it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from logpolar.training.options import LossOptions

_FAR = 10.0  # above any distance between unit vectors
_COPIES = 0.008  # distance below which two patches are copies of each other
_NEIGHBOURS = 8  # of each descriptor, in the second-order term


def distance_matrix(anchors: Tensor, positives: Tensor) -> Tensor:
    """Euclidean distances (N, M) between unit vectors: sqrt(2 - 2 <a, b>), kept away from 0 for the gradient."""
    return (2 - 2 * anchors @ positives.T).clamp(min=1e-6).sqrt()


def descriptor_loss(anchors: Tensor, positives: Tensor, excluded: Tensor, options: LossOptions) -> Tensor:
    """The loss that the options ask for; ``excluded`` (N, N) marks pairs that are neither right nor wrong."""
    loss = anchors.new_zeros(())
    if options.triplet:
        triplets = hardest_triplet_loss(distance_matrix(anchors, positives), excluded, options.margin)
        loss = loss + options.triplet * triplets
    if options.second_order:
        loss = loss + options.second_order * second_order_loss(anchors, positives, excluded)
    if options.softmax:
        loss = loss + options.softmax * softmax_loss(anchors @ positives.T, excluded, options.temperature)
    return loss


def hardest_triplet_loss(distances: Tensor, excluded: Tensor, margin: float = 1.0) -> Tensor:
    """mean over k of max(0, margin + d(a_k, p_k) - n_k), all distances plain, not squared.

    n_k is the distance of the nearest wrong pair of which a_k or p_k is a part: the smallest entry of row k and of
    column k off the diagonal. Entries below 0.008 are copies of the same patch, not wrong pairs, and do not count.
    """
    wrong = distances + _FAR * (excluded | _own(distances) | (distances < _COPIES))
    nearest = torch.minimum(wrong.amin(dim=1), wrong.amin(dim=0))
    return (margin + distances.diagonal() - nearest).clamp(min=0).mean()


def imitation_loss(descriptors: Tensor, targets: Tensor) -> Tensor:
    """Mean squared distance of descriptors (N, 128) to those that a teacher has for the same patches."""
    return (descriptors - targets).square().sum(dim=1).mean()


def softmax_loss(similarities: Tensor, excluded: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of finding the partner among all of the batch, mean of both directions."""
    logits = (similarities / temperature).masked_fill(excluded & ~_own(similarities), -torch.inf)
    partner = torch.arange(len(logits), device=logits.device)
    return (functional.cross_entropy(logits, partner) + functional.cross_entropy(logits.T, partner)) / 2


def second_order_loss(anchors: Tensor, positives: Tensor, excluded: Tensor) -> Tensor:
    """How differently two views see the neighbourhood of a descriptor (Tian et al., SOSNet, 2019).

    mean over i of sqrt(sum over j of (d(a_i, a_j) - d(p_i, p_j))^2), j the 8 nearest of i among anchors or positives.
    """
    among_anchors, among_positives = distance_matrix(anchors, anchors), distance_matrix(positives, positives)
    away = _FAR * (excluded | excluded.T | _own(among_anchors))
    near = torch.zeros_like(excluded)
    for distances in (among_anchors, among_positives):
        nearest = (distances.detach() + away).topk(min(_NEIGHBOURS, len(distances)), largest=False).indices
        near.scatter_(1, nearest, True)
    near &= away == 0
    difference = torch.where(near, among_anchors - among_positives, 0)
    return (difference.square().sum(dim=1) + 1e-8).sqrt().mean()


def _own(matrix: Tensor) -> Tensor:
    return torch.eye(len(matrix), dtype=torch.bool, device=matrix.device)
