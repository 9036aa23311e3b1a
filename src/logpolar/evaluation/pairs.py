"""How well a network tells the keypoints of image pairs apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.correspondences import Correspondences, ImagePair
from logpolar.datasets.files import CorrespondenceFile
from logpolar.evaluation.metrics import ranks, threshold95
from logpolar.keypoints import FloatArray, Keypoints
from logpolar.neighbours import close_pairs

Describe = Callable[[NDArray[np.uint8], Keypoints], FloatArray]
"""An 8 bit view and its keypoints in, descriptors out."""

_NEAR = 7.0
"""Keypoints nearer than this to the truth, in pixels, are not counted as wrong answers."""


@dataclass(frozen=True)
class Score:
    """Negatives are all other keypoints of the second view. Shares, not percent; NaN where there is nothing."""

    pairs: int
    correspondences: int
    fpr95: float
    rank1: float
    scales_differ_2x: int  # correspondences whose detected scales disagree by more than 2x
    rank1_scales_differ_2x: float
    zoom_2x: int  # correspondences that are at least 2x smaller in the second view and whose scales agree within 1.25x
    rank1_zoom_2x: float

    def to_dict(self) -> dict[str, float | None]:
        """Plain values for a card; None, unlike NaN, is JSON."""
        return {name: None if math.isnan(value) else round(value, 5) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, float | None]) -> Score:
        """The inverse of ``to_dict``, but for the rounding."""
        return cls(**{name: math.nan if value is None else value for name, value in values.items()})  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class DescribedPair:
    """Descriptors of the correspondences of a pair, and of the other keypoints of its second image.

    ``first`` (N, D); ``second`` (M, D), M >= N: row k < N is the partner of row k of ``first``, all others are wrong.
    """

    first: FloatArray
    second: FloatArray
    correspondences: Correspondences

    def distances(self) -> FloatArray:
        """(N, M), of unit vectors, in an order-preserving unit that is cheap: 1 - their product, at least 0."""
        return np.asarray(np.maximum(1 - self.first @ self.second.T, 0), np.float32)


class DescribedFile:
    """Pairs of a correspondence file with their descriptors; each image is described once, pairs are made on demand.

    ``most`` pairs at most, see ``choose_pairs``; 0 for all.
    """

    def __init__(
        self, file: CorrespondenceFile, describe: Describe, part: str | None = None, most: int = 0, seed: int = 0
    ) -> None:
        numbers = choose_pairs(file, part, most, seed)
        self._images = file.pair_images[numbers]
        images = np.unique(self._images).tolist()
        self._keypoints = {image: file.read_keypoints(image) for image in images}
        self._described = {image: describe(file.read_image(image), self._keypoints[image]) for image in images}
        self._found = [
            file.read_correspondences(pair, (self._keypoints[first], self._keypoints[second]))
            for pair, (first, second) in zip(numbers.tolist(), self._images.tolist(), strict=True)
        ]

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[DescribedPair]:
        for (first, second), found in zip(self._images.tolist(), self._found, strict=True):
            others = _others(self._keypoints[second], found.second)
            here, there = found.indices.T
            descriptors = self._described[second]
            yield DescribedPair(self._described[first][here], descriptors[np.concatenate([there, others])], found)


def choose_pairs(file: CorrespondenceFile, part: str | None, most: int, seed: int) -> NDArray[np.intp]:
    """Pairs of a part that have correspondences; ``most`` at most, 0 for all.

    Images are drawn one after the other, by the seed, until there are enough pairs among them: it is images that
    take time to describe.
    """
    numbers = np.array([pair for pair in file.pairs(part) if np.diff(file.correspondence_rows[pair])[0]], np.intp)
    if most == 0 or len(numbers) <= most:
        return numbers
    random = np.random.default_rng(seed)
    turn = random.permutation(len(file.images))
    complete_at = turn[file.pair_images[numbers]].max(axis=1)
    enough = np.partition(complete_at, most - 1)[most - 1]
    among = numbers[complete_at <= enough]
    return np.sort(random.choice(among, most, replace=False))


def score_file(
    file: CorrespondenceFile, describe: Describe, part: str | None = None, most: int = 0, seed: int = 0
) -> Score:
    """The score of a part of a correspondence file; see ``DescribedFile``."""
    return score_described(DescribedFile(file, describe, part, most, seed))


def score_pairs(pairs: Iterable[ImagePair], describe: Describe) -> Score:
    """The score of image pairs that have nothing in common with each other."""
    described = []
    for pair in pairs:
        found = pair.correspondences
        if len(found):
            pool = pair.second_keypoints[_others(pair.second_keypoints, found.second)]
            second = describe(pair.second, found.second + pool)
            described.append(DescribedPair(describe(pair.first, found.first), second, found))
    return score_described(described)


def score_described(pairs: Iterable[DescribedPair]) -> Score:
    """FPR95 pooled over all pairs, and the share of keypoints whose nearest neighbour is the right one.

    Goes through the pairs twice, so that never more than one matrix of distances is in memory: the threshold of FPR95
    is known only when all right pairs were seen.
    """
    positive, hits, mismatch, zoom = [], [], [], []
    for pair in pairs:
        distances = pair.distances()
        positive.append(distances.diagonal().copy())
        hits.append(ranks(distances, np.arange(len(distances))) == 0)
        mismatch.append(np.abs(pair.correspondences.log_scale_ratio))
        zoom.append(pair.correspondences.zoom)
    if not hits:
        return Score(0, 0, math.nan, math.nan, 0, math.nan, 0, math.nan)
    hit, ratio, scale = (np.concatenate(values) for values in (hits, mismatch, zoom))
    differ, zoomed = ratio > np.log(2), (scale <= 0.5) & (ratio < np.log(1.25))
    return Score(
        pairs=len(hits),
        correspondences=len(hit),
        fpr95=_pooled_fpr95(pairs, np.concatenate(positive)),
        rank1=float(hit.mean()),
        scales_differ_2x=int(differ.sum()),
        rank1_scales_differ_2x=_mean(hit[differ]),
        zoom_2x=int(zoomed.sum()),
        rank1_zoom_2x=_mean(hit[zoomed]),
    )


def pool_of(pair: ImagePair) -> NDArray[np.intp]:
    """Rows of the second image's keypoints that answers are chosen from: partners in order, then wrong ones only."""
    found = pair.correspondences
    return np.concatenate([found.indices[:, 1], _others(pair.second_keypoints, found.second)])


