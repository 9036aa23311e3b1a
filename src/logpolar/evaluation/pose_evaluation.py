"""Poses of pairs and sets of described images, compared with the true ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.distributed import in_processes
from logpolar.evaluation.options import RATIOS, PhototourismOptions
from logpolar.evaluation.posed_scenes import Gray, PosedScene, RowPair
from logpolar.evaluation.poses import (
    NO_POSE,
    Errors,
    PoseScore,
    fractions_within,
    match_errors,
    pose_error,
    relative_pose,
)
from logpolar.geometry.cameras import Camera
from logpolar.keypoints import Keypoints
from logpolar.matching.nearest import MatchingOptions, match_descriptors
from logpolar.sfm.known_cameras import map_images
from logpolar.storage.documents import rounded
from logpolar.types import FloatArray

Progress = Callable[[list[Any]], Iterable[Any]]

Indices = NDArray[np.int32]
"""(K, 2): matched rows of the first and of the second image's keypoints."""


@dataclass(frozen=True, eq=False)
class PreparedScene:
    """The pairs and bags that were drawn, and the keypoints of all images in them, by row."""

    scene: PosedScene
    pairs: list[RowPair]
    bags: dict[int, list[tuple[int, ...]]]  # by size
    views: dict[int, Gray]
    keypoints: dict[int, Keypoints]

    def counts(self) -> dict[str, Any]:
        scene, bags = self.scene, {str(size): len(bags) for size, bags in self.bags.items()}
        counts = {"images": len(scene.images), "possible_pairs": len(scene.pairs), "pairs": len(self.pairs)}
        return {**scene.identity(), **counts, "bags": bags, "left_out": scene.left_out}


@dataclass(frozen=True, eq=False)
class DescribedImage:
    camera: Camera
    xy: FloatArray  # (N, 2)
    descriptors: FloatArray  # (N, D)


# Stereo


@dataclass(frozen=True, eq=False)
class _PairTask:
    pair: RowPair
    first: DescribedImage
    second: DescribedImage
    options: PhototourismOptions


def _tasks(
    images: Mapping[int, DescribedImage], pairs: Iterable[RowPair], options: PhototourismOptions
) -> Iterable[_PairTask]:
    return (_PairTask(pair, images[pair[0]], images[pair[1]], options) for pair in pairs)


def _match(task: _PairTask) -> Indices:
    options = MatchingOptions(task.options.ratio if task.options.ratio < 1 else None, task.options.mutual)
    return match_descriptors(task.first.descriptors, task.second.descriptors, options).indices


@dataclass(frozen=True)
class PairResult:
    errors: Errors
    matches: int
    inliers: int


@dataclass(frozen=True)
class StereoResult:
    pairs: list[tuple[str, str]]  # names of the images
    results: list[PairResult]  # of each pair

    @property
    def score(self) -> PoseScore:
        return PoseScore.of([result.errors for result in self.results])

    def fractions(self, degrees: Sequence[float]) -> list[float]:
        return fractions_within([result.errors for result in self.results], degrees)

    def median(self, name: str) -> float:
        """Of ``matches`` or ``inliers``."""
        return float(np.median([getattr(result, name) for result in self.results])) if self.results else math.nan

    def to_dict(self) -> dict[str, Any]:
        rows = [
            [*pair, *(round(error, 3) for error in result.errors), result.matches, result.inliers]
            for pair, result in zip(self.pairs, self.results, strict=True)
        ]
        return {
            **self.score.to_dict(),
            "matches_median": rounded(self.median("matches")),
            "inliers_median": rounded(self.median("inliers")),
            "columns": ["first", "second", "rotation_error", "translation_error", "matches", "inliers"],
            "rows": rows,
        }


def evaluate_stereo(
    prepared: PreparedScene,
    images: Mapping[int, DescribedImage],
    options: PhototourismOptions,
    jobs: int = 1,
    progress: Progress = iter,
) -> StereoResult:
    """Poses of the scene's pairs."""
    found = [result for _, result in in_processes(_stereo, _tasks(images, progress(prepared.pairs), options), jobs)]
    names = [image.name for image in prepared.scene.images]
    return StereoResult([(names[i], names[j]) for i, j in prepared.pairs], found)


def _stereo(task: _PairTask) -> PairResult:
    matches, first, second, options = _match(task), task.first, task.second, task.options
    xy = first.xy[matches[:, 0]], second.xy[matches[:, 1]]
    errors, inliers = match_errors(first.camera, second.camera, *xy, options.threshold, options.estimator)
    return PairResult(errors, len(matches), inliers)


def tune_ratio(
    described: Sequence[tuple[PreparedScene, Mapping[int, DescribedImage]]],
    options: PhototourismOptions,
    ratios: Sequence[float] = RATIOS,
    jobs: int = 1,
) -> tuple[float, dict[float, float]]:
    """The smallest ratio with the best unweighted mean of mAA at 10 degrees over scenes, and that mean by ratio."""
    maa = {}
    for ratio in sorted(ratios):
        own = replace(options, ratio=ratio)
        scores = [evaluate_stereo(prepared, images, own, jobs).score for prepared, images in described]
        maa[ratio] = PoseScore.mean(scores).maa10
    return max(maa, key=lambda ratio: maa[ratio]), maa


# Multi-view


