"""Which views are made, of which images, and which of them are paired. Without torch: processes make the views."""

from __future__ import annotations

import glob
import os
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from multiprocessing import parent_process
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.aligned import read_pair_list
from logpolar.datasets.files import CorrespondenceFile
from logpolar.distributed import in_processes
from logpolar.errors import LogpolarError
from logpolar.models.detectors import NetworkDetector
from logpolar.training.matcher_options import MatcherData, ViewsOptions
from logpolar.training.matcher_views import SourceFile, View, make_view

KINDS = ("scene", "photo", "aligned")
"""Of pairs: two images of a scene, one image, two aligned images."""


class ViewTask(NamedTuple):
    """What a process needs to make a view."""

    number: int  # of the view
    file: SourceFile
    plain: bool
    backdrop: SourceFile | None
    detector: str  # empty: SIFT
    seed: tuple[int, ...]
    options: ViewsOptions


@dataclass(frozen=True, eq=False)
class ViewPlan:
    """Source images, how many views each gets, and pairs of images by kind and group (a scene, a photo)."""

    files: list[SourceFile]
    views: list[int]
    plain: list[bool]  # whether the first view, by each detector, is the image as it is
    pairs: dict[str, dict[str, list[tuple[int, int]]]]  # kind, group: pairs of images

    @property
    def starts(self) -> NDArray[np.int64]:
        """Number of each image's first view."""
        return np.cumsum([0, *self.views])[:-1].astype(np.int64)

    def tasks(self, options: ViewsOptions, seed: int) -> list[ViewTask]:
        """One for every view, in order."""
        return self._tasks(options, seed, np.arange(len(self.files)), ())

    def new_tasks(self, options: ViewsOptions, seed: int) -> Iterator[ViewTask]:
        """Further views without end: every view anew, images in random order, again and again."""
        for turn in count(1):
            order = np.random.default_rng((seed, turn)).permutation(len(self.files))
            yield from self._tasks(options, seed, order, (turn,))

    def _tasks(
        self, options: ViewsOptions, seed: int, images: NDArray[np.int64], turn: tuple[int, ...]
    ) -> list[ViewTask]:
        random, starts = np.random.default_rng((seed, *turn)), self.starts
        photos = [file for file in self.files if file.number is None]
        detectors = options.detectors
        found = []
        for image in images.tolist():
            file = self.files[image]
            for view in range(self.views[image]):
                plain = self.plain[image] and view < len(detectors)
                backdrop = photos[int(random.integers(len(photos)))] if photos and file.number is None else None
                detector, number = detectors[view % len(detectors)], int(starts[image]) + view
                found.append(ViewTask(number, file, plain, backdrop, detector, (seed, image, view, *turn), options))
        return found


def make_plan(data: MatcherData, options: ViewsOptions, held_out: bool = False) -> ViewPlan:
    """The plan for training, or for validation: the held-out scenes alone. Raises ``LogpolarError`` if it is empty."""
    plan = ViewPlan([], [], [], {kind: {} for kind in KINDS})
    for path in _files(data.scenes):
        if (path.stem in data.held_out) == held_out:
            _add_scene(plan, path, options.scene_views)
    for path in [] if held_out else _files(data.photos):
        image = _add(plan, SourceFile(path), options.photo_views, plain=False)
        plan.pairs["photo"][str(path)] = [(image, image)]
    for path in [] if held_out else _files(data.aligned):
        for pair in read_pair_list(path):
            homography = None if pair.homography is None else tuple(pair.homography.ravel().tolist())
            first = _add(plan, SourceFile(pair.first), options.aligned_views, plain=True)
            second = _add(plan, SourceFile(pair.second, None, homography), options.aligned_views, plain=True)
            plan.pairs["aligned"][str(pair.first)] = [(first, second)]
    if not plan.files:
        raise LogpolarError("[data] names no scenes, photos or aligned pairs to make views of")
    return plan


def _add(plan: ViewPlan, file: SourceFile, views: int, plain: bool) -> int:
    plan.files.append(file)
    plan.views.append(views)
    plan.plain.append(plain)
    return len(plan.files) - 1


def _add_scene(plan: ViewPlan, path: Path, views: int) -> None:
    with CorrespondenceFile(path) as file:
        usable = [n for n in range(len(file.images)) if file.read_camera(n) is not None]
        rows = {number: _add(plan, SourceFile(path, number), views, plain=True) for number in usable}
        pairs = [(rows[a], rows[b]) for a, b in file.pair_images.tolist() if a in rows and b in rows]
    if not pairs:
        raise LogpolarError(f"{path}: has no pairs of images with cameras; make it with `logpolar dataset colmap`")
    plan.pairs["scene"][path.stem] = pairs
    plan.pairs["photo"][path.stem] = [(image, image) for image in rows.values()] if views > 1 else []


def _files(patterns: Sequence[str]) -> list[Path]:
    found = []
    for pattern in patterns:
        matches = sorted(glob.glob(pattern))  # noqa: PTH207 # the pattern may start anywhere
        if not matches:
            raise LogpolarError(f"{pattern}: no such file")
        found += [Path(match) for match in matches]
    return list(dict.fromkeys(found))


def run_task(task: ViewTask) -> View:
    """The view of a task."""
    cv2.setNumThreads(1)  # processes use the cores
    _stand_back()
    source = _source(task.file, task.options.max_size)
    backdrop = None if task.plain or task.backdrop is None else _source(task.backdrop, task.options.max_size).pixels
    detector = _detector(task.detector, task.options.keypoints) if task.detector else None
    return make_view(source, task.options, np.random.default_rng(task.seed), task.plain, backdrop, detector)


@lru_cache(maxsize=1)
def _stand_back() -> None:
    """Once in a process that makes views: it gets what training leaves of a core, whose next step must not wait."""
    if parent_process() is not None and hasattr(os, "nice"):
        os.nice(10)


@lru_cache(maxsize=1)
def _detector(name: str, keypoints: int) -> NetworkDetector:
    return NetworkDetector(name, keypoints, threads=1)


_source = lru_cache(maxsize=4)(SourceFile.read)  # views of one image follow each other


class MadeViews:
    """Views of tasks, numbered, made by processes in the background: a thread fetches up to ``ahead`` of them."""

    def __init__(self, tasks: Iterable[ViewTask], jobs: int, ahead: int) -> None:
        self._made: queue.Queue[tuple[int, View]] = queue.Queue(ahead)
        self._closed, self._error = False, None  # type: bool, BaseException | None
        self._thread = threading.Thread(target=self._fetch, args=(tasks, jobs), daemon=True)
        self._thread.start()

    def _fetch(self, tasks: Iterable[ViewTask], jobs: int) -> None:
        with closing(in_processes(run_task, tasks, jobs)) as views:  # type: ignore[type-var] # a generator
            try:
                for task, view in views:
                    while not self._closed:
                        with suppress(queue.Full):
                            self._made.put((task.number, view), timeout=0.2)
                            break
                    if self._closed:
                        return
            except BaseException as error:
                self._error = error

    def __iter__(self) -> Iterator[tuple[int, View]]:
        """All views, as they come."""
        while self._thread.is_alive() or not self._made.empty():
            with suppress(queue.Empty):
                yield self._made.get(timeout=0.2)
        self._raise()

    def ready(self, count: int) -> list[tuple[int, View]]:
        """So many views, or none while there are fewer: describing few at a time is slow."""
        self._raise()
        return [self._made.get() for _ in range(count)] if self._made.qsize() >= count else []

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the processes."""
        self._closed = True
        self._thread.join()
