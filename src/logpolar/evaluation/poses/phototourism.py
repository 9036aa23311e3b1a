"""Poses from matched descriptors on scenes with known cameras: the paper's Table 5, measured locally.

Stereo: pairs of images, an essential matrix each. Multi-view: COLMAP reconstructs small sets of images ("bags") from
the same kind of matches, with known intrinsics, and the relative poses of all pairs in a set are compared with the
true ones; images that the largest model lacks, and sets without a model, fail with 180 degrees. ``scores`` says
what the scores are; those of multi-view are means over the sizes of sets.

``prepared_scenes`` draws the pairs and the sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.distributed import in_processes
from logpolar.evaluation.poses.options import RATIOS, PhototourismOptions
from logpolar.evaluation.poses.prepared import DescribedImage, ImagePair, PreparedScene
from logpolar.evaluation.poses.scenes import PosedScene
from logpolar.evaluation.poses.scores import PoseScore, find_pose
from logpolar.evaluation.poses.stereo import NO_POSE, Errors, pose_error, relative_pose, shares_within
from logpolar.geometry.cameras import Camera
from logpolar.matching.nearest import MatchingOptions, match_descriptors
from logpolar.sfm.known_cameras import map_images
from logpolar.storage.documents import rounded
from logpolar.types import FloatArray

Progress = Callable[[list[ImagePair]], Iterable[ImagePair]]

Indices = NDArray[np.int32]
"""(K, 2): matched rows of the first and of the second image's keypoints."""


# Matching


@dataclass(frozen=True, eq=False)
class _PairTask:
    pair: ImagePair
    first: DescribedImage
    second: DescribedImage
    options: PhototourismOptions


def _tasks(
    images: Mapping[int, DescribedImage], pairs: Iterable[ImagePair], options: PhototourismOptions
) -> Iterable[_PairTask]:
    return (_PairTask(pair, images[pair[0]], images[pair[1]], options) for pair in pairs)


def _match(task: _PairTask) -> Indices:
    options = MatchingOptions(task.options.ratio if task.options.ratio < 1 else None, task.options.mutual)
    return match_descriptors(task.first.descriptors, task.second.descriptors, options).indices


# Stereo


@dataclass(frozen=True)
class PairResult:
    errors: Errors
    matches: int
    inliers: int