@dataclass(frozen=True)
class BagResult:
    images: tuple[str, ...]
    registered: int
    errors: list[Errors]  # of all pairs

    def to_dict(self) -> dict[str, Any]:
        errors = [[round(value, 3) for value in pair] for pair in self.errors]
        return {"images": list(self.images), "registered": self.registered, "errors": errors}


@dataclass(frozen=True)
class MultiViewResult:
    """Of bags by their size, without sizes of which the scene has no bag."""

    bags: dict[int, list[BagResult]]

    @property
    def scores(self) -> dict[int, PoseScore]:
        return {size: PoseScore.of([e for bag in bags for e in bag.errors]) for size, bags in self.bags.items()}

    @property
    def score(self) -> PoseScore:
        """The mean over the sizes."""
        return PoseScore.mean(list(self.scores.values()))

    @property
    def registered(self) -> float:
        """Fraction of the images in all bags; NaN without bags."""
        bags = [bag for own in self.bags.values() for bag in own]
        return sum(bag.registered for bag in bags) / sum(len(bag.images) for bag in bags) if bags else math.nan

    def to_dict(self) -> dict[str, Any]:
        sizes = {
            str(size): {**score.to_dict(), "bags": [bag.to_dict() for bag in self.bags[size]]}
            for size, score in self.scores.items()
        }
        return {**self.score.to_dict(), "registered": rounded(self.registered), "sizes": sizes}


@dataclass(frozen=True, eq=False)
class _BagTask:
    names: tuple[str, ...]
    images: list[DescribedImage]
    matches: dict[RowPair, Indices]  # by rows of this bag
    seed: int


def evaluate_multi_view(
    prepared: PreparedScene,
    images: Mapping[int, DescribedImage],
    options: PhototourismOptions,
    jobs: int = 1,
    progress: Progress = iter,
) -> MultiViewResult:
    """Poses that COLMAP finds of the scene's bags; a pair that is in several bags is matched once."""
    bags = [bag for own in prepared.bags.values() for bag in own]
    pairs = sorted({pair for bag in bags for pair in combinations(bag, 2)})
    matched = {task.pair: found for task, found in in_processes(_match, _tasks(images, progress(pairs), options), jobs)}
    tasks = []
    for bag in bags:
        names = tuple(prepared.scene.images[row].name for row in bag)
        matches = {(i, j): matched[bag[i], bag[j]] for i, j in combinations(range(len(bag)), 2)}
        tasks.append(_BagTask(names, [images[row] for row in bag], matches, options.seed))
    results: dict[int, list[BagResult]] = {}
    for task, result in in_processes(_map, tasks, jobs):
        results.setdefault(len(task.names), []).append(result)
    return MultiViewResult(results)


def _map(task: _BagTask) -> BagResult:
    cameras = [image.camera for image in task.images]
    poses = map_images(cameras, [image.xy for image in task.images], task.matches, task.seed)
    found = {row: replace(cameras[row], rotation=pose[0], translation=pose[1]) for row, pose in poses.items()}
    errors = []
    for i, j in combinations(range(len(cameras)), 2):
        truth = relative_pose(cameras[i], cameras[j])
        known = i in found and j in found
        errors.append(pose_error(truth, relative_pose(found[i], found[j])) if known else NO_POSE)
    return BagResult(task.names, len(found), errors)


# Both together


@dataclass(frozen=True, eq=False)
class PoseResults:
    """Results by scene, the ratio that was used and, if it was tuned, mAA by candidate."""

    ratio: float
    tuned: dict[float, float]
    stereo: dict[str, StereoResult] = field(default_factory=dict)
    multi_view: dict[str, MultiViewResult] = field(default_factory=dict)

    def means(self) -> dict[str, PoseScore]:
        """Unweighted means of scenes by views, two or several."""
        kinds = {"two": [result.score for result in self.stereo.values()]}
        if self.multi_view:
            kinds["several"] = [result.score for result in self.multi_view.values()]
        return {views: PoseScore.mean(scores) for views, scores in kinds.items()}

    def fractions(self, degrees: Sequence[float]) -> list[float]:
        """Of two views: unweighted means over scenes of the fractions of pairs within each of the degrees."""
        fractions = (result.fractions(degrees) for result in self.stereo.values())
        return [float(np.mean(each)) for each in zip(*fractions, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "ratio": self.ratio,
            "maa10_by_tuned_ratio": {f"{ratio:g}": rounded(maa) for ratio, maa in self.tuned.items()},
            "mean": {views: score.to_dict() for views, score in self.means().items()},
            "stereo": {scene: result.to_dict() for scene, result in self.stereo.items()},
            "multi_view": {scene: result.to_dict() for scene, result in self.multi_view.items()},
        }

    def records(self) -> Iterator[dict[str, Any]]:
        """A line for each scene and kind of views, then the means; None for missing values."""
        nothing = dict.fromkeys(("matches_median", "inliers_median", "registered"))
        for scene, stereo in self.stereo.items():
            medians = {f"{name}_median": rounded(stereo.median(name)) for name in ("matches", "inliers")}
            yield {"scene": scene, "views": "two", **stereo.score.to_dict(), **nothing, **medians}
        for scene, several in self.multi_view.items():
            for size, score in several.scores.items():
                yield {"scene": scene, "views": f"bags of {size}", **score.to_dict(), **nothing}
            registered = {"registered": rounded(several.registered)}
            yield {"scene": scene, "views": "several", **several.score.to_dict(), **nothing, **registered}
        for views, score in self.means().items():
            yield {"scene": "mean", "views": views, **score.to_dict(), **nothing}
