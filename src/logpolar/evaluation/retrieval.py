"""Retrieval of a keypoint among distractors: the paper's Fig. 5.

Of each image pair up to ``matches`` correspondences are drawn, and up to ``distractors`` other keypoints of the second
image, farther than ``APART`` px from every matched one ("further than 3 pixels away from a keypoint", says the paper).
Each keypoint of the first image has one correct candidate in this pool; its rank is the number of candidates that are
strictly nearer. Images with fewer keypoints have smaller pools, which is easier: results include the size of pools.

The fraction of ranks up to k is over all correspondences of a scene; means of scenes are unweighted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.evaluation.descriptors.registry import Method
from logpolar.evaluation.metrics import Ranks, cumulative, ranks
from logpolar.evaluation.options import RetrievalOptions
from logpolar.evaluation.pairs import DescribedImages, unit_distances
from logpolar.evaluation.patches import FileProtocol
from logpolar.evaluation.protocol import Results, decimal
from logpolar.geometry.radius_search import close_pairs

APART = 3.0
"""Pixels around a matched keypoint within which others are not distractors."""

PLACES = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 3500)
"""Ranks, counted from 1, at which cumulative fractions are reported."""

SHOWN = (1, 2, 5, 10, 100, 1000)
"""Ranks shown in tables."""


class Retrieval(FileProtocol):
    """Ranks of corresponding keypoints among distractors."""

    name = "retrieval"
    columns = ("rank-1", *(f"rank ≤ {place}" for place in SHOWN[1:]), "N (pairs)", "distractors, mean")
    _options: RetrievalOptions

    def score(self, method: Method) -> dict[str, RetrievalResult]:
        return {scene: retrieve(pairs.images(), self._options) for scene, pairs in self.described(method)}

    def report(self, results: Results, scores: Mapping[str, dict[str, RetrievalResult]]) -> None:
        largest = self._options.matches + self._options.distractors
        places = np.unique(np.geomspace(1, largest, 200).astype(int)).tolist()
        curves = {name: mean_fractions(list(scenes.values()), places) for name, scenes in scores.items()}
        for name, scenes in scores.items():
            groups = {**{scene: [result] for scene, result in scenes.items()}, "mean": list(scenes.values())}
            found = {scene: summarise(group) for scene, group in groups.items()}
            for scene, values in found.items():
                start = {"descriptor": name, "scene": scene}
                fractions = {f"rank_{place}": fraction for place, fraction in values["shares"].items()}
                rest = {key: value for key, value in values.items() if key != "shares"}
                results.records[""].append({**start, **rest, **fractions})
            results.add(name, summary_cells(found["mean"]))
            found["mean"]["curve"] = {"places": places, "shares": curves[name].round(5).tolist()}
            results.results[name] = found

        def draw() -> Any:
            from logpolar.evaluation.figures import plot_ranks

            return plot_ranks(places, curves)

        if scores:
            results.figures[""] = draw


def summary_cells(summary: Mapping[str, Any]) -> list[str]:
    """Of the columns of ``Retrieval``."""
    cells = [decimal(summary["shares"].get(str(place))) for place in SHOWN]
    return [*cells, f"{summary['correspondences']} ({summary['pairs']})", f"{summary['distractors']:.0f}"]


@dataclass(frozen=True, eq=False)
class RetrievalResult:
    """Ranks on a scene, counted from 0."""

    pairs: int
    ranks: Ranks
    distractors: float  # mean of pairs
    full_pools: int  # pairs with as many distractors as requested

    def fractions(self, places: Sequence[int] = PLACES) -> NDArray[np.float64]:
        """Fraction of correspondences whose rank, counted from 1, is at most each of the places."""
        return cumulative(self.ranks, places)


def summarise(results: Sequence[RetrievalResult], places: Sequence[int] = PLACES) -> dict[str, Any]:
    """Plain values of scenes: sums of counts, and means of fractions, which files call shares."""
    pairs = sum(result.pairs for result in results)
    fractions = mean_fractions(results, places).tolist()
    return {
        "pairs": pairs,
        "correspondences": sum(len(result.ranks) for result in results),
        "distractors": round(sum(result.distractors * result.pairs for result in results) / max(pairs, 1), 1),
        "full_pools": sum(result.full_pools for result in results),
        "shares": {str(place): round(each, 5) for place, each in zip(places, fractions, strict=True)},
    }


def mean_fractions(results: Sequence[RetrievalResult], places: Sequence[int]) -> NDArray[np.float64]:
    """The unweighted mean of scenes."""
    return np.asarray(np.mean([result.fractions(places) for result in results], axis=0), np.float64)


def retrieve(pairs: Iterable[DescribedImages], pools: RetrievalOptions) -> RetrievalResult:
    """Ranks of all pairs together; what is drawn of a pair depends on the seed and its number alone."""
    found, sizes = [], []
    for pair in pairs:
        rows, distractors = draw_pool(pair, pools, np.random.default_rng([pools.seed, pair.number]))
        here, there = pair.correspondences.indices[rows].T
        distances = unit_distances(pair.first[here], pair.second[np.concatenate([there, distractors])])
        found.append(ranks(distances, np.arange(len(here))))
        sizes.append(len(distractors))
    return RetrievalResult(
        pairs=len(found),
        ranks=np.concatenate(found).astype(np.int64) if found else np.zeros(0, np.int64),
        distractors=float(np.mean(sizes)) if sizes else 0.0,
        full_pools=sum(size == pools.distractors for size in sizes),
    )


def draw_pool(
    pair: DescribedImages, pools: RetrievalOptions, random: np.random.Generator
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows of correspondences, and of distractors among the second image's keypoints."""
    found = pair.correspondences
    chosen = _some(np.arange(len(found)), pools.matches, random)
    _, near = close_pairs(found.second.xy, pair.second_keypoints.xy, APART)
    far = np.setdiff1d(np.arange(len(pair.second_keypoints)), near)
    return chosen, _some(far, pools.distractors, random)


def _some(rows: NDArray[np.intp], most: int, random: np.random.Generator) -> NDArray[np.intp]:
    return rows if len(rows) <= most else np.sort(random.choice(rows, most, replace=False))
