"""How well descriptors do on pairs of HPatches: ranks of the right partners, and accuracy of the matches.

Mode ``paper``: the correspondences of a split are one pool, see ``pooled_ranks``. Mode ``full``: ranks are those among
the keypoints of the second image, see ``evaluation.pairs``, and each pair counts the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.correspondences import ImagePair
from logpolar.evaluation.hpatches import SPLITS, NamedPair
from logpolar.evaluation.metrics import ranks
from logpolar.evaluation.options import HPatchesOptions
from logpolar.evaluation.pairs import Describe, DescribedPair, Describer, describe_named, pool_of
from logpolar.evaluation.ranking import pooled_ranks, rank1
from logpolar.geometry.cameras import Matrix
from logpolar.geometry.homography import warp_points
from logpolar.keypoints import Keypoints
from logpolar.matching.nearest import MatchingOptions, match_descriptors
from logpolar.storage.documents import rounded
from logpolar.types import FloatArray

THRESHOLDS = tuple(range(1, 11))
"""Pixels at which the accuracy of matches is measured."""

Descriptors = tuple[FloatArray, FloatArray]
"""Of all keypoints of the first image and of the second."""


@dataclass(frozen=True)
class SplitScore:
    """Shares, not percent; NaN where there is nothing."""

    sequences: int
    pairs: int
    pairs_ranked: int  # those that have correspondences
    correspondences: int
    rank1: float
    matches: int  # mutual nearest neighbours of all pairs together
    matching_accuracy: tuple[float, ...]  # at each of the thresholds; mean over the pairs

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None, unlike NaN, is JSON."""
        accuracy = [rounded(share) for share in self.matching_accuracy]
        return asdict(self) | {"rank1": rounded(self.rank1), "matching_accuracy": accuracy}


@dataclass(frozen=True)
class HPatchesScore:
    """Scores by split; a split without pairs is not in it."""

    options: HPatchesOptions
    thresholds: tuple[float, ...]
    splits: dict[str, SplitScore]

    def to_dict(self) -> dict[str, Any]:
        splits = {split: score.to_dict() for split, score in self.splits.items()}
        return {"options": asdict(self.options), "thresholds": list(self.thresholds), "splits": splits}


class HPatchesTally:
    """Scores a descriptor pair by pair, so that several can be scored while pairs are made once.

    Descriptors have unit length; ``options`` are those that the pairs are made with. Of each pair all keypoints are
    described. Consecutive pairs with the same first image have it described once.
    """

    def __init__(
        self,
        describe: Describe | Describer,
        options: HPatchesOptions | None = None,
        thresholds: Sequence[float] = THRESHOLDS,
    ) -> None:
        self._describe, self._thresholds = describe_named(describe), tuple(thresholds)
        self._options = options or HPatchesOptions()
        self._splits = {split: _Tally() for split in SPLITS.values()}
        self._first: tuple[ImagePair, FloatArray] | None = None

    def add(self, named: NamedPair) -> None:
        pair, known = named.pair, self._first
        if known is None or known[0].first is not pair.first or known[0].first_keypoints is not pair.first_keypoints:
            known = pair, self._described(f"{named.sequence}/1", pair.first, pair.first_keypoints)
            self._first = known
        second = self._described(_second_key(named, self._options), pair.second, pair.second_keypoints)
        self._splits[named.split].add(named, (known[1], second), self._options.mode == "paper", self._thresholds)

    def _described(self, key: str, view: NDArray[np.uint8], keypoints: Keypoints) -> FloatArray:
        return _checked(self._describe(key, view, keypoints), len(keypoints))

    def score(self) -> HPatchesScore:
        scores = {split: tally.score() for split, tally in self._splits.items() if tally.accuracies}
        return HPatchesScore(self._options, self._thresholds, scores)


def _second_key(named: NamedPair, options: HPatchesOptions) -> str:
    """The name of a second image, which tells its turned and zoomed copies apart."""
    altered = f"@turn={options.turn:g},zoom={options.zoom:g}" if (options.turn, options.zoom) != (0, 1) else ""
    return f"{named.sequence}/{named.number}{altered}"


def score_hpatches(
    pairs: Iterable[NamedPair],
    describe: Describe | Describer,
    options: HPatchesOptions | None = None,
    thresholds: Sequence[float] = THRESHOLDS,
) -> HPatchesScore:
    """The score of one descriptor; see ``HPatchesTally``."""
    tally = HPatchesTally(describe, options, thresholds)
    for named in pairs:
        tally.add(named)
    return tally.score()


def matching_accuracy(
    pair: ImagePair, descriptors: Descriptors, homography: Matrix, thresholds: Sequence[float] = THRESHOLDS
) -> tuple[FloatArray, int]:
    """Share of mutual nearest neighbours that lie within each threshold, and how many neighbours there are.

    Pixels are those of the second image, from where the homography sends a keypoint to its match; at a threshold
    counts as within. Without any match no share is right: 0.
    """
    matched = match_descriptors(*descriptors, MatchingOptions(ratio=None)).indices
    here, there = matched.T
    with np.errstate(divide="ignore", invalid="ignore"):  # points that go to infinity are within no threshold
        sent, _ = warp_points(homography, pair.first_keypoints.xy[here].astype(np.float64))
        distance = np.linalg.norm(sent - pair.second_keypoints.xy[there], axis=1)
    shares = [float(np.mean(distance <= threshold)) if len(matched) else 0.0 for threshold in thresholds]
    return np.array(shares, np.float32), len(matched)


@dataclass
class _Tally:
    """What is gathered of a split."""

    sequences: set[str] = field(default_factory=set)
    correspondences: int = 0
    ranked: list[float] = field(default_factory=list)  # rank-1 of each pair; in one pool only that there was one
    pool: list[Descriptors] = field(default_factory=list)
    accuracies: list[FloatArray] = field(default_factory=list)
    matches: int = 0

    def add(self, named: NamedPair, descriptors: Descriptors, pooled: bool, thresholds: Sequence[float]) -> None:
        self.sequences.add(named.sequence)
        found = named.pair.correspondences
        if len(found):
            self.correspondences += len(found)
            here, there = found.indices.T
            if pooled:
                self.pool.append((descriptors[0][here], descriptors[1][there]))
            else:
                second = descriptors[1][pool_of(named.pair)]
                self.ranked.append(_pair_rank1(DescribedPair(descriptors[0][here], second, found)))
        accuracy, matches = matching_accuracy(named.pair, descriptors, named.homography, thresholds)
        self.accuracies.append(accuracy)
        self.matches += matches

    def score(self) -> SplitScore:
        share = math.nan
        if self.pool:
            first, second = (np.concatenate(side) for side in zip(*self.pool, strict=True))
            share = rank1(pooled_ranks(first, second))
        elif self.ranked:
            share = float(np.mean(self.ranked))
        return SplitScore(
            sequences=len(self.sequences),
            pairs=len(self.accuracies),
            pairs_ranked=len(self.pool) + len(self.ranked),
            correspondences=self.correspondences,
            rank1=share,
            matches=self.matches,
            matching_accuracy=tuple(np.mean(self.accuracies, axis=0).tolist()),
        )


def _pair_rank1(pair: DescribedPair) -> float:
    return rank1(ranks(pair.distances(), np.arange(len(pair.first))))


def _checked(descriptors: FloatArray, count: int) -> FloatArray:
    if len(descriptors) != count:
        raise ValueError(f"{count} keypoints have got {len(descriptors)} descriptors")
    if not np.isfinite(descriptors).all():  # NaN is nearer than nothing, and would rank first
        raise ValueError("descriptors are not finite")
    return descriptors
