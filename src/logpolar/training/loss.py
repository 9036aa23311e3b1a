"""The loss: hardest-in-batch triplets, as HardNet and the paper's code have it."""

from __future__ import annotations

import torch
from torch import Tensor

_FAR = 10.0  # above any distance between unit vectors


def distance_matrix(anchors: Tensor, positives: Tensor) -> Tensor:
    """Euclidean distances (N, M) between unit vectors: sqrt(2 - 2 <a, b>), kept away from 0 for the gradient."""
    return (2 - 2 * anchors @ positives.T).clamp(min=1e-6).sqrt()


def hardest_triplet_loss(anchors: Tensor, positives: Tensor, margin: float = 1.0) -> Tensor:
    """mean over k of max(0, margin + d(a_k, p_k) - n_k), all distances plain, not squared.

    n_k is the distance of the nearest wrong pair of which a_k or p_k is a part: the smallest entry of row k and of
    column k off the diagonal. Entries below 0.008 are copies of the same patch, not wrong pairs, and do not count.
    """
    distances = distance_matrix(anchors, positives)
    own = torch.eye(len(distances), dtype=torch.bool, device=distances.device)
    wrong = distances + _FAR * (own | (distances < 0.008))
    nearest = torch.minimum(wrong.amin(dim=1), wrong.amin(dim=0))
    return (margin + distances.diagonal() - nearest).clamp(min=0).mean()
