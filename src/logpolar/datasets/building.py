"""What all builders of correspondence files share: parts, batches, progress, the report."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tqdm import tqdm

from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.options import KeypointRules, SplitRules
from logpolar.keypoints.detection import SiftDetector

Item = TypeVar("Item")


@dataclass(frozen=True)
class BuildReport:
    """What is in a finished file, and what could not be used."""

    counts: dict[str, int]
    left_out: dict[str, str]  # image -> reason
    was_complete: bool  # before: nothing was left to do


def read_report(path: str | Path, was_complete: bool) -> BuildReport:
    with CorrespondenceFile(path) as file:
        return BuildReport(file.counts(), file.summary["left_out"], was_complete)


def split_images(names: Sequence[str], rules: SplitRules) -> dict[str, str]:
    """Part of each image: a share of them, chosen by a hash of their names, is for validation, the rest to train."""
    if rules.test:
        return dict.fromkeys(names, "test")
    ordered = sorted(
        names, key=lambda name: hashlib.sha256(f"{rules.seed} {name}".encode(errors="surrogateescape")).digest()
    )
    held_out = set(ordered[: round(rules.validation * len(ordered))])
    return {name: "validation" if name in held_out else "train" for name in names}


def fingerprint(items: Iterable[object], files: Iterable[Path]) -> str:
    """A short hash of names and the like, and of the size and age of files, to tell whether a run is the same."""
    ages = [(path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr((list(items), ages)).encode(errors="surrogateescape")).hexdigest()[:16]


def sift(rules: KeypointRules) -> SiftDetector:
    return SiftDetector(rules.max_keypoints, rules.contrast)


def in_batches(items: Iterable[Item], size: int, store: Callable[[list[Item]], None]) -> None:
    """Store items in batches; what is there when the items stop coming, for whatever reason, is stored too."""
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


def with_progress(items: Iterable[Item], what: str, total: int, done: int, show: bool) -> Iterator[Item]:
    """The items, with a bar on a terminal."""
    return iter(tqdm(items, desc=what, total=total, initial=done, unit=what, disable=None if show else True))
