"""Descriptors on scenes whose second images were downscaled or rotated: rank-1 and relative poses.

python benchmarks/zoom.py FOLDER --part test -d logpolar-96 -d rootsift -d tfeat:tfeat-liberty.params -o zoom.json

FOLDER holds correspondence files of scenes (``logpolar dataset colmap --downscale 3 --distractors 8000``), by any name:
what was done to the second images stands in the file. For each descriptor and each alteration:

    rank1   fraction of correspondences whose nearest neighbour is correct; negatives are all other keypoints of the
            second image except those within 7 px of a correspondence, as in ``logpolar.evaluation.pairs``
    maa     mean average accuracy at 10 degrees of poses from the strongest keypoints of both images, mutual nearest
            neighbours, for each ratio of the ratio test; the errors of all pairs are kept in the result

Each image is described once; descriptors wait in a temporary folder for the processes that match them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.files import CorrespondenceFile
from logpolar.distributed import in_processes
from logpolar.evaluation.cache import Uncached
from logpolar.evaluation.descriptors.registry import open_method
from logpolar.evaluation.metrics import ranks
from logpolar.evaluation.poses import PoseScore, estimate_errors
from logpolar.geometry.two_view import estimate_pose
from logpolar.keypoints import Keypoints
from logpolar.storage.documents import versions
from logpolar.types import FloatArray

SEED = 0
NEAR = 7.0  # pixels around a correspondence in which nothing counts as a negative


@dataclass(frozen=True)
class ImageTask:
    """An image of a file to be described."""

    file: Path
    image: int
    rows: NDArray[np.intp]  # of the keypoints that are needed
    spec: str
    folder: Path


def described_file(task: ImageTask | PairTask, image: int) -> Path:
    return task.folder / f"{task.file.stem}-{hashlib.sha256(task.spec.encode()).hexdigest()[:16]}-{image}.npy"


@dataclass(frozen=True)
class PairTask:
    """A pair of described images to be matched."""

    file: Path
    pair: int
    spec: str
    folder: Path
    keypoints: int
    ratios: tuple[float, ...]
    threshold: float


@dataclass(frozen=True)
class PairResult:
    hits: int
    correspondences: int
    errors: list[tuple[float, float]]  # one for each ratio
    matches: list[int]


@lru_cache(maxsize=2)
def open_file(path: Path) -> CorrespondenceFile:
    return CorrespondenceFile(path)


# Describing


@lru_cache(maxsize=1)
def views_of(spec: str, device: str) -> Uncached:
    method = open_method(spec, device=device, precision="auto" if device == "cpu" else "float32")
    assert method.describer is not None
    return Uncached(method.describer)


def describe_image(device: str, task: ImageTask) -> None:
    file = open_file(task.file)
    keypoints = file.read_keypoints(task.image)
    descriptors = np.zeros((len(keypoints), 128), np.float32)
    if len(task.rows):
        views, image = views_of(task.spec, device), file.read_image(task.image)
        descriptors[task.rows] = views.describe("", image, keypoints[task.rows])
    np.save(described_file(task, task.image), descriptors)


def describe_images(tasks: list[ImageTask], device: str, jobs: int) -> None:
    """On the GPU in this process, on the CPU in all of them."""
    for spec in dict.fromkeys(task.spec for task in tasks):
        start = time.perf_counter()
        own = [task for task in tasks if task.spec == spec]
        on_cpu = device == "cpu" or spec.startswith(("sift", "rootsift"))
        work = partial(describe_image, "cpu" if on_cpu else device)
        for _ in in_processes(work, own, jobs if on_cpu else 1, use_one_thread):
            pass
        print(f"{spec}: {len(own)} images described in {time.perf_counter() - start:.0f} s", flush=True)


def use_one_thread() -> None:
    """In each of many processes."""
    import torch

    torch.set_num_threads(1)


# Matching


def strongest(keypoints: Keypoints, count: int) -> NDArray[np.intp]:
    return np.argsort(-keypoints.response, kind="stable")[:count]


def match_pair(task: PairTask) -> PairResult:
    file = open_file(task.file)
    images = file.pair_images[task.pair].tolist()
    keypoints = [file.read_keypoints(image) for image in images]
    first, second = (np.load(described_file(task, image)) for image in images)
    found = file.read_correspondences(task.pair, (keypoints[0], keypoints[1]))
    hits = right_neighbours(first[found.indices[:, 0]], second, found.indices[:, 1], keypoints[1])
    best = [strongest(each, task.keypoints) for each in keypoints]
    pairs, ratio = mutual_neighbours(first[best[0]], second[best[1]])
    xy = [each.xy[rows][pairs[:, side]] for side, (each, rows) in enumerate(zip(keypoints, best, strict=True))]
    cameras = [file.read_camera(image) for image in images]
    if cameras[0] is None or cameras[1] is None:
        raise SystemExit(f"{task.file}: has no cameras")
    errors, matches = [], []
    for most in task.ratios:
        keep = ratio <= most
        matrices = cameras[0].matrix, cameras[1].matrix
        pose = estimate_pose(xy[0][keep], xy[1][keep], *matrices, threshold=task.threshold)
        errors.append(estimate_errors(cameras[0], cameras[1], pose))
        matches.append(int(keep.sum()))
    return PairResult(hits, len(found), errors, matches)


def right_neighbours(first: FloatArray, second: FloatArray, truth: NDArray[np.int32], places: Keypoints) -> int:
    """How many rows of ``first`` are nearest to their ``truth`` among the rows of ``second``."""
    if len(first) == 0:
        return 0
    gap = np.linalg.norm(places.xy[:, None] - places.xy[truth][None], axis=2).min(axis=1)
    answers = np.concatenate([truth, np.flatnonzero(gap >= NEAR)])  # what corresponds is 7 px apart from each other
    distances = np.sqrt(np.maximum(2 - 2 * first @ second[answers].T, 0))
    return int((ranks(distances, np.arange(len(first))) == 0).sum())


def mutual_neighbours(first: FloatArray, second: FloatArray) -> tuple[NDArray[np.intp], NDArray[np.floating]]:
    """Mutual nearest neighbours (K, 2) by row, and the ratio of the best distance to the second best.

    What ``logpolar.matching.nearest`` finds, once for all ratios.
    """
    if len(first) == 0 or len(second) < 2:
        return np.zeros((0, 2), np.intp), np.zeros(0)
    similarity = first @ second.T
    nearest, back = similarity.argmax(axis=1), similarity.argmax(axis=0)
    rows = np.flatnonzero(back[nearest] == np.arange(len(first)))
    two = np.partition(similarity[rows], -2, axis=1)[:, -2:]
    runner_up, best = np.sqrt(np.maximum(2 - 2 * two, 0)).T
    ratio = np.divide(best, runner_up, out=np.ones_like(best), where=runner_up > 0)
    return np.stack([rows, nearest[rows]], axis=1), ratio


# Results


def alteration_of(file: CorrespondenceFile) -> str:
    second = file.settings.get("second", {})
    turn = f", turn {second['turn']:g}" if second.get("turn") else ""
    return f"zoom {second.get('shrink', 1):g}{turn}"


def draw_pairs(file: CorrespondenceFile, part: str, count: int) -> list[int]:
    """The same of a scene, whatever was done to its second images."""
    pairs = file.pairs(part)
    chosen = np.random.default_rng(SEED).permutation(len(pairs))[:count]
    return sorted(pairs[index] for index in chosen)


def summarise(results: list[tuple[PairTask, PairResult]], ratios: tuple[float, ...]) -> dict[str, Any]:
    """Of pairs of one descriptor and one alteration."""
    hits, count = (sum(getattr(result, name) for _, result in results) for name in ("hits", "correspondences"))
    maa = {f"{r:g}": PoseScore.of([res.errors[k] for _, res in results]).maa10 for k, r in enumerate(ratios)}
    matches = {f"{r:g}": float(np.median([res.matches[k] for _, res in results])) for k, r in enumerate(ratios)}
    return {
        "pairs": len(results),
        "correspondences": count,
        "rank1": hits / count if count else None,
        "maa": maa,
        "matches_median": matches,
    }


def in_full(results: list[tuple[PairTask, PairResult]], ratios: tuple[float, ...]) -> dict[str, Any]:
    """The summary with what it was made of, by scene file."""
    scenes: dict[str, Any] = {}
    for name in dict.fromkeys(task.file.stem for task, _ in results):
        own = [(task, result) for task, result in results if task.file.stem == name]
        errors = {f"{r:g}": np.round([res.errors[k] for _, res in own], 3).tolist() for k, r in enumerate(ratios)}
        pairs = [(task.pair, result.hits, result.correspondences) for task, result in own]
        scenes[name] = {**summarise(own, ratios), "pair_hits_correspondences": pairs, "errors": errors}
    return {**summarise(results, ratios), "scenes": scenes}


def numbers(text: str) -> tuple[float, ...]:
    return tuple(float(value) for value in text.split(","))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", choices=("train", "validation", "test"), default="test")
    parser.add_argument("-d", "--descriptor", action="append", required=True, help="spec, see evaluation.descriptors")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--keypoints", type=int, default=2000, help="of each image, for poses")
    parser.add_argument("--pairs", type=int, default=100, help="of each file")
    parser.add_argument("--ratios", type=numbers, default=(0.75, 0.8, 0.85, 0.9, 0.95, 1.0))
    parser.add_argument("--threshold", type=float, default=1.0, help="of the essential matrix, in pixels")
    parser.add_argument("--pattern", default="*.h5", help="which files of the folder")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser.parse_args()


def needed_rows(file: CorrespondenceFile, pairs: list[int], count: int) -> dict[int, NDArray[np.intp]]:
    """Keypoints by image that some pair asks for: all of second images, the strongest and the matched of first ones."""
    rows: dict[int, NDArray[np.intp]] = {}
    for pair in pairs:
        first, second = file.pair_images[pair].tolist()
        found = file.read_correspondences(pair)
        keypoints = file.read_keypoints(first)
        wanted = strongest(keypoints, count), found.indices[:, 0], rows.get(first, np.zeros(0, np.intp))
        rows[first] = np.unique(np.concatenate(wanted))
        rows[second] = np.arange(len(file.read_keypoints(second)))
    return rows


def all_tasks(options: argparse.Namespace, folder: Path) -> tuple[list[ImageTask], list[PairTask], dict[Path, str]]:
    images, pairs, kinds = [], [], {}
    for path in sorted(options.folder.glob(options.pattern)):
        with CorrespondenceFile(path) as file:
            kinds[path] = alteration_of(file)
            chosen = draw_pairs(file, options.part, options.pairs)
            rows = needed_rows(file, chosen, options.keypoints)
        settings = options.keypoints, options.ratios, options.threshold
        images += [ImageTask(path, image, rows[image], spec, folder) for spec in options.descriptor for image in rows]
        pairs += [PairTask(path, pair, spec, folder, *settings) for spec in options.descriptor for pair in chosen]
    return images, pairs, kinds


def measure(options: argparse.Namespace) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Descriptor, alteration, and what was measured."""
    with tempfile.TemporaryDirectory() as folder:
        images, pairs, kinds = all_tasks(options, Path(folder))
        describe_images(images, options.device, options.jobs)
        start = time.perf_counter()
        names = {spec: open_method(spec, device=options.device).name for spec in options.descriptor}
        groups = defaultdict(list)
        for task, result in in_processes(match_pair, pairs, options.jobs):
            groups[names[task.spec], kinds[task.file]].append((task, result))
        print(f"{len(pairs)} pairs matched in {time.perf_counter() - start:.0f} s", flush=True)
    for (name, kind), results in sorted(groups.items()):
        yield name, kind, in_full(results, options.ratios)


def main() -> None:
    # For the processes that will be started: each has one core.
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
    options = arguments()
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()}
    methods: dict[str, Any] = defaultdict(dict)
    for name, kind, found in measure(options):
        methods[name][kind] = found
        share = "-" if found["rank1"] is None else f"{found['rank1']:.3f}"
        maa = "  ".join(f"{ratio}: {value:.3f}" for ratio, value in found["maa"].items())
        print(f"{name:20}{kind:16}{found['correspondences']:8} rank1 {share}   maa {maa}", flush=True)
    result = {"seed": SEED, "settings": settings, "versions": versions(), "descriptors": methods}
    options.output.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
