"""Many images into one feature file: in parallel, resumable, one bad image does not stop the rest."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import cv2
from tqdm import tqdm

from logpolar.distributed import cores, in_processes
from logpolar.errors import LogpolarError, LogpolarWarning, in_one_line
from logpolar.features.features import Features
from logpolar.features.files import FeatureWriter
from logpolar.images import unnamed_images
from logpolar.keypoints import Keypoints


class AnyExtractor(Protocol):
    """What an ``Extractor`` is to a folder of images; others can take its place."""

    @property
    def settings(self) -> dict[str, Any]: ...

    def extract(self, image: Any, keypoints: Keypoints | None = None) -> Features: ...


OpenExtractor = Callable[..., AnyExtractor]
"""Makes an extractor; called with ``threads=``. Must be picklable for ``jobs`` above 1: ``functools.partial`` is."""


_Task: TypeAlias = tuple[str, Path, Keypoints | None]
"""Name, file, and the keypoints to describe if they are given."""


@dataclass(frozen=True)
class GivenKeypoints:
    """Keypoints to describe, in place of a detector's."""

    source: str  # what they are, for the file's settings: other keypoints are not to be added to it
    read: Callable[[str], Keypoints]  # those of a named image


@dataclass
class FolderReport:
    """What became of the images."""

    done: int = 0
    skipped: int = 0  # were in the file already
    keypoints: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # name -> reason


def extract_images(
    images: Mapping[str, Path],
    output: str | Path,
    open_extractor: OpenExtractor,
    jobs: int = 1,
    overwrite: bool = False,
    progress: bool = False,
    given: GivenKeypoints | None = None,
) -> FolderReport:
    """Extract features of named images into a feature file; images that are in it already are left alone.

    After a crash, even in the middle of writing, the file is whole and holds every finished image; run it again to
    continue. Images that cannot be read are reported, not stored. ``jobs`` processes share the cores. With ``given``
    nothing is detected.
    """
    report = FolderReport()
    jobs = max(min(jobs, len(images)), 1)
    extractor = open_extractor(threads=0 if jobs == 1 else 1)
    report.failed = unnamed_images(images)
    unnamed = set(report.failed)
    settings = {**extractor.settings, "detector": {"name": given.source}} if given else extractor.settings
    with FeatureWriter(output, settings, overwrite) as writer:
        todo = {name: path for name, path in images.items() if name not in writer.finished | unnamed}
        report.skipped = len(images) - len(todo) - len(unnamed)
        # Without a terminal there is no bar.
        disable = None if progress else True
        with tqdm(total=len(images), initial=len(images) - len(todo), unit="image", disable=disable) as bar:
            tasks = ((name, path, given.read(name) if given else None) for name, path in todo.items())
            made = _in_turn(tasks, extractor) if jobs == 1 else _in_parallel(tasks, open_extractor, jobs)
            for name, result in made:
                if isinstance(result, Features):
                    writer.add(name, result)
                    report.done += 1
                    report.keypoints += len(result)
                else:
                    report.failed[name] = result
                bar.update()
        if not writer.finished:
            writer.path.unlink()  # no image could be read: leave nothing rather than an empty file
    return report


def _in_turn(tasks: Iterable[_Task], extractor: AnyExtractor) -> Iterator[tuple[str, Features | str]]:
    """Features, or the reason why there are none, of each image."""
    for name, path, keypoints in tasks:
        yield name, _extract(extractor, path, keypoints)


def _in_parallel(
    tasks: Iterable[_Task], open_extractor: OpenExtractor, jobs: int
) -> Iterator[tuple[str, Features | str]]:
    """The same in several processes."""
    for (name, *_), result in in_processes(_work, tasks, jobs, _open_worker, (open_extractor, jobs)):
        yield name, result


def _extract(extractor: AnyExtractor, path: Path, keypoints: Keypoints | None) -> Features | str:
    try:
        return extractor.extract(path, keypoints)
    except LogpolarError as error:
        return str(error) if str(path) in str(error) else f"{path}: {error}"
    except (cv2.error, MemoryError, RuntimeError) as error:  # the last: a GPU without memory left, OpenVINO
        return f"{path}: cannot be described ({in_one_line(error)})"


_worker_extractor: AnyExtractor


def _open_worker(open_extractor: OpenExtractor, jobs: int) -> None:
    global _worker_extractor
    warnings.simplefilter("ignore", LogpolarWarning)  # the caller's own extractor has said it
    _worker_extractor = open_extractor(threads=max(cores() // jobs, 1))


def _work(task: _Task) -> Features | str:
    return _extract(_worker_extractor, *task[1:])
