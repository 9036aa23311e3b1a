"""Poses from matched descriptors on scenes with known cameras: the paper's Table 5, measured locally.

Stereo: pairs of images, an essential matrix each. Multi-view: COLMAP reconstructs small sets of images ("bags") from
the same kind of matches, with known intrinsics, and the relative poses of all pairs in a set are compared with the
true ones; images that the largest model lacks, and sets without a model, fail with 180 degrees. ``pose_scores`` says
what the scores are; those of multi-view are means over the sizes of sets.

Images of a set hang together: it grows from one image through pairs that see enough of the same. All pairs in it are
matched, though: which of them see the same is not told.

Everything random comes from the options' seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.cameras import Camera
from logpolar.colmap.library import import_pycolmap
from logpolar.colmap.mapping import map_images
from logpolar.detection import SiftDetector
from logpolar.evaluation.pairs import Describe
from logpolar.evaluation.phototourism_options import RATIOS, PhototourismOptions
from logpolar.evaluation.pose_scores import PoseScore, check_estimator, find_pose, plain
from logpolar.evaluation.posed_scenes import Gray, PosedScene
from logpolar.evaluation.stereo import NO_POSE, Errors, pose_error, relative_pose
from logpolar.images import to_gray
from logpolar.keypoints import FloatArray, Keypoints
from logpolar.matching import MatchingOptions, match_descriptors
from logpolar.parallel import in_processes

ImagePair = tuple[int, int]
"""Rows of a scene's images, the smaller first."""

Indices = NDArray[np.int32]
"""(K, 2): matched rows of the first and of the second image's keypoints."""


# Preparing: what does not depend on the descriptor


@dataclass(frozen=True, eq=False)
class PreparedScene:
    """The pairs and bags that were drawn, and the keypoints of all images in them, by row."""

    scene: PosedScene
    pairs: list[ImagePair]
    bags: dict[int, list[tuple[int, ...]]]  # by size
    views: dict[int, Gray]
    keypoints: dict[int, Keypoints]


def prepare_scene(scene: PosedScene, options: PhototourismOptions, multi_view: bool = False) -> PreparedScene:
    """Draw pairs and, with ``multi_view``, bags; read the images that are needed and detect keypoints, once."""
    check_estimator(options.estimator)
    if multi_view:
        import_pycolmap("multi-view evaluation")
    pairs = draw_pairs(scene, options.pairs, options.seed)
    sizes = options.bags if multi_view else {}
    bags = {size: draw_bags(scene, size, count, options.seed) for size, count in sizes.items()}
    groups: list[tuple[int, ...]] = [*pairs, *(bag for own in bags.values() for bag in own)]
    needed = {row for group in groups for row in group}
    detector = SiftDetector(options.keypoints, options.contrast)
    views = {row: scene.images[row].read() for row in sorted(needed)}
    return PreparedScene(scene, pairs, bags, views, {row: detector(to_gray(view)) for row, view in views.items()})


def draw_pairs(scene: PosedScene, count: int, seed: int) -> list[ImagePair]:
    """Some of the scene's pairs, sorted; all for 0."""
    if count == 0 or count >= len(scene.pairs):
        return sorted(scene.pairs)
    chosen = np.random.default_rng(seed).permutation(len(scene.pairs))[:count]
    return sorted(scene.pairs[index] for index in chosen)


def draw_bags(scene: PosedScene, size: int, count: int, seed: int) -> list[tuple[int, ...]]:
    """Different sets of ``size`` images that hang together through the scene's pairs.

    Fewer than ``count`` where a scene has not so many, as far as 20 attempts a set can tell.
    """
    random, bags = np.random.default_rng([seed, size]), dict[tuple[int, ...], None]()
    neighbours = _neighbours(scene)
    for _ in range(20 * count):
        if len(bags) == count:
            break
        bag = _grow(neighbours, size, random)
        if len(bag) == size:
            bags[tuple(sorted(bag))] = None
    return list(bags)


def _neighbours(scene: PosedScene) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {row: set() for row in range(len(scene.images))}
    for first, second in scene.pairs:
        found[first].add(second)
        found[second].add(first)
    return found


def _grow(neighbours: Mapping[int, set[int]], size: int, random: np.random.Generator) -> set[int]:
    bag = {int(random.integers(len(neighbours)))}
    while len(bag) < size:
        around = sorted(set().union(*(neighbours[row] for row in bag)) - bag)
        if not around:
            break
        bag.add(around[int(random.integers(len(around)))])
    return bag


# Describing and matching


@dataclass(frozen=True, eq=False)
class DescribedImage:
    camera: Camera
    xy: FloatArray  # (N, 2)
    descriptors: FloatArray  # (N, D)


def describe_scene(prepared: PreparedScene, describe: Describe) -> dict[int, DescribedImage]:
    """All images that pairs or bags need, each described once."""
    described = {}
    for row, keypoints in prepared.keypoints.items():
        descriptors = describe(prepared.views[row], keypoints)
        if len(descriptors) != len(keypoints) or not np.isfinite(descriptors).all():
            raise ValueError(f"{len(keypoints)} keypoints need as many finite descriptors")
        described[row] = DescribedImage(prepared.scene.images[row].camera, keypoints.xy, descriptors)
    return described


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
            "matches_median": plain(self.matches_median),
            "inliers_median": plain(self.inliers_median),
            "columns": ["first", "second", "rotation_error", "translation_error", "matches", "inliers"],
            "rows": rows,
        }


def evaluate_stereo(
    prepared: PreparedScene, images: Mapping[int, DescribedImage], options: PhototourismOptions, jobs: int = 1
) -> StereoResult:
    """Poses of the scene's pairs from described images."""
    found = [result for _, result in in_processes(_stereo, _tasks(images, prepared.pairs, options), jobs)]
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
        return {**self.score.to_dict(), "registered": plain(self.registered), "sizes": sizes}


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
    prepared: PreparedScene, images: Mapping[int, DescribedImage], options: PhototourismOptions, jobs: int = 1
) -> MultiViewResult:
    """Poses that COLMAP finds of the scene's bags; a pair that is in several bags is matched once."""
    pairs = sorted({pair for bags in prepared.bags.values() for bag in bags for pair in combinations(bag, 2)})
    matched = {task.pair: found for task, found in in_processes(_match, _tasks(images, pairs, options), jobs)}
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
