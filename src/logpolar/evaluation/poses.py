"""Relative poses from matched keypoints, their errors, and scores of these.

The protocol is that of the Image Matching Challenge: an essential matrix by RANSAC, the pose that puts the points in
front of both cameras, and the angular errors of rotation and direction of translation. The sign of the
translation does not count, its length is unknown. The error of a pair is the larger of the two angles.

    maa10   the challenge of 2020: mean of the fractions of pairs within 1, 2, ... 10 degrees
    map15   in the manner of 2019: mean of the fractions of pairs within 5, 10 and 15 degrees
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from logpolar.distributed import in_processes
from logpolar.evaluation.options import RATIOS, PhototourismOptions
from logpolar.evaluation.posed_scenes import Gray, PosedScene, RowPair
from logpolar.features.features import Features
from logpolar.features.regions import Region
from logpolar.geometry.cameras import Camera, Matrix, direction_degrees, rotation_degrees
from logpolar.geometry.second_look import MatchedImages, look_again
from logpolar.geometry.two_view import RelativePose
from logpolar.geometry.verification import match_and_verify
from logpolar.keypoints import Keypoints
from logpolar.matching.nearest import match_features
from logpolar.matching.options import MatchingOptions
from logpolar.storage.documents import rounded
from logpolar.types import FloatArray

NO_POSE = (180.0, 180.0)
"""Errors, in degrees, where no pose could be found."""

MAA_THRESHOLDS = tuple(range(1, 11))
MAP_THRESHOLDS = (5, 10, 15)

MEANINGS = {
    "maa10": "mean of the fractions of pairs with an error within 1, 2, ... 10 degrees (2020)",
    "map15": "mean of the fractions of pairs with an error within 5, 10 and 15 degrees (in the manner of 2019)",
    "error": "the larger of the errors of rotation and direction of translation; 180 without a pose",
}

Errors = tuple[float, float]
"""Of the rotation and of the direction of the translation, in degrees."""

Pose = tuple[Matrix, Matrix]
"""Rotation (3, 3) and translation (3,) from the first camera's axes to the second's."""

Indices = NDArray[np.int32]
"""(K, 2): matched rows of the first and of the second image's keypoints."""

Progress = Callable[[list[Any]], Iterable[Any]]

ExtractRegion = Callable[[int, Region], Features]
"""Features of a region of an image, given its row."""


def estimate_errors(first: Camera, second: Camera, found: RelativePose) -> Errors:
    """Errors of an estimated pose of two cameras."""
    if found.rotation is None or found.translation is None:
        return NO_POSE
    return pose_error(relative_pose(first, second), (found.rotation, found.translation))


def relative_pose(first: Camera, second: Camera) -> Pose:
    rotation = second.rotation @ first.rotation.T
    return rotation, second.translation - rotation @ first.translation


def pose_error(truth: Pose, found: Pose) -> Errors:
    """Degrees between the rotations, and between the lines of the translations; 0 for one of no length."""
    apart = float(direction_degrees(truth[1], found[1]))
    return float(rotation_degrees(truth[0], found[0])), min(apart, 180 - apart)


def fractions_within(errors: ArrayLike, degrees: Sequence[float]) -> list[float]:
    """Fractions of pairs, errors (N, 2), whose larger error is at most each of the degrees; NaN without pairs."""
    table = np.asarray(errors, np.float64).reshape(-1, 2)
    larger = table.max(axis=1, initial=0)
    return [float((larger <= threshold).mean()) if len(table) else math.nan for threshold in degrees]


@dataclass(frozen=True)
class PoseScore:
    """NaN without pairs."""

    pairs: int
    maa10: float
    map15: float

    @classmethod
    def of(cls, errors: Sequence[Errors]) -> PoseScore:
        scores = (float(np.mean(fractions_within(errors, each))) for each in (MAA_THRESHOLDS, MAP_THRESHOLDS))
        return cls(len(errors), *scores)

    @classmethod
    def mean(cls, scores: Sequence[PoseScore]) -> PoseScore:
        """The unweighted mean of scores that have pairs."""
        counted = [score for score in scores if score.pairs]
        if not counted:
            return cls(0, math.nan, math.nan)
        maa10, map15 = (float(np.mean([getattr(score, name) for score in counted])) for name in ("maa10", "map15"))
        return cls(sum(score.pairs for score in counted), maa10, map15)

    def to_dict(self) -> dict[str, Any]:
        return {"pairs": self.pairs, "maa10": rounded(self.maa10), "map15": rounded(self.map15)}