def mean_score(scores: Sequence[Score]) -> Score:
    """Counts added up, shares averaged over the scores that have them, each counting the same."""
    merged: dict[str, float] = {}
    for each in fields(Score):
        values = [getattr(score, each.name) for score in scores]
        known = [value for value in values if not math.isnan(value)]
        is_count = each.type in ("int", int)
        merged[each.name] = sum(values) if is_count else sum(known) / len(known) if known else math.nan
    return Score(**merged)  # type: ignore[arg-type]


def _pooled_fpr95(pairs: Iterable[DescribedPair], positive: NDArray[np.floating]) -> float:
    """``metrics.fpr95`` of all pairs together."""
    threshold, accepted, total = threshold95(positive), 0, 0
    for pair in pairs:
        distances = pair.distances()
        accepted += int((distances < threshold).sum()) - int((distances.diagonal() < threshold).sum())
        total += distances.size - len(distances)
    return accepted / total if total else math.nan


def _others(keypoints: Keypoints, matched: Keypoints) -> NDArray[np.intp]:
    """Rows of the keypoints that are not near to any matched one."""
    _, near = close_pairs(matched.xy, keypoints.xy, np.nextafter(_NEAR, 0))
    return np.setdiff1d(np.arange(len(keypoints)), near)


def _mean(values: NDArray[np.bool_]) -> float:
    return float(values.mean()) if len(values) else math.nan
