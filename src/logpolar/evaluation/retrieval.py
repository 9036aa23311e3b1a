"""Finding a patch among thousands: the paper's Fig. 5.

Of each image pair up to ``matches`` correspondences are drawn, and up to ``distractors`` other keypoints of the second
image, farther than ``APART`` px from every matched one ("further than 3 pixels away from a keypoint", says the paper).
Each keypoint of the first image then has one right answer in the pool of both, and its rank is how many answers are
strictly nearer than the right one. An image with fewer keypoints has a smaller pool, and the task is easier for it: how
large pools are is part of the result.

The share of ranks up to k is that of all correspondences of a scene together; scenes count the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.evaluation.metrics import ranks
from logpolar.evaluation.options import RetrievalOptions
from logpolar.evaluation.pairs import DescribedImages, unit_distances
from logpolar.evaluation.ranking import Ranks, cumulative
from logpolar.geometry.radius_search import close_pairs

APART = 3.0
"""Pixels from a matched keypoint within which another is no distractor."""

PLACES = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 3500)
"""Ranks, the best being 1, up to which shares are given."""


@dataclass(frozen=True, eq=False)
class RetrievalResult:
    """Ranks on a scene, the best being 0."""

    pairs: int
    ranks: Ranks
    distractors: float  # of a pair, mean
    full_pools: int  # pairs that have as many distractors as there should be

    def shares(self, places: Sequence[int] = PLACES) -> NDArray[np.float64]:
        """Share of correspondences whose rank, counted from 1, is at most each of the places."""
        return cumulative(self.ranks, places)


@dataclass(frozen=True)
class RetrievalSummary:
    """Plain values of a scene, or of the mean of several."""

    pairs: int
    correspondences: int
    distractors: float
    full_pools: int
    shares: dict[int, float]

    def to_dict(self) -> dict[str, Any]:
        shares = {str(place): round(share, 5) for place, share in self.shares.items()}
        return asdict(self) | {"distractors": round(self.distractors, 1), "shares": shares}


def summarise(results: Sequence[RetrievalResult], places: Sequence[int] = PLACES) -> RetrievalSummary:
    """Counts added up, shares the mean over scenes."""
    pairs = sum(result.pairs for result in results)
    return RetrievalSummary(
        pairs=pairs,
        correspondences=sum(len(result.ranks) for result in results),
        distractors=sum(result.distractors * result.pairs for result in results) / max(pairs, 1),
        full_pools=sum(result.full_pools for result in results),
        shares=dict(zip(places, mean_shares(results, places).tolist(), strict=True)),
    )


def mean_shares(results: Sequence[RetrievalResult], places: Sequence[int]) -> NDArray[np.float64]:
    """Each scene counts the same."""
    return np.asarray(np.mean([result.shares(places) for result in results], axis=0), np.float64)


def retrieve(pairs: Iterable[DescribedImages], pools: RetrievalOptions, seed: int) -> RetrievalResult:
    """Ranks of all pairs together; what is drawn of a pair depends on the seed and its number alone."""
    found, sizes = [], []
    for pair in pairs:
        rows, distractors = draw_pool(pair, pools, np.random.default_rng([seed, pair.number]))
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
    """Rows of correspondences, and rows of the second image's keypoints that are distractors."""
    found = pair.correspondences
    chosen = _some(np.arange(len(found)), pools.matches, random)
    _, near = close_pairs(found.second.xy, pair.second_keypoints.xy, APART)
    far = np.setdiff1d(np.arange(len(pair.second_keypoints)), near)
    return chosen, _some(far, pools.distractors, random)


def _some(rows: NDArray[np.intp], most: int, random: np.random.Generator) -> NDArray[np.intp]:
    return rows if len(rows) <= most else np.sort(random.choice(rows, most, replace=False))
