"""Extract many images into a feature file or a collection: in parallel, resumable, tolerant of bad images."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import cv2
import numpy as np

from logpolar.distributed import Workers, batched, on_batches, show_progress
from logpolar.errors import LogpolarError, LogpolarWarning, in_one_line
from logpolar.features.collections import FeatureCollectionWriter
from logpolar.features.features import Features
from logpolar.features.files import FeatureWriter
from logpolar.images import unnamed_images
from logpolar.images.masks import read_mask, unmasked
from logpolar.images.remote import FetchedImage, RemoteImage, fetched
from logpolar.keypoints import Keypoints
from logpolar.storage.collection_files import new_part
from logpolar.storage.collections import Part, finished_part


class AnyExtractor(Protocol):
    """The interface of ``Extractor`` that ``extract_images`` needs."""

    @property
    def settings(self) -> dict[str, Any]: ...

    def extract(self, image: Any, keypoints: Keypoints | None = None) -> Features: ...


OpenExtractor = Callable[..., AnyExtractor]
"""Makes an extractor, given ``threads=``; must be picklable if ``jobs`` > 1, as ``functools.partial`` is."""


_Task: TypeAlias = tuple[str, Path | RemoteImage, Keypoints | None, Path | None]
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


@dataclass(frozen=True)
class _Counts:
    """Of an image that is stored."""

    keypoints: int
    masked: int


@dataclass(frozen=True)
class _InShard(_Counts):
    """Of an image that its worker has stored in a shard."""

    part: Part
    names: tuple[str, ...]  # all images of the shard


def extract_images(
    images: Mapping[str, Path | RemoteImage],
    output: str | Path,
    open_extractor: OpenExtractor,
    workers: Workers | int = 1,
    overwrite: bool = False,
    progress: bool = False,
    given: GivenKeypoints | None = None,
    masks: Mapping[str, Path] | None = None,
    shard_size: int | None = None,
) -> FolderReport:
    """Extract features of named images into a feature file, skipping images that it already holds.

    A killed run never corrupts the file, and can be resumed. Unreadable images, and those that kill their worker, are
    reported, not stored. ``workers``: a number of processes of this machine, which divide the cores, or a cluster.
    With ``given`` nothing is detected. ``masks``: files by name, see ``images.masks``; keypoints on masked pixels are
    dropped, and a photo whose mask cannot be used is left out. With ``shard_size`` the output is a collection of
    shards with so many images, which the workers themselves write, see ``storage.collections``. Remote images, see
    ``images.remote``, are fetched by the workers, a few ahead of their use.
    """
    report = FolderReport()
    workers = (Workers(workers) if isinstance(workers, int) else workers).at_most(len(images))
    extractor = open_extractor(threads=0 if workers.is_here else 1)
    report.failed = unnamed_images(images)
    unnamed = set(report.failed)
    settings = {**extractor.settings, "detector": {"name": given.source}} if given else extractor.settings
    settings |= {"masks": True} if masks is not None else {}
    start = (lambda: extractor) if workers.is_here else partial(_open_worker, open_extractor, workers.threads)
    with _open_writer(output, settings, overwrite, shard_size) as writer:
        todo = {name: path for name, path in images.items() if name not in writer.finished and name not in unnamed}
        report.skipped = len(images) - len(todo) - len(unnamed)
        tasks = (
            (name, path, given.read(name) if given else None, (masks or {}).get(name)) for name, path in todo.items()
        )
        with show_progress(len(images), "features", "image", progress, len(images) - len(todo)) as bar:
            for name, result in _results(tasks, writer, workers, start, shard_size):
                if isinstance(result, str):
                    report.failed[name] = result
                else:
                    report.done += 1
                    report.keypoints += result.keypoints
                    report.masked += result.masked
                bar.update()
        if not writer.finished:
            writer.discard()  # nothing could be read: leave no empty file
    return report


def _open_writer(
    output: str | Path, settings: Mapping[str, Any], overwrite: bool, shard_size: int | None
) -> FeatureWriter | FeatureCollectionWriter:
    return (FeatureCollectionWriter if shard_size else FeatureWriter)(output, settings, overwrite)


def _results(
    tasks: Iterable[_Task],
    writer: FeatureWriter | FeatureCollectionWriter,
    workers: Workers,
    start: Callable[..., AnyExtractor],
    shard_size: int | None,
) -> Iterator[tuple[str, _Counts | str]]:
    """Of each image that is safely stored its counts, of others the reason."""
    if isinstance(writer, FeatureWriter):
        batches = batched(tasks, workers.batch)
        for (name, *_), found in on_batches(_extract_batch, batches, workers, start, if_lost=_lost):
            if not isinstance(found, str):
                writer.add(name, found[0])
            yield name, found if isinstance(found, str) else _Counts(len(found[0]), found[1])
        return
    work = partial(_extract_shard, folder=writer.path, settings=writer.settings)
    batches, listed = batched(tasks, shard_size or 1), None
    for (name, *_), stored in on_batches(work, batches, workers, start, if_lost=_lost):
        if isinstance(stored, _InShard) and stored.part != listed:
            writer.add(stored.part, stored.names)
            listed = stored.part
        yield name, stored


def _extract_batch(extractor: AnyExtractor, tasks: Sequence[_Task]) -> Iterator[tuple[Features, int] | str]:
    for task, image in zip(tasks, fetched([task[1] for task in tasks]), strict=True):
        yield _extract(extractor, image, task)


def _extract_shard(
    extractor: AnyExtractor, tasks: Sequence[_Task], folder: Path, settings: Mapping[str, Any]
) -> list[_InShard | str]:
    """In a worker: write the images of a batch into a shard."""
    path, results = new_part(folder), dict[str, _Counts | str]()
    with FeatureWriter(path, settings) as writer:
        for (name, *_), found in zip(tasks, _extract_batch(extractor, tasks), strict=True):
            if isinstance(found, str):
                results[name] = found
            else:
                writer.add(name, found[0])
                results[name] = _Counts(len(found[0]), found[1])
        names = tuple(sorted(writer.finished))
        if not names:
            writer.discard()
            return list(map(str, results.values()))
    part = finished_part(path, sum(each.keypoints for each in results.values() if isinstance(each, _Counts)))
    return [
        each if isinstance(each, str) else _InShard(each.keypoints, each.masked, part, names)
        for each in results.values()
    ]


def _extract(extractor: AnyExtractor, image: Path | FetchedImage, task: _Task) -> tuple[Features, int] | str:
    """Features of an image and the number of masked keypoints, or the reason why there are none."""
    _, path, keypoints, mask = task
    try:
        found = extractor.extract(image, keypoints)
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
