"""Extract many images into one feature file: in parallel, resumable, tolerant of bad images."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import cv2
import numpy as np

from logpolar.distributed import Workers, on_workers, show_progress
from logpolar.errors import LogpolarError, LogpolarWarning, in_one_line
from logpolar.features.features import Features
from logpolar.features.files import FeatureWriter
from logpolar.images import unnamed_images
from logpolar.images.masks import read_mask, unmasked
from logpolar.keypoints import Keypoints


class AnyExtractor(Protocol):
    """The interface of ``Extractor`` that ``extract_images`` needs."""

    @property
    def settings(self) -> dict[str, Any]: ...

    def extract(self, image: Any, keypoints: Keypoints | None = None) -> Features: ...


OpenExtractor = Callable[..., AnyExtractor]
"""Makes an extractor, given ``threads=``; must be picklable if ``jobs`` > 1, as ``functools.partial`` is."""


_Task: TypeAlias = tuple[str, Path, Keypoints | None, Path | None]
"""Name, file, keypoints if they are given, and the mask's file, if any."""


@dataclass(frozen=True)
class GivenKeypoints:
    """Keypoints to describe instead of detected ones."""

    source: str  # goes into the file's settings, which keeps other keypoints out of the file
    read: Callable[[str], Keypoints]  # by image name


@dataclass
class FolderReport:
    """Counts of extracted, skipped and failed images."""

    done: int = 0
    skipped: int = 0  # already in the file
    keypoints: int = 0
    masked: int = 0  # keypoints that masks dropped
    failed: dict[str, str] = field(default_factory=dict)  # name -> reason


def extract_images(
    images: Mapping[str, Path],
    output: str | Path,
    open_extractor: OpenExtractor,
    workers: Workers | int = 1,
    overwrite: bool = False,
    progress: bool = False,
    given: GivenKeypoints | None = None,
    masks: Mapping[str, Path] | None = None,
) -> FolderReport:
    """Extract features of named images into a feature file, skipping images that it already holds.

    A killed run never corrupts the file, and can be resumed. Unreadable images, and those that kill their worker, are
    reported, not stored. ``workers``: a number of processes of this machine, which divide the cores, or a cluster.
    With ``given`` nothing is detected. ``masks``: files by name, see ``images.masks``; keypoints on masked pixels are
    dropped, and a photo whose mask cannot be used is left out.
    """
    report = FolderReport()
    workers = (Workers(workers) if isinstance(workers, int) else workers).at_most(len(images))
    extractor = open_extractor(threads=0 if workers.is_here else 1)
    report.failed = unnamed_images(images)
    unnamed = set(report.failed)
    settings = {**extractor.settings, "detector": {"name": given.source}} if given else extractor.settings
    settings |= {"masks": True} if masks is not None else {}
    with FeatureWriter(output, settings, overwrite) as writer:
        todo = {name: path for name, path in images.items() if name not in writer.finished | unnamed}
        report.skipped = len(images) - len(todo) - len(unnamed)
        with show_progress(len(images), "features", "image", progress, len(images) - len(todo)) as bar:
            tasks = (
                (name, path, given.read(name) if given else None, (masks or {}).get(name))
                for name, path in todo.items()
            )
            start = (lambda: extractor) if workers.is_here else partial(_open_worker, open_extractor, workers.threads)
            for (name, *_), result in on_workers(_extract, tasks, workers, start, if_lost=_lost):
                if isinstance(result, tuple):
                    features, masked = result
                    writer.add(name, features)
                    report.done += 1
                    report.keypoints += len(features)
                    report.masked += masked
                else:
                    report.failed[name] = result
                bar.update()
        if not writer.finished:
            writer.discard()  # nothing could be read: leave no empty file
    return report


def _extract(extractor: AnyExtractor, task: _Task) -> tuple[Features, int] | str:
    """Features of an image and the number of masked keypoints, or the reason why there are none."""
    _, path, keypoints, mask = task
    try:
        found = extractor.extract(path, keypoints)
        if mask is None:
            return found, 0
        kept = np.flatnonzero(unmasked(read_mask(mask, found.image_size), found.keypoints.xy))
        inside = replace(found, keypoints=found.keypoints[kept], descriptors=found.descriptors[kept])
        return inside, len(found) - len(inside)
    except LogpolarError as error:
        return str(error) if str(path) in str(error) else f"{path}: {error}"
    except (cv2.error, MemoryError, RuntimeError) as error:  # the last: OpenVINO, and a GPU out of memory
        return f"{path}: cannot be described ({in_one_line(error)})"


def _lost(task: _Task) -> str:
    return f"{task[1]}: the process that described it was killed, perhaps out of memory"


def _open_worker(open_extractor: OpenExtractor, threads: int) -> AnyExtractor:
    warnings.simplefilter("ignore", LogpolarWarning)  # the caller's extractor has issued them already
    return open_extractor(threads=threads)
