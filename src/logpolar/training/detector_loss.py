"""What a detector is trained for: keypoints that a frozen descriptor matches, and that are found again.

Positions of keypoints are compared where the surface or homography below them puts them. The error of a pair of
keypoints is the geometric mean of their distances in the first crop and in the second, so that it does not depend on
which of the two is seen larger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from logpolar.training.detector_crops import Crops
from logpolar.training.detector_options import ObjectiveOptions
from logpolar.training.detector_peaks import find_peaks, propose

Describe = Callable[[Crops, Tensor], Tensor]
"""Descriptors (2B, K, D) of positions (2B, K, 2) of crops."""

_FAR = 1e4


class Agreement(NamedTuple):
    """How keypoints of first crops (rows) and of second ones (columns) fit together."""

    error: Tensor  # (B, K, K) in pixels; differentiable
    known: Tensor  # (2B, K): the keypoint's place in the other crop is known and visible


def compare_places(crops: Crops, xy: Tensor, exists: Tensor) -> Agreement:
    """Errors of all pairs of keypoints ``xy`` (2B, K, 2); those that do not exist are far from all others."""
    sent, known = crops.send(xy)
    known = known & exists
    first, second = xy.chunk(2)
    sent_first, sent_second = sent.chunk(2)
    forward = _distances(sent_first, second)
    backward = _distances(sent_second, first).transpose(1, 2)
    known_first, known_second = known.chunk(2)
    # Depth may be known in one crop only: then its distance is the error.
    forward_known, backward_known = known_first[:, :, None], known_second[:, None, :]
    both = (forward.clamp(min=1e-6) * backward.clamp(min=1e-6)).sqrt()
    one = torch.where(forward_known, forward, backward)
    error = torch.where(forward_known & backward_known, both, one)
    exist_first, exist_second = exists.chunk(2)
    possible = (forward_known | backward_known) & exist_first[:, :, None] & exist_second[:, None, :]
    return Agreement(torch.where(possible, error, _FAR), known)


def _distances(first: Tensor, second: Tensor) -> Tensor:
    """(B, K, L): finite, with finite gradients where points coincide."""
    difference = (first[:, :, None] - second[:, None]).clamp(-_FAR, _FAR)
    return (difference.square().sum(dim=-1) + 1e-8).sqrt()


def mutual_matches(descriptors: Tensor, exists: Tensor) -> Tensor:
    """(2B, K): number of the mutual nearest neighbour in the other crop, -1 without one."""
    first, second = descriptors.chunk(2)
    exist_first, exist_second = exists.chunk(2)
    similarity = first @ second.transpose(1, 2)
    similarity = similarity.masked_fill(~(exist_first[:, :, None] & exist_second[:, None, :]), -2.0)
    return _mutual(similarity, -2.0)


def _mutual(similarity: Tensor, least: float) -> Tensor:
    """(2B, K): the mutually best of rows and columns of (B, K, K), -1 for values that are not above the least."""
    best_first, to_second = similarity.max(dim=2)
    best_second, to_first = similarity.max(dim=1)
    numbers = torch.arange(similarity.shape[1], device=similarity.device)
    mutual_first = (to_first.gather(1, to_second) == numbers) & (best_first > least)
    mutual_second = (to_second.gather(1, to_first) == numbers) & (best_second > least)
    return torch.cat([torch.where(mutual_first, to_second, -1), torch.where(mutual_second, to_first, -1)])


def matched_errors(error: Tensor, matches: Tensor) -> Tensor:
    """(2B, K) errors of matches, far without one."""
    both = torch.cat([error, error.transpose(1, 2)])
    found = both.gather(2, matches.clamp(min=0)[..., None])[..., 0]
    return torch.where(matches >= 0, found, _FAR)


class MatchLoss(NamedTuple):
    loss: Tensor
    keypoints: Tensor  # accepted ones of a crop, on average
    correct: Tensor  # fraction of the keypoints with known place that are matched correctly


def matchability_loss(
    logits: Tensor, crops: Crops, describe: Describe, options: ObjectiveOptions, generator: torch.Generator
) -> MatchLoss:
    """Policy gradient (REINFORCE): log-probabilities of random keypoints, weighted by what they are worth.

    A keypoint is worth 1 if its mutual nearest neighbour is at the place where it should be, less by the error; minus
    ``incorrect`` if it is elsewhere; ``found`` if it has none, but another keypoint is at the place; all minus
    ``cost``. Nothing is known, and nothing learned, where the place is unknown. At most ``keypoints`` of those that
    were accepted are matched, at random.
    """
    drawn = propose(logits, generator)
    with torch.no_grad():
        lots = torch.rand(drawn.accepted.shape, generator=generator, device=logits.device)
        allowed = drawn.accepted & crops.inside(drawn.xy, margin=2)
        order = (allowed + lots).topk(options.keypoints, dim=1).indices
        xy = drawn.xy.gather(1, order[..., None].expand(-1, -1, 2))
        exists = allowed.gather(1, order)
        agreement = compare_places(crops, xy, exists)
        matches = mutual_matches(describe(crops, xy), exists)
        error = matched_errors(agreement.error, matches)
        correct = error <= options.tolerance
        nearest = torch.cat([agreement.error.amin(dim=2), agreement.error.amin(dim=1)])
        worth = torch.where(correct, 1 - 0.5 * (error / options.tolerance).square(), 0.0)
        wrong = (matches >= 0) & ~correct & agreement.known
        worth = worth - options.incorrect * wrong
        worth = worth + options.found * ((nearest <= options.tolerance) & ~correct & ~wrong)
        counted = exists & (agreement.known | correct)
        worth = torch.where(counted, worth - options.cost, 0.0)
        share = (correct & counted).sum() / counted.sum().clamp(min=1)
    chosen = drawn.log_probability.gather(1, order)
    loss = -(worth * chosen).sum() / (len(logits) * options.keypoints)
    return MatchLoss(loss, drawn.accepted.sum() / len(logits), share)


def repeatability_loss(logits: Tensor, crops: Crops, options: ObjectiveOptions) -> tuple[Tensor, Tensor, Tensor]:
    """Losses of repeatability and of peakiness, and the fraction of peaks that are found again.

    Repeatability: the cross-entropy of sigmoid(logit) of peaks whose place in the other crop is known against being
    found again there, and the error of those that are, in units of the tolerance.
    Peakiness: the mean squared distance of the scores around a peak from it, in pixels.
    """
    peaks = find_peaks(logits, options.keypoints, crops.on_image())
    agreement = compare_places(crops, peaks.xy, peaks.exists)
    matches = _mutual(-agreement.error.detach(), -options.tolerance)
    error = matched_errors(agreement.error, matches)
    found = (matches >= 0).float()
    known = agreement.known.float()
    total = known.sum().clamp(min=1)
    entropy = functional.binary_cross_entropy_with_logits(peaks.logit, found, reduction="none")
    place = torch.where(matches >= 0, error / options.tolerance, 0.0)
    repeatability = (known * entropy).sum() / total + place.sum() / found.sum().clamp(min=1)
    exists = peaks.exists.float()
    peakiness = (exists * peaks.spread).sum() / exists.sum().clamp(min=1)
    return repeatability, peakiness, (known * found).sum() / total