@dataclass(frozen=True)
class StereoResult:
    """Of all pairs together; ``results`` are in their order."""

    pairs: list[tuple[str, str]]  # names of the images
    results: list[PairResult]

    @property
    def score(self) -> PoseScore:
        return PoseScore.of([result.errors for result in self.results])

    def shares(self, degrees: Sequence[float]) -> list[float]:
        """Of the pairs whose error is within each of the degrees."""
        return shares_within([result.errors for result in self.results], degrees)

    @property
    def matches_median(self) -> float:
        return float(np.median([result.matches for result in self.results])) if self.results else float("nan")

    @property
    def inliers_median(self) -> float:
        return float(np.median([result.inliers for result in self.results])) if self.results else float("nan")

    def to_dict(self) -> dict[str, Any]:
        rows = [
            [*pair, *(round(error, 3) for error in result.errors), result.matches, result.inliers]
            for pair, result in zip(self.pairs, self.results, strict=True)
        ]
        return {
            **self.score.to_dict(),
            "matches_median": rounded(self.matches_median),
            "inliers_median": rounded(self.inliers_median),
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
    """Poses of the scene's pairs from described images."""
    found = [result for _, result in in_processes(_stereo, _tasks(images, progress(prepared.pairs), options), jobs)]
    names = [image.name for image in prepared.scene.images]
    return StereoResult([(names[i], names[j]) for i, j in prepared.pairs], found)


def _stereo(task: _PairTask) -> PairResult:
    matches = _match(task)
    first, second, options = task.first, task.second, task.options
    xy = first.xy[matches[:, 0]], second.xy[matches[:, 1]]
    found = find_pose(first.camera, second.camera, *xy, options.threshold, options.estimator)
    truth = relative_pose(first.camera, second.camera)
    errors = NO_POSE if found.pose is None else pose_error(truth, found.pose)
    return PairResult(errors, len(matches), found.inliers)


def tune_ratio(
    described: Sequence[tuple[PreparedScene, Mapping[int, DescribedImage]]],
    options: PhototourismOptions,
    ratios: Sequence[float] = RATIOS,
    jobs: int = 1,
) -> tuple[float, dict[float, float]]:
    """The ratio with the best mAA at 10 degrees over the scenes, each counting the same, and that mAA by ratio.

    The smallest of equally good ones. To be used on other scenes than those that it was tuned on.
    """
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


@dataclass(frozen=True)
class MultiViewResult:
    """Of bags by their size; a size of which the scene has no bag is not in it."""

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
        """Share of the images in all bags; NaN without bags."""
        bags = [bag for own in self.bags.values() for bag in own]
        return sum(bag.registered for bag in bags) / sum(len(bag.images) for bag in bags) if bags else float("nan")

    def to_dict(self) -> dict[str, Any]:
        sizes = {
            str(size): {**self.scores[size].to_dict(), "bags": [_bag_dict(bag) for bag in bags]}
            for size, bags in self.bags.items()
        }
        return {**self.score.to_dict(), "registered": rounded(self.registered), "sizes": sizes}


def _bag_dict(bag: BagResult) -> dict[str, Any]:
    errors = [[round(value, 3) for value in pair] for pair in bag.errors]
    return {"images": list(bag.images), "registered": bag.registered, "errors": errors}


@dataclass(frozen=True, eq=False)
class _BagTask:
    names: tuple[str, ...]
    cameras: list[Camera]
    xy: list[FloatArray]
    matches: dict[ImagePair, Indices]  # by rows of this bag
    seed: int


def evaluate_multi_view(
    prepared: PreparedScene,
    images: Mapping[int, DescribedImage],
    options: PhototourismOptions,
    jobs: int = 1,
    progress: Progress = iter,
) -> MultiViewResult:
    """Poses that COLMAP finds of the scene's bags; a pair that is in several bags is matched once."""
    pairs = sorted({pair for bags in prepared.bags.values() for bag in bags for pair in combinations(bag, 2)})
    matched = {task.pair: found for task, found in in_processes(_match, _tasks(images, progress(pairs), options), jobs)}
    tasks = [
        _bag_task(prepared.scene, images, bag, matched, options.seed) for bags in prepared.bags.values() for bag in bags
    ]
    results: dict[int, list[BagResult]] = {}
    for task, result in in_processes(_map, tasks, jobs):
        results.setdefault(len(task.names), []).append(result)
    return MultiViewResult(results)


def _bag_task(
    scene: PosedScene,
    images: Mapping[int, DescribedImage],
    bag: tuple[int, ...],
    matched: Mapping[ImagePair, Indices],
    seed: int,
) -> _BagTask:
    own = [images[row] for row in bag]
    matches = {(i, j): matched[bag[i], bag[j]] for i, j in combinations(range(len(bag)), 2)}
    names = tuple(scene.images[row].name for row in bag)
    return _BagTask(names, [image.camera for image in own], [image.xy for image in own], matches, seed)


def _map(task: _BagTask) -> BagResult:
    poses = map_images(task.cameras, task.xy, task.matches, task.seed)
    found = {row: replace(task.cameras[row], rotation=pose[0], translation=pose[1]) for row, pose in poses.items()}
    errors = []
    for i, j in combinations(range(len(task.cameras)), 2):
        truth = relative_pose(task.cameras[i], task.cameras[j])
        known = i in found and j in found
        errors.append(pose_error(truth, relative_pose(found[i], found[j])) if known else NO_POSE)
    return BagResult(task.names, len(found), errors)


# Both together


@dataclass(frozen=True, eq=False)
class PoseResults:
    """Of one descriptor: results by scene, the ratio that was used and, if it was tuned, mAA by candidate."""

    ratio: float
    tuned: dict[float, float]
    stereo: dict[str, StereoResult] = field(default_factory=dict)
    multi_view: dict[str, MultiViewResult] = field(default_factory=dict)

    def means(self) -> dict[str, PoseScore]:
        """By views, two or several; each scene counts the same."""
        kinds = {"two": [result.score for result in self.stereo.values()]}
        if self.multi_view:
            kinds["several"] = [result.score for result in self.multi_view.values()]
        return {views: PoseScore.mean(scores) for views, scores in kinds.items()}

    def shares(self, degrees: Sequence[float]) -> list[float]:
        """Of two views: the mean over scenes of the shares of pairs whose error is within each of the degrees."""
        return [float(np.mean(each)) for each in zip(*(r.shares(degrees) for r in self.stereo.values()), strict=True)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "ratio": self.ratio,
            "maa10_by_tuned_ratio": {f"{ratio:g}": rounded(maa) for ratio, maa in self.tuned.items()},
            "mean": {views: score.to_dict() for views, score in self.means().items()},
            "stereo": {scene: result.to_dict() for scene, result in self.stereo.items()},
            "multi_view": {scene: result.to_dict() for scene, result in self.multi_view.items()},
        }

    def records(self) -> Iterator[dict[str, Any]]:
        """A line for each scene and kind of views, then the means; a scene without a number has None."""
        nothing = dict.fromkeys(("matches_median", "inliers_median", "registered"))
        for scene, stereo in self.stereo.items():
            medians = {name: rounded(getattr(stereo, name)) for name in ("matches_median", "inliers_median")}
            yield {"scene": scene, "views": "two", **stereo.score.to_dict(), **nothing, **medians}
        for scene, several in self.multi_view.items():
            for size, score in several.scores.items():
                yield {"scene": scene, "views": f"bags of {size}", **score.to_dict(), **nothing}
            registered = {"registered": rounded(several.registered)}
            yield {"scene": scene, "views": "several", **several.score.to_dict(), **nothing, **registered}
        for views, score in self.means().items():
            yield {"scene": "mean", "views": views, **score.to_dict(), **nothing}
