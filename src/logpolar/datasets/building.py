"""Shared by the builders of correspondence files: splits, batches, processes with progress, the report."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from logpolar.datasets.correspondences import ImagePair
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.options import KeypointRules, SplitRules
from logpolar.datasets.writing import CorrespondenceWriter, ImageRecord, PairRecord
from logpolar.distributed import in_processes
from logpolar.errors import ImageError, LogpolarError
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import Detector, SiftDetector
from logpolar.models.detectors import NetworkDetector
from logpolar.storage.documents import versions

Item = TypeVar("Item")
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True)
class BuildReport:
    """Content of a finished file, and the images that could not be used."""

    counts: dict[str, int]
    left_out: dict[str, str]  # image -> reason
    was_complete: bool  # before this run


def read_report(path: str | Path, was_complete: bool) -> BuildReport:
    with CorrespondenceFile(path) as file:
        return BuildReport(file.counts(), file.summary["left_out"], was_complete)


def split_images(names: Sequence[str], rules: SplitRules) -> dict[str, str]:
    """Split of each image: a fraction, chosen by a hash of the names, is for validation, the rest for training."""
    if rules.test:
        return dict.fromkeys(names, "test")
    ordered = sorted(
        names, key=lambda name: hashlib.sha256(f"{rules.seed} {name}".encode(errors="surrogateescape")).digest()
    )
    held_out = set(ordered[: round(rules.validation * len(ordered))])
    return {name: "validation" if name in held_out else "train" for name in names}


def fingerprint(items: Iterable[object], files: Iterable[Path]) -> str:
    """A short hash of items, and of size and modification time of files, to recognise unchanged inputs."""
    ages = [(path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr((list(items), ages)).encode(errors="surrogateescape")).hexdigest()[:16]


@lru_cache(maxsize=1)  # a network takes longer to open than to run
def open_detector(rules: KeypointRules) -> Detector:
    """The detector of the rules. Networks use one thread: images are divided among processes."""
    if rules.detector == "sift":
        return SiftDetector(rules.max_keypoints, rules.contrast)
    return NetworkDetector(rules.detector, rules.max_keypoints, threads=1)


def in_batches(items: Iterable[Item], size: int, store: Callable[[list[Item]], None]) -> None:
    """Store items in batches; the last, incomplete one is stored even if the items end with an error."""
    batch: list[Item] = []
    try:
        for item in items:
            batch.append(item)
            if len(batch) == size:
                full, batch = batch, []
                store(full)
    finally:
        if batch:
            store(batch)


def work_through(
    work: Callable[[Task], Result], tasks: Sequence[Task], what: str, total: int, jobs: int, progress: bool
) -> Iterator[tuple[Task, Result]]:
    """Tasks and results, by several processes, with a progress bar; ``total`` includes what was done before."""
    made = in_processes(work, tasks, jobs)
    done = total - len(tasks)
    return iter(tqdm(made, desc=what, total=total, initial=done, unit=what, disable=None if progress else True))


def or_reason(make: Callable[[], Result], path: Path) -> Result | str:
    """The result, or the reason why the image at ``path`` cannot be used."""
    try:
        return make()
    except LogpolarError as error:
        return str(error)
    except (cv2.error, MemoryError) as error:
        return f"{path}: cannot be used ({type(error).__name__}: {error})"


@dataclass(frozen=True, eq=False)
class BuiltPair(ImagePair):
    """Two images, their compressed data, and the keypoints of the first without correspondence by cause."""

    encoded: tuple[bytes, bytes]
    rejects: Counter[str]


AnyPair = TypeVar("AnyPair", bound=BuiltPair)


@dataclass(frozen=True, eq=False)
class PairTask(Generic[Item]):
    """A pair to build from an item, whatever the builder makes it of."""

    item: Item
    origin: str  # whose failure it is, in the report
    names: tuple[str, str]  # of the two images in the file
    split: str


def build_pairs(
    output: str | Path,
    settings: Mapping[str, Any],
    tasks: Sequence[PairTask[Item]],
    work: Callable[[PairTask[Item]], BuiltPair | str],
    left_out: Mapping[str, str],
    *,
    what: str,
    jobs: int,
    overwrite: bool,
    progress: bool,
) -> BuildReport:
    """Make a file of pairs that share no images; resumes an unfinished file.

    ``work`` returns a pair or the reason why there is none. ``left_out`` are reasons found before, by origin; ``what``
    names the origins.
    """
    left_out = dict(left_out)
    with CorrespondenceWriter(output, settings, overwrite) as writer:
        todo = [task for task in tasks if task.names not in writer.pairs]

        def records() -> Iterator[tuple[list[ImageRecord], PairRecord]]:
            for task, result in work_through(work, todo, "pair", len(tasks), jobs, progress):
                if isinstance(result, str):
                    left_out[task.origin] = result
                else:
                    yield _records(task, result)

        def store(made: list[tuple[list[ImageRecord], PairRecord]]) -> None:
            writer.add([image for images, _ in made for image in images], [pair for _, pair in made])

        was_complete = writer.complete
        if not was_complete:
            in_batches(records(), 32, store)
            if not writer.pairs:
                writer.discard()
                raise ImageError(f"none of the {len(left_out)} {what} can be used; {next(iter(left_out.values()))}")
            writer.finish({"left_out": left_out, "versions": versions("numpy", "h5py")})
    return read_report(output, was_complete)


def _records(task: PairTask[Any], pair: BuiltPair) -> tuple[list[ImageRecord], PairRecord]:
    views = (pair.first, pair.first_keypoints), (pair.second, pair.second_keypoints)
    images = [
        ImageRecord(name, task.split, (pixels.shape[1], pixels.shape[0]), keypoints, data)
        for name, (pixels, keypoints), data in zip(task.names, views, pair.encoded, strict=True)
    ]
    return images, PairRecord(*task.names, pair.correspondences, pair.rejects)


def keep_distractors(pair: AnyPair, count: int) -> AnyPair:
    """The pair with its matched keypoints first, then the ``count`` strongest of the others."""
    found = pair.correspondences

    def arranged(matched: Keypoints, detected: Keypoints, used: NDArray[np.int32]) -> Keypoints:
        return matched + detected[np.isin(np.arange(len(detected)), used, invert=True)].strongest(count)

    first = arranged(found.first, pair.first_keypoints, found.indices[:, 0])
    second = arranged(found.second, pair.second_keypoints, found.indices[:, 1])
    rows = np.arange(len(found), dtype=np.int32)
    found = replace(found, indices=np.stack([rows, rows], axis=1))
    return replace(pair, first_keypoints=first, second_keypoints=second, correspondences=found)