# Pairs of described images


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
        zoomed = {"enlarged": round(scene.enlarged, 3)} if scene.enlarged > 1 else {}
        return {**scene.identity(), **counts, **zoomed, "bags": bags, "left_out": scene.left_out}


@dataclass(frozen=True, eq=False)
class DescribedImage:
    camera: Camera
    keypoints: Keypoints
    descriptors: FloatArray  # (N, D)

    @property
    def features(self) -> Features:
        return Features(self.keypoints, self.descriptors, (self.camera.width, self.camera.height))


@dataclass(frozen=True, eq=False)
class SecondLook:
    """How images are looked at again: ``extract`` gives the features of a region of the image in a row."""

    extract: ExtractRegion
    matching: MatchingOptions


@dataclass(frozen=True, eq=False)
class PairTask:
    pair: RowPair
    first: DescribedImage
    second: DescribedImage
    options: PhototourismOptions
    device: str = "cpu"


def pair_tasks(
    images: Mapping[int, DescribedImage], pairs: Iterable[RowPair], options: PhototourismOptions, device: str = "cpu"
) -> Iterable[PairTask]:
    return (PairTask(pair, images[pair[0]], images[pair[1]], options, device) for pair in pairs)


def match_pair(task: PairTask) -> Indices:
    return match_features(task.first.features, task.second.features, task.options, device=task.device).indices


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
    device: str = "cpu",
    second: SecondLook | None = None,
) -> StereoResult:
    """Relative poses of the scene's pairs; they are matched on the device.

    ``second``: the second look of the options; with it there is one process, whose networks use all cores.
    """
    tasks = pair_tasks(images, progress(prepared.pairs), options, device)
    if second is None:
        found = [result for _, result in in_processes(_stereo, tasks, jobs)]
    else:
        found = [_stereo(task, second) for task in tasks]
    names = [image.name for image in prepared.scene.images]
    return StereoResult([(names[i], names[j]) for i, j in prepared.pairs], found)


def _stereo(task: PairTask, again: SecondLook | None = None) -> PairResult:
    first, second, options = task.first, task.second, task.options
    cameras = first.camera.matrix, second.camera.matrix
    found = match_and_verify(
        first.features, second.features, "pose", options, options, cameras=cameras, device=task.device
    )
    if again is not None:
        pair = MatchedImages(first.features, second.features, found)
        regions = partial(again.extract, task.pair[0]), partial(again.extract, task.pair[1])
        more = {"other": options.second_look != "same", "region_size": options.region_size, "device": task.device}
        found = look_again(pair, regions, again.matching, options, cameras=cameras, **more).found  # type: ignore[arg-type]
    assert isinstance(found.geometry, RelativePose)
    errors = estimate_errors(first.camera, second.camera, found.geometry)
    return PairResult(errors, len(found.matches), found.geometry.inlier_count)


def tune_ratio(
    described: Sequence[tuple[PreparedScene, Mapping[int, DescribedImage]]],
    options: PhototourismOptions,
    ratios: Sequence[float] = RATIOS,
    jobs: int = 1,
    device: str = "cpu",
) -> tuple[float, dict[float, float]]:
    """The smallest ratio with the best unweighted mean of mAA at 10 degrees over scenes, and that mean by ratio."""
    maa = {}
    for ratio in sorted(ratios):
        own = replace(options, ratio=ratio)
        scores = [evaluate_stereo(prepared, images, own, jobs, device=device).score for prepared, images in described]
        maa[ratio] = PoseScore.mean(scores).maa10
    return max(maa, key=lambda ratio: maa[ratio]), maa
