"""Descriptor discrimination on image pairs: the corresponding keypoint against all others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.correspondences import Correspondences, ImagePair
from logpolar.datasets.files import CorrespondenceFile
from logpolar.evaluation.cache import Uncached
from logpolar.evaluation.metrics import ranks, threshold95
from logpolar.geometry.radius_search import close_pairs
from logpolar.keypoints import Keypoints
from logpolar.models.describers import Describer
from logpolar.storage.documents import rounded
from logpolar.types import FloatArray

Resize = Callable[[tuple[int, int], Keypoints], Keypoints]
"""Keypoints of an image of that width and height, with other sizes."""

_NEAR = 7.0
"""Keypoints nearer than this to the correct one, in pixels, are not counted as incorrect."""


@dataclass(frozen=True)
class Score:
    """Negatives are all other keypoints of the second view. Fractions, not percent; NaN for missing values."""

    pairs: int
    correspondences: int
    fpr95: float
    rank1: float
    scales_differ_2x: int  # correspondences with a scale mismatch of more than 2x
    rank1_scales_differ_2x: float
    zoom_2x: int  # correspondences at least 2x smaller in the second view, scale mismatch below 1.25x
    rank1_zoom_2x: float

    def to_dict(self) -> dict[str, float | None]:
        """Plain values for a card; NaN, which JSON lacks, becomes None."""
        return {name: rounded(value) for name, value in asdict(self).items()}

    def in_words(self) -> str:
        differ = f"where scales differ > 2x {self.rank1_scales_differ_2x:.3f} (N = {self.scales_differ_2x})"
        return f"FPR95 {100 * self.fpr95:.2f} %, rank-1 {self.rank1:.4f} (N = {self.correspondences}), {differ}"

    @classmethod
    def from_dict(cls, values: Mapping[str, float | None]) -> Score:
        """The inverse of ``to_dict``, but for the rounding."""
        return cls(**{name: math.nan if value is None else value for name, value in values.items()})  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class DescribedPair:
    """Descriptors of a pair's correspondences, and of the other keypoints of its second image.

    ``first`` (N, D); ``second`` (M, D), M >= N: row k < N corresponds to row k of ``first``, all others are negatives.
    """

    first: FloatArray
    second: FloatArray
    correspondences: Correspondences

    def distances(self) -> FloatArray:
        """(N, M), see ``unit_distances``."""
        return unit_distances(self.first, self.second)


def unit_distances(first: FloatArray, second: FloatArray) -> FloatArray:
    """(N, M), of unit vectors: 1 - their dot product, at least 0, which is cheap and preserves the order."""
    distances = np.asarray(first @ second.T, np.float32)
    np.subtract(1, distances, out=distances)  # in place: new memory would cost more than the product
    return np.maximum(distances, 0, out=distances)


@dataclass(frozen=True, eq=False)
class DescribedImages:
    """A pair of a file with descriptors of all keypoints of both images."""

    number: int  # of the pair in the file
    first: FloatArray
    second: FloatArray
    second_keypoints: Keypoints
    correspondences: Correspondences


class DescribedFile:
    """Pairs of a correspondence file with descriptors; each image is described once, pairs are made on demand.

    ``most``: number of pairs, see ``sample_pairs``; 0 for all. With ``resize`` the detector's sizes are replaced, and
    the scale ratios of correspondences follow.
    """

    def __init__(
        self,
        file: CorrespondenceFile,
        views: Uncached,
        split: str | None = None,
        most: int = 0,
        seed: int = 0,
        resize: Resize | None = None,
        progress: Callable[[list[int]], Iterable[int]] = iter,
    ) -> None:
        self._numbers = sample_pairs(file, split, most, seed)
        self._images = file.pair_images[self._numbers]
        images = np.unique(self._images).tolist()
        self._keypoints = {image: file.read_keypoints(image) for image in images}
        if resize is not None:
            self._keypoints = {k: resize(file.images[k].size, points) for k, points in self._keypoints.items()}
        self._descriptors = {
            image: views.describe(file.images[image].name, file.read_image(image), self._keypoints[image])
            for image in progress(images)
        }
        self._found = [
            file.read_correspondences(pair, (self._keypoints[first], self._keypoints[second]))
            for pair, (first, second) in zip(self._numbers.tolist(), self._images.tolist(), strict=True)
        ]
        if resize is not None:
            self._found = [with_new_ratio(found) for found in self._found]

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[DescribedPair]:
        for pair in self.images():
            found = pair.correspondences
            others = _others(pair.second_keypoints, found.second)
            here, there = found.indices.T
            yield DescribedPair(pair.first[here], pair.second[np.concatenate([there, others])], found)

    def images(self) -> Iterator[DescribedImages]:
        """Pairs with all their keypoints, for other choices of negatives."""
        described = self._descriptors
        for number, (first, second), found in zip(
            self._numbers.tolist(), self._images.tolist(), self._found, strict=True
        ):
            yield DescribedImages(number, described[first], described[second], self._keypoints[second], found)


def with_new_ratio(found: Correspondences) -> Correspondences:
    """Correspondences with the scale ratio of their keypoints' current sizes."""
    ratio = np.log(found.second.size / np.maximum(found.warped_size, 1e-12))
    return replace(found, log_scale_ratio=np.asarray(ratio, np.float32))


