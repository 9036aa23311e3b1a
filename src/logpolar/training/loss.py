"""Losses: cross-entropy, hardest-in-batch triplets (HardNet, the paper's), second-order similarity, distillation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from logpolar.training.options import LossOptions

_FAR = 10.0  # above any distance between unit vectors
_COPIES = 0.008  # distance below which two patches are copies of each other
_IMPOSSIBLE = -1e4  # a logit
_NEIGHBOURS = 8  # of each descriptor, in the second-order term


def distance_matrix(anchors: Tensor, positives: Tensor) -> Tensor:
    """Euclidean distances (N, M) between unit vectors: sqrt(2 - 2 <a, b>), kept away from 0 for the gradient."""
    return (2 - 2 * anchors @ positives.T).clamp(min=1e-6).sqrt()


def descriptor_loss(anchors: Tensor, positives: Tensor, excluded: Tensor, options: LossOptions) -> Tensor:
    """The weighted sum of the losses; ``excluded`` (N, N) marks pairs that are neither positive nor negative."""
    loss = anchors.new_zeros(())
    if options.softmax:
        found = softmax_loss(anchors, positives, excluded, options.scale, options.angular_margin)
        loss = loss + options.softmax * found
    if options.triplet:
        triplets = hardest_triplet_loss(distance_matrix(anchors, positives), excluded, options.margin)
        loss = loss + options.triplet * triplets
    if options.second_order:
        loss = loss + options.second_order * second_order_loss(anchors, positives, excluded)
    return loss


def softmax_loss(
    anchors: Tensor, positives: Tensor, excluded: Tensor, scale: float = 16.0, margin: float = 0.2
) -> Tensor:
    """Cross-entropy of each positive among the negatives of the batch, both ways, over ``scale``.

    Logits are ``scale`` times the cosine; the angle of the positive is enlarged by ``margin``, as in ArcFace (Deng et
    al. 2019). Unlike the triplets it learns from all negatives, each as much as it is likely. Over the scale, gradients
    with respect to cosines are at most 1. Copies of a patch do not count, as below.
    """
    cosines = anchors @ positives.T
    own, sine = cosines.diagonal(), (1 - cosines.diagonal().square()).clamp(min=1e-4).sqrt()
    enlarged = own * math.cos(margin) - sine * math.sin(margin)
    # Where the angle would exceed pi its cosine would rise again: a line from there on.
    wanted = scale * torch.where(own > -math.cos(margin), enlarged, own - margin * math.sin(margin))
    copies = 2 - 2 * cosines.detach() < _COPIES**2
    negatives = (scale * cosines).masked_fill(excluded | _own(cosines) | copies, _IMPOSSIBLE)
    ways = [torch.logaddexp(wanted, negatives.logsumexp(dim=dim)) - wanted for dim in (0, 1)]
    return torch.stack(ways).mean() / scale


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
