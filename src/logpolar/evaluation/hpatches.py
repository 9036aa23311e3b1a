"""HPatches: ranks of corresponding keypoints, and accuracy of matches; the paper's Table 3.

Mode ``paper``: the correspondences of a split are one pool, see ``metrics.pooled_ranks``. Mode ``full``: ranks are
among the keypoints of the second image, see ``evaluation.pairs``, and figures are unweighted means of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.correspondences import ImagePair
from logpolar.evaluation.cache import Uncached, listing_identity
from logpolar.evaluation.descriptors.keypoint_sources import FixedSize, open_source
from logpolar.evaluation.descriptors.registry import Method
from logpolar.evaluation.hpatches_sequences import SPLITS, NamedPair, Sequences
from logpolar.evaluation.metrics import pooled_ranks, rank1, ranks
from logpolar.evaluation.options import HPatchesOptions, RunOptions, recorded
from logpolar.evaluation.pairs import pool_of, unit_distances
from logpolar.evaluation.protocol import Protocol, Results, bar, decimal, read_numbers
from logpolar.geometry.cameras import Matrix
from logpolar.geometry.homography import warp_points
from logpolar.keypoints import Keypoints
from logpolar.matching.nearest import match_descriptors
from logpolar.matching.options import MatchingOptions
from logpolar.storage.documents import rounded
from logpolar.types import FloatArray

THRESHOLDS = tuple(range(1, 11))
"""Pixels at which the accuracy of matches is measured."""

_SHOWN = 3  # the threshold in tables

Descriptors = tuple[FloatArray, FloatArray]
"""Of all keypoints of the first image and of the second."""

Scores = dict[HPatchesOptions, "HPatchesScore"]
"""By rotation and zoom."""


class HPatches(Protocol):
    """Rank-1 and mean matching accuracy, also of rotated and zoomed second images."""

    name = "hpatches"
    columns = (
        *("rotation", "zoom"),
        *(f"{split}, {what}" for split in SPLITS.values() for what in ("rank-1", f"MMA {_SHOWN} px", "N (pairs)")),
    )

    def __init__(
        self,
        run: RunOptions,
        folder: Path,
        options: HPatchesOptions,
        rotations: str = "",
        zooms: str = "",
        detector: str = "sift",
        fixed_size: FixedSize = None,
    ) -> None:
        super().__init__(run)
        self._folder, self._base, self.max_keypoints = folder, options, options.keypoints
        self._rotated = [replace(options, rotation=each) for each in read_numbers(rotations, "--rotations", -180, 180)]
        self._zoomed = [replace(options, zoom=each) for each in read_numbers(zooms, "--zooms", 0.25, 4)]
        self.source = open_source(detector, options.keypoints, options.contrast, fixed_size, run.engine["device"])
        self.options = {**recorded(options), "turns": rotations, "zooms": zooms, **self.source.settings}

    def prepare(self) -> None:
        self._sequences = Sequences(self._folder, self._base)
        files = [path for path in self._folder.glob("[iv]_*/*") if path.is_file()]
        self.data = listing_identity(self._folder, files)

    def score(self, method: Method) -> Scores:
        source, found = self.source_of(method), Scores()
        settings = {"max_size": self._base.max_size, "opencv": cv2.__version__, **source.settings}
        with self.cache(method, self.data, settings) as views:
            for at in dict.fromkeys([self._base, *self._rotated, *self._zoomed]):
                progress = bar(f"{method.name}, rotation {at.rotation:g}, zoom {at.zoom:g}", "pair")
                tally = HPatchesTally(views, at)
                for named in progress(self._sequences.pairs(source, at.rotation, at.zoom)):
                    tally.add(named)
                found[at] = tally.score()
        return found

    def report(self, results: Results, scores: Mapping[str, Scores]) -> None:
        for name, found in scores.items():
            results.results[name] = [score.to_dict() for score in found.values()]
            for score in found.values():
                _add(results, name, score)
        if self._rotated or self._zoomed:
            results.notes.append("Rotated and zoomed images have other keypoints, and pools of other sizes: see N.")
        if scores:
            results.figures["-mma"] = lambda: self._draw_accuracy(scores)
        if scores and self._rotated:
            results.figures["-turns"] = lambda: self._draw_sweep(scores, self._rotated, "rotation")
        if scores and self._zoomed:
            results.figures["-zooms"] = lambda: self._draw_sweep(scores, self._zoomed, "zoom")

    def _splits(self, scores: Mapping[str, Scores]) -> list[str]:
        """Those that all methods have."""
        return [s for s in SPLITS.values() if all(s in found[self._base].splits for found in scores.values())]

    def _draw_accuracy(self, scores: Mapping[str, Scores]) -> Any:
        from logpolar.evaluation.figures import plot_curves

        base = {name: found[self._base].splits for name, found in scores.items()}
        panels = {
            split: {name: (THRESHOLDS, splits[split].matching_accuracy) for name, splits in base.items()}
            for split in self._splits(scores)
        }
        return plot_curves(panels, "threshold, px", "mean matching accuracy")

    def _draw_sweep(self, scores: Mapping[str, Scores], conditions: Sequence[HPatchesOptions], by: str) -> Any:
        from logpolar.evaluation.figures import plot_curves

        ordered = sorted({self._base, *conditions}, key=lambda at: float(getattr(at, by)))
        places = [float(getattr(at, by)) for at in ordered]
        panels = {
            split: {name: (places, [found[at].splits[split].rank1 for at in ordered]) for name, found in scores.items()}
            for split in self._splits(scores)
        }
        label = "rotation of the second image, degrees" if by == "rotation" else "zoom of the second image"
        return plot_curves(panels, label, "rank-1", log2=by == "zoom")


def _add(results: Results, name: str, score: HPatchesScore) -> None:
    at = score.options
    cells = [f"{at.rotation:g}", f"{at.zoom:g}"]
    for split in SPLITS.values():
        found = score.splits.get(split)
        if found is None:
            cells += ["", "", "0 (0)"]
            continue
        accuracy = dict(zip(score.thresholds, found.matching_accuracy, strict=True))
        cells += [decimal(found.rank1), decimal(accuracy[_SHOWN]), f"{found.correspondences} ({found.pairs})"]
        values = found.to_dict()
        rounded = zip(score.thresholds, values.pop("matching_accuracy"), strict=True)
        where = {"descriptor": name, "turn": at.rotation, "zoom": at.zoom, "split": split}
        results.records[""].append({**where, **values, **{f"mma_{pixels:g}": each for pixels, each in rounded}})
    results.add(name, cells)


@dataclass(frozen=True)
class SplitScore:
    """Fractions, not percent; NaN for missing values."""

    sequences: int
    pairs: int
    pairs_ranked: int  # those with correspondences
    correspondences: int
    rank1: float
    matches: int  # mutual nearest neighbours of all pairs
    matching_accuracy: tuple[float, ...]  # at each of the thresholds; mean of pairs

    def to_dict(self) -> dict[str, Any]:
        accuracy = [rounded(fraction) for fraction in self.matching_accuracy]
        return asdict(self) | {"rank1": rounded(self.rank1), "matching_accuracy": accuracy}


@dataclass(frozen=True)
class HPatchesScore:
    """Scores by split; a split without pairs is not in it."""

    options: HPatchesOptions
    thresholds: tuple[float, ...]
    splits: dict[str, SplitScore]

    def to_dict(self) -> dict[str, Any]:
        splits = {split: score.to_dict() for split, score in self.splits.items()}
        return {"options": recorded(self.options), "thresholds": list(self.thresholds), "splits": splits}


class HPatchesTally:
    """Scores pair by pair, with unit descriptors of all keypoints of each pair; ``options``: those of the pairs.

    Consecutive pairs with the same first image have it described once.
    """

    def __init__(self, views: Uncached, options: HPatchesOptions, thresholds: Sequence[float] = THRESHOLDS) -> None:
        self._views, self._options, self._thresholds = views, options, tuple(thresholds)
        self._splits = {split: _Tally() for split in SPLITS.values()}
        self._first: tuple[ImagePair, FloatArray] | None = None

    def add(self, named: NamedPair) -> None:
        pair, known = named.pair, self._first
        if known is None or known[0].first is not pair.first or known[0].first_keypoints is not pair.first_keypoints:
            known = pair, self._descriptors(f"{named.sequence}/1", pair.first, pair.first_keypoints)
            self._first = known
        second = self._descriptors(_second_key(named, self._options), pair.second, pair.second_keypoints)
        self._splits[named.split].add(named, (known[1], second), self._options.mode == "paper", self._thresholds)

    def _descriptors(self, key: str, view: NDArray[np.uint8], keypoints: Keypoints) -> FloatArray:
        descriptors = self._views.describe(key, view, keypoints)
        if len(descriptors) != len(keypoints):
            raise ValueError(f"{len(keypoints)} keypoints, but {len(descriptors)} descriptors")
        if not np.isfinite(descriptors).all():  # NaN would rank first
            raise ValueError("descriptors are not finite")
        return descriptors

    def score(self) -> HPatchesScore:
        scores = {split: tally.score() for split, tally in self._splits.items() if tally.accuracies}
        return HPatchesScore(self._options, self._thresholds, scores)


def _second_key(named: NamedPair, options: HPatchesOptions) -> str:
    """The name of a second image in caches, with its rotation and zoom."""
    altered = f"@turn={options.rotation:g},zoom={options.zoom:g}" if (options.rotation, options.zoom) != (0, 1) else ""
    return f"{named.sequence}/{named.number}{altered}"


def matching_accuracy(
    pair: ImagePair, descriptors: Descriptors, homography: Matrix, thresholds: Sequence[float] = THRESHOLDS
) -> tuple[FloatArray, int]:
    """Fraction of mutual nearest neighbours within each threshold (0 without any), and their number.

    Distances are in pixels of the second image, from the warped keypoint to its match; thresholds are inclusive.
    """
    matched = match_descriptors(*descriptors, MatchingOptions(ratio=None)).indices
    here, there = matched.T
    with np.errstate(divide="ignore", invalid="ignore"):  # points at infinity are within no threshold
        sent, _ = warp_points(homography, pair.first_keypoints.xy[here].astype(np.float64))
        distance = np.linalg.norm(sent - pair.second_keypoints.xy[there], axis=1)
    fractions = [float(np.mean(distance <= threshold)) if len(matched) else 0.0 for threshold in thresholds]
    return np.array(fractions, np.float32), len(matched)


@dataclass
class _Tally:
    """Of a split."""

    sequences: set[str] = field(default_factory=set)
    correspondences: int = 0
    ranked: list[float] = field(default_factory=list)  # rank-1 of each pair
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
                self.ranked.append(rank1(ranks(unit_distances(descriptors[0][here], second), np.arange(len(found)))))
        accuracy, matches = matching_accuracy(named.pair, descriptors, named.homography, thresholds)
        self.accuracies.append(accuracy)
        self.matches += matches

    def score(self) -> SplitScore:
        fraction = math.nan
        if self.pool:
            first, second = (np.concatenate(side) for side in zip(*self.pool, strict=True))
            fraction = rank1(pooled_ranks(first, second))
        elif self.ranked:
            fraction = float(np.mean(self.ranked))
        return SplitScore(
            sequences=len(self.sequences),
            pairs=len(self.accuracies),
            pairs_ranked=len(self.pool) + len(self.ranked),
            correspondences=self.correspondences,
            rank1=fraction,
            matches=self.matches,
            matching_accuracy=tuple(np.mean(self.accuracies, axis=0).tolist()),
        )
