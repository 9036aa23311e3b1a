"""Validation of a matcher on scenes that it was not trained on, beside mutual nearest neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from logpolar.models.matcher_network import MatcherNetwork, log_assignment
from logpolar.settings import DEFAULT_RATIO
from logpolar.storage.atomic_io import replacing
from logpolar.training.matcher_data import Batch, DescribedViews, gather
from logpolar.training.matcher_options import MatcherBatch
from logpolar.training.matcher_plan import ViewPlan
from logpolar.training.matcher_views import VARIANTS

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


@dataclass
class Exported:
    """Matches of pairs of views, to estimate poses from elsewhere."""

    columns: dict[str, list[NDArray[np.generic]]] = field(default_factory=dict)

    def add(self, **values: NDArray[np.generic]) -> None:
        for name, value in values.items():
            self.columns.setdefault(name, []).append(value)

    def save(self, path: Path) -> None:
        with replacing(path) as half, half.open("wb") as file:
            columns: dict[str, Any] = {name: np.concatenate(values) for name, values in self.columns.items()}
            np.savez_compressed(file, **columns)


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
    network: MatcherNetwork,
    data: DescribedViews,
    pairs: dict[str, NDArray[np.int64]],
    options: MatcherBatch,
    keypoints: int,
    export: Path | None = None,
) -> dict[str, dict[str, float]]:
    """Precision, recall and precision of sure matches by set, variant and method; ``export`` writes the matches."""
    results, exported = {}, Exported()
    training = network.training
    network.eval()
    for name, views in pairs.items():
        for variant in options.variants:
            counts = {"learned": Counts(), "nearest": Counts()}
            for number, batch in _batches(data, views, variant, replace(options, keypoints=keypoints)):
                for method, (here, match, chance) in _matches(network, batch).items():
                    counts[method].add(batch, here, match, chance > _SURE)
                    if export:
                        _export(exported, data, batch, views, number, (name, variant, method), here, match, chance)
            for method, each in counts.items():
                results[f"{name}/{VARIANTS[variant]}/{method}"] = each.figures()
    network.train(training)
    if export:
        exported.save(export)
    return results


def _batches(
    data: DescribedViews, views: NDArray[np.int64], variant: int, options: MatcherBatch
) -> Iterator[tuple[int, Batch]]:
    for start in range(0, len(views), _BATCH):
        part = torch.from_numpy(views[start : start + _BATCH]).to(data.xy.device)
        yield start, gather(data, part, torch.full((len(part),), variant, device=part.device), options)


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


def _export(
    exported: Exported,
    data: DescribedViews,
    batch: Batch,
    views: NDArray[np.int64],
    start: int,
    about: tuple[str, int, str],
    here: Tensor,
    match: Tensor,
    chance: Tensor,
) -> None:
    """One row a match, and one a pair, tied by the pair's number."""
    first, second = batch.xy.chunk(2)
    for row in range(len(here)):
        chosen = here[row]
        ends = first[row][chosen], second[row][match[row][chosen]]
        pair = len(exported.columns.get("about", []))
        exported.add(
            xy=torch.cat(ends, dim=1).cpu().numpy().astype(np.float32),
            confidence=chance[row][chosen].float().cpu().numpy().astype(np.float16),
            pair=np.full(int(chosen.sum()), pair, np.int32),
            about=np.array(["/".join(map(str, about))]),
            views=views[start + row][None],
            projections=data.projection[views[start + row]].cpu().numpy()[None],
        )
