"""Shared by the builders of correspondence files: splits, batches, processes with progress, the report."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import cv2
from tqdm import tqdm

from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.options import KeypointRules, SplitRules
from logpolar.distributed import in_processes
from logpolar.errors import LogpolarError
from logpolar.keypoints.detection import SiftDetector

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


def sift(rules: KeypointRules) -> SiftDetector:
    return SiftDetector(rules.max_keypoints, rules.contrast)


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