def sample_pairs(file: CorrespondenceFile, split: str | None, most: int, seed: int) -> NDArray[np.intp]:
    """Pairs of a split that have correspondences; ``most`` at most, 0 for all.

    Images are drawn at random until there are enough pairs among them, since describing images takes the time.
    """
    numbers = np.array([pair for pair in file.pairs(split) if np.diff(file.correspondence_rows[pair])[0]], np.intp)
    if most == 0 or len(numbers) <= most:
        return numbers
    random = np.random.default_rng(seed)
    order = random.permutation(len(file.images))
    complete_at = order[file.pair_images[numbers]].max(axis=1)
    enough = np.partition(complete_at, most - 1)[most - 1]
    among = numbers[complete_at <= enough]
    return np.sort(random.choice(among, most, replace=False))


def score_file(
    file: CorrespondenceFile, describer: Describer, split: str | None = None, most: int = 0, seed: int = 0
) -> Score:
    """The score of a split of a correspondence file; see ``DescribedFile``."""
    return score_described(DescribedFile(file, Uncached(describer), split, most, seed))


@dataclass(frozen=True, eq=False)
class Gathered:
    """The correspondences (N,) of all image pairs together."""

    pair: NDArray[np.intp]  # number of the image pair
    positive: FloatArray  # distances
    hit: NDArray[np.bool_]  # whether it is the nearest neighbour
    log_scale_ratio: FloatArray
    angle_residual: FloatArray
    zoom: FloatArray

    def score(self, fpr95: float) -> Score:
        mismatch = np.abs(self.log_scale_ratio)
        differ, zoomed = mismatch > np.log(2), (self.zoom <= 0.5) & (mismatch < np.log(1.25))
        return Score(
            pairs=len(np.unique(self.pair)),
            correspondences=len(self.hit),
            fpr95=fpr95,
            rank1=_mean(self.hit),
            scales_differ_2x=int(differ.sum()),
            rank1_scales_differ_2x=_mean(self.hit[differ]),
            zoom_2x=int(zoomed.sum()),
            rank1_zoom_2x=_mean(self.hit[zoomed]),
        )


def gather(pairs: Iterable[DescribedPair]) -> Gathered:
    """Distances of correspondences, and whether they are nearest neighbours."""
    columns: list[list[NDArray[np.generic]]] = [[] for _ in fields(Gathered)]
    for number, pair in enumerate(pairs):
        distances, found = pair.distances(), pair.correspondences
        own, hit = distances.diagonal().copy(), ranks(distances, np.arange(len(distances))) == 0
        values = np.full(len(own), number), own, hit, found.log_scale_ratio, found.angle_residual, found.zoom
        for column, each in zip(columns, values, strict=True):
            column.append(np.asarray(each))
    kinds = (np.intp, np.float32, np.bool_, np.float32, np.float32, np.float32)
    return Gathered(
        *(
            np.concatenate(column, dtype=kind) if column else np.zeros(0, kind)
            for column, kind in zip(columns, kinds, strict=True)
        )
    )


