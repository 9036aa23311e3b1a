"""Losses: hardest-in-batch triplets (HardNet, as in the paper's code), second-order similarity, distillation."""

from __future__ import annotations

import torch
from torch import Tensor

from logpolar.training.options import LossOptions

_FAR = 10.0  # above any distance between unit vectors
_COPIES = 0.008  # distance below which two patches are copies of each other
_NEIGHBOURS = 8  # of each descriptor, in the second-order term


def distance_matrix(anchors: Tensor, positives: Tensor) -> Tensor:
    """Euclidean distances (N, M) between unit vectors: sqrt(2 - 2 <a, b>), kept away from 0 for the gradient."""
    return (2 - 2 * anchors @ positives.T).clamp(min=1e-6).sqrt()


def descriptor_loss(anchors: Tensor, positives: Tensor, excluded: Tensor, options: LossOptions) -> Tensor:
    """The weighted sum of the losses; ``excluded`` (N, N) marks pairs that are neither positive nor negative."""
    loss = anchors.new_zeros(())
    if options.triplet:
        triplets = hardest_triplet_loss(distance_matrix(anchors, positives), excluded, options.margin)
        loss = loss + options.triplet * triplets
    if options.second_order:
        loss = loss + options.second_order * second_order_loss(anchors, positives, excluded)
    return loss


def hardest_triplet_loss(distances: Tensor, excluded: Tensor, margin: float = 1.0) -> Tensor:
    """mean over k of max(0, margin + d(a_k, p_k) - n_k), all distances plain, not squared.

    n_k is the distance of the hardest negative of a_k or p_k: the smallest off-diagonal entry of row k and column k.
    Entries below 0.008 are copies of the same patch, not negatives, and do not count.
    """
    negative = distances + _FAR * (excluded | _own(distances) | (distances < _COPIES))
    nearest = torch.minimum(negative.amin(dim=1), negative.amin(dim=0))
    return (margin + distances.diagonal() - nearest).clamp(min=0).mean()


def distillation_loss(descriptors: Tensor, targets: Tensor) -> Tensor:
    """Mean squared distance between descriptors (N, 128) and a teacher's of the same patches."""
    return (descriptors - targets).square().sum(dim=1).mean()


def second_order_loss(anchors: Tensor, positives: Tensor, excluded: Tensor) -> Tensor:
    """Second-order similarity: distances among anchors should equal those among positives (SOSNet, Tian et al. 2019).

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
