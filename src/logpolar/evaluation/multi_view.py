"""Poses that COLMAP estimates for small sets of described images ("bags"), compared with the true ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from logpolar.distributed import in_processes
from logpolar.evaluation.options import PhototourismOptions
from logpolar.evaluation.posed_scenes import RowPair
from logpolar.evaluation.poses import (
    NO_POSE,
    DescribedImage,
    Errors,
    Indices,
    PoseScore,
    PreparedScene,
    Progress,
    match_pair,
    pair_tasks,
    pose_error,
    relative_pose,
)
from logpolar.sfm.known_cameras import map_images
from logpolar.storage.documents import rounded


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
    device: str = "cpu",
) -> MultiViewResult:
    """Poses that COLMAP estimates for the scene's bags; a pair in several bags is matched once, on the device."""
    bags = [bag for own in prepared.bags.values() for bag in own]
    pairs = sorted({pair for bag in bags for pair in combinations(bag, 2)})
    wanted = pair_tasks(images, progress(pairs), options, device)
    matched = {task.pair: found for task, found in in_processes(match_pair, wanted, jobs)}
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
    poses = map_images(cameras, [image.keypoints.xy for image in task.images], task.matches, task.seed)
    found = {row: replace(cameras[row], rotation=pose[0], translation=pose[1]) for row, pose in poses.items()}
    errors = []
    for i, j in combinations(range(len(cameras)), 2):
        truth = relative_pose(cameras[i], cameras[j])
        known = i in found and j in found
        errors.append(pose_error(truth, relative_pose(found[i], found[j])) if known else NO_POSE)
    return BagResult(task.names, len(found), errors)