def count_accepted(
    pairs: Iterable[DescribedPair], thresholds: Sequence[float] | NDArray[np.floating]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Negatives of each pair strictly below each threshold (P, T), and all of its negatives (P,)."""
    given = np.asarray(thresholds, np.float64)
    order = np.argsort(given)
    accepted, totals = [], []
    for pair in pairs:
        distances = pair.distances()
        below = np.zeros(len(given), np.int64)
        below[order] = _count_below(distances, given[order]) - _count_below(distances.diagonal(), given[order])
        accepted.append(below)
        totals.append(distances.size - len(distances))
    return np.array(accepted, np.int64).reshape(len(totals), len(given)), np.array(totals, np.int64)


_BINS = 4096


def _count_below(values: NDArray[np.floating], ascending: NDArray[np.float64]) -> NDArray[np.int64]:
    """Number of values, all at least 0, strictly below each of the ascending thresholds.

    Values are counted by bins; only those in the few bins that hold a threshold are compared.
    """
    if len(ascending) == 0 or ascending[-1] <= 0:
        return np.zeros(len(ascending), np.int64)
    below = values[values < ascending[-1]]
    # Rounding preserves order: values in a lower bin than a threshold are below it.
    scale = below.dtype.type(_BINS / ascending[-1])
    own = (ascending.astype(below.dtype) * scale).astype(np.intp)
    bins = (below * scale).astype(np.intp)
    counts = np.bincount(bins, minlength=own[-1] + 1)
    shared = np.zeros(len(counts), np.bool_)
    shared[own] = True
    first = np.searchsorted(ascending, below[shared[bins]], side="right")
    compared = np.cumsum(np.bincount(first, minlength=len(ascending))[: len(ascending)])
    alone = np.concatenate([[0], np.cumsum(np.where(shared, 0, counts))])
    return np.asarray(alone[own] + compared, np.int64)


def score_described(pairs: Iterable[DescribedPair]) -> Score:
    """FPR95 pooled over all pairs, and the fraction of keypoints whose nearest neighbour is correct.

    Iterates over the pairs twice, with one distance matrix in memory: the threshold of FPR95 depends on all of them.
    """
    gathered = gather(pairs)
    if len(gathered.positive) == 0:
        return gathered.score(math.nan)
    accepted, totals = count_accepted(pairs, [threshold95(gathered.positive)])
    return gathered.score(int(accepted.sum()) / int(totals.sum()) if totals.sum() else math.nan)


def pool_of(pair: ImagePair) -> NDArray[np.intp]:
    """Rows of the second image's keypoints: those that correspond, in order, then the negatives."""
    found = pair.correspondences
    return np.concatenate([found.indices[:, 1], _others(pair.second_keypoints, found.second)])


def mean_score(scores: Sequence[Score]) -> Score:
    """Sums of counts, and unweighted means of fractions over the scores that have them."""
    merged: dict[str, float] = {}
    for each in fields(Score):
        values = [getattr(score, each.name) for score in scores]
        known = [value for value in values if not math.isnan(value)]
        is_count = each.type in ("int", int)
        merged[each.name] = sum(values) if is_count else sum(known) / len(known) if known else math.nan
    return Score(**merged)  # type: ignore[arg-type]


def _others(keypoints: Keypoints, matched: Keypoints) -> NDArray[np.intp]:
    """Rows of the keypoints that are not near any matched one."""
    _, near = close_pairs(matched.xy, keypoints.xy, np.nextafter(_NEAR, 0))
    return np.setdiff1d(np.arange(len(keypoints)), near)


def _mean(values: NDArray[np.bool_]) -> float:
    return float(values.mean()) if len(values) else math.nan
