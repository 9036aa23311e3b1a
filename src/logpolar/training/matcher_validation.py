"""Validation of a matcher on scenes that it was not trained on, beside mutual nearest neighbours."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from logpolar.models.matcher_network import MatcherNetwork, log_assignment
from logpolar.settings import DEFAULT_RATIO
from logpolar.training.matcher_data import Batch, gather
from logpolar.training.matcher_options import MatcherConfig
from logpolar.training.matcher_plan import ViewPlan
from logpolar.training.matcher_views import Views

_SURE = 0.9
"""Confidence at which calibration is measured."""

_BATCH = 16


@dataclass
class Counts:
    """Sums over pairs; uncertain matches are in none of them."""

    correct: int = 0
    incorrect: int = 0
    found: int = 0  # keypoints with a true match that were matched correctly
    existing: int = 0  # keypoints with a true match
    sure_correct: int = 0
    sure_incorrect: int = 0

    def add(self, batch: Batch, here: Tensor, match: Tensor, sure: Tensor) -> None:
        """Matches of keypoints (B, N) of the first view, where ``here`` says so."""
        truth, index = batch.truth, match.clamp(min=0)[:, :, None]
        right, wrong = (here & each.gather(2, index)[:, :, 0] for each in (truth.correct, truth.incorrect))
        self.correct += int(right.sum())
        self.incorrect += int(wrong.sum())
        self.found += int((right & truth.matched).sum())
        self.existing += int(truth.matched.sum())
        self.sure_correct += int((right & sure).sum())
        self.sure_incorrect += int((wrong & sure).sum())

    def figures(self) -> dict[str, float]:
        """Precision of sure matches only if there are any."""
        sure = self.sure_correct + self.sure_incorrect
        return {
            "precision": self.correct / max(self.correct + self.incorrect, 1),
            "recall": self.found / max(self.existing, 1),
            "true_matches": float(self.existing),
            **({"sure_precision": self.sure_correct / sure} if sure else {}),
        }


def validation_pairs(plan: ViewPlan, most: int, seed: int = 0) -> dict[str, NDArray[np.int64]]:
    """Pairs of views (P, 2), at most ``most`` of a scene: *plain* images, and *warped* ones with plain ones."""
    random, starts = np.random.default_rng(seed), plan.starts
    plain, warped = [], []
    for pairs in plan.pairs["scene"].values():
        chosen = np.array(pairs)[random.permutation(len(pairs))[:most]]
        plain.append(starts[chosen])
        other = np.array([random.integers(1, max(plan.views[image], 2)) for image in chosen[:, 1]])
        warped.append(starts[chosen] + np.stack([np.zeros_like(other), other], axis=1))
    found = {"plain": np.concatenate(plain)}
    return found | ({"warped": np.concatenate(warped)} if min(plan.views) > 1 else {})


def validate(
    network: MatcherNetwork, data: Views, pairs: dict[str, NDArray[np.int64]], config: MatcherConfig
) -> dict[str, dict[str, float]]:
    """Precision, recall and precision of sure matches by set and method, with all keypoints of the views."""
    options, results = replace(config.batch, keypoints=config.views.keypoints), dict[str, dict[str, float]]()
    training = network.training
    network.eval()
    for name, views in pairs.items():
        counts = {"learned": Counts(), "nearest": Counts()}
        for part in torch.split(torch.from_numpy(views).to(data.xy.device), _BATCH):
            batch = gather(data, part, options, config.views.size)
            for method, (here, match, chance) in _matches(network, batch).items():
                counts[method].add(batch, here, match, chance > _SURE)
        results |= {f"{name}/{method}": each.figures() for method, each in counts.items()}
    network.train(training)
    return results


@torch.no_grad()
def _matches(network: MatcherNetwork, batch: Batch) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Of each method: which keypoints of the first view match, which of the second, and with what confidence."""
    kind = batch.xy.device.type
    with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda"):
        states = network(batch.descriptors, batch.table, batch.mask)[-1]
        vectors, matchability, _ = network.each_layer()[-1].head(states, batch.descriptors)
        probability = log_assignment(vectors, matchability, batch.mask)
    here, match, best = _mutual(probability)
    learned = here & (best > np.log(0.1)), match, best.exp()
    first, second = batch.descriptors.float().chunk(2)
    mask_first, mask_second = batch.mask.chunk(2)
    likeness = torch.where(
        mask_first[:, :, None] & mask_second[:, None, :],
        first @ second.transpose(1, 2),
        -torch.ones((), device=first.device),
    )
    here, match, best = _mutual(likeness)
    two = likeness.topk(2, dim=2).values
    distance = (2 - 2 * two).clamp(min=0).sqrt()
    passed = distance[..., 0] <= DEFAULT_RATIO * distance[..., 1]
    return {"learned": learned, "nearest": (here & passed & mask_first, match, torch.zeros_like(best))}


def _mutual(score: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    best, match = score.max(dim=2)
    back = score.argmax(dim=1)
    rows = torch.arange(score.shape[1], device=score.device)
    return back.gather(1, match) == rows, match, best
