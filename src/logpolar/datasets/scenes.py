"""Correspondences from a COLMAP dense workspace: SIFT keypoints linked through poses and depth.

First each image by itself, see ``views``. Then each pair: the plane around a keypoint maps it, its scale and its
orientation into the other image, and is compared to the plane found there.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.building import BuildReport, fingerprint, in_batches, read_report, split_images, work_through
from logpolar.datasets.correspondences import Check, Correspondences, find_correspondences
from logpolar.datasets.image_transforms import transformed_name
from logpolar.datasets.options import SceneOptions, stored_settings
from logpolar.datasets.views import PreparedView, ViewTask, prepare_view
from logpolar.datasets.visibility import Pair, select_pairs, shared_points
from logpolar.datasets.writing import CorrespondenceWriter, ImageRecord, PairRecord
from logpolar.errors import StorageError
from logpolar.geometry.cameras import Camera, Transfer
from logpolar.geometry.homography import warp_points
from logpolar.geometry.radius_search import Indices
from logpolar.sfm.pycolmap_compat import import_pycolmap
from logpolar.sfm.workspace import Scene, read_workspace
from logpolar.storage.documents import versions

_BATCH = 64  # pairs per transaction


def build_scene(
    workspace: str | Path,
    output: str | Path,
    options: SceneOptions | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    progress: bool = False,
) -> BuildReport:
    """Make the correspondence file of a workspace; resumes an unfinished file."""
    options = options or SceneOptions()
    scene = read_workspace(workspace)
    splits = split_images([view.name for view in scene.views], options.split)
    shared = shared_points(scene)
    random = np.random.default_rng(options.split.seed)
    pairs, rejects = select_pairs(scene, shared, list(splits.values()), options.pairs, random, options.images.max_size)
    _check_feasible(scene, pairs, rejects, options)
    cameras = [(view.name, view.camera.pose.tolist(), view.camera.matrix.tolist()) for view in scene.views]
    files = [path for view in scene.views for path in (view.image, view.depth)]
    source = {"source": "colmap", "scene": scene.folder.resolve().name, "images_hash": fingerprint(cameras, files)}
    with CorrespondenceWriter(output, source | stored_settings(options), overwrite) as writer:
        was_complete = writer.complete
        build = _Build(scene, shared, splits, pairs, options, writer, jobs, progress)
        if not was_complete:
            build.run(rejects)
        build.drop_scratch()  # here, so that a run killed just before leaves nothing for good
    return read_report(output, was_complete)


def _check_feasible(scene: Scene, pairs: list[Pair], rejects: Counter[str], options: SceneOptions) -> None:
    """Raise, with a hint, if the scene cannot yield correspondences."""
    if options.depth.min_views > len(scene.views) - 1:
        views = f"a depth must be confirmed by {options.depth.min_views} other views"
        raise StorageError(f"{scene.folder}: {views}, but there are {len(scene.views)} in all; lower --min-views")
    if not pairs:
        causes = ", ".join(f"{cause}: {count}" for cause, count in rejects.items() if count)
        hint = "--validation 0 or --test" if rejects["across the split"] else "a lower --min-overlap or --min-shared"
        raise StorageError(f"{scene.folder}: no two images overlap enough to be paired ({causes}); try {hint}")


def confirming_views(scene: Scene, shared: NDArray[np.int32], view: int, most: int) -> list[tuple[Path, Camera]]:
    """Depth maps and cameras of the views that share most points with one."""
    ranking = np.argsort(-shared[view], kind="stable")[:most]
    return [(scene.views[other].depth, scene.views[other].camera) for other in ranking if shared[view, other] > 0]


@dataclass(frozen=True)
class _LinkTask:
    """What a process needs to link two prepared views."""

    names: tuple[str, str]
    seed: tuple[int, int, int]
    first: Path
    second: Path
    options: SceneOptions


@dataclass(frozen=True, eq=False)
class _Build:
    """Builds one file. Prepared views are kept in a folder beside it, for pairing and for resuming."""

    scene: Scene
    shared: NDArray[np.int32]
    splits: dict[str, str]
    pairs: list[Pair]
    options: SceneOptions
    writer: CorrespondenceWriter
    jobs: int
    progress: bool

    @property
    def scratch(self) -> Path:
        return self.writer.path.with_name(self.writer.path.name + ".scratch")

    def run(self, rejects: Counter[str]) -> None:
        """Write everything and finish the file; ``rejects`` are pairs of images by cause."""
        self.scratch.mkdir(exist_ok=True)
        _load.cache_clear()  # of views in a scratch folder of the same name
        left_out = self.scene.left_out | self._prepare_views()
        usable = [pair for pair in self.pairs if all(name in self.writer.images for name in self._names(pair))]
        if not usable:
            self.writer.discard()
            self.drop_scratch()
            reason = next(iter(left_out.values()))
            raise StorageError(f"{self.scene.folder}: no two usable images overlap enough; {reason}")
        rejects["image left out"] = len(self.pairs) - len(usable)
        self._link_views(usable)
        software = versions("numpy", "h5py", pycolmap=import_pycolmap("reading COLMAP models").__version__)
        self.writer.finish({"image_pairs_rejected": rejects, "left_out": left_out, "versions": software})

    def drop_scratch(self) -> None:
        """Remove our own files, and the folder unless it has others."""
        for path in self.scratch.glob("*.view.npz"):
            path.unlink()
        with contextlib.suppress(OSError):
            self.scratch.rmdir()

    def _scratch_file(self, view: int, transformed: bool) -> Path:
        return self.scratch / f"{view}{'-altered' if transformed else ''}.view.npz"

    def _names(self, pair: Pair) -> tuple[str, str]:
        """Names of the two images of a pair in the file."""
        first, second = (self.scene.views[number].name for number in pair.views)
        return first, transformed_name(second, self.options.second) if self.options.second.transforms else second

    def _view_tasks(self) -> Iterator[ViewTask]:
        """All views that go into the file; where second images are transformed, only those that are in a pair."""
        wanted = [(number, False) for number in range(len(self.scene.views))]
        if self.options.second.transforms:
            wanted = sorted({(pair.first, False) for pair in self.pairs} | {(pair.second, True) for pair in self.pairs})
        for number, transformed in wanted:
            view = self.scene.views[number]
            others = confirming_views(self.scene, self.shared, number, self.options.depth.max_neighbours)
            path = Path(os.path.relpath(view.image.resolve(), self.writer.path.parent.resolve())).as_posix()
            target = self._scratch_file(number, transformed)
            yield ViewTask(view, self.splits[view.name], others, self.options, path, target, transformed)

    def _prepare_views(self) -> dict[str, str]:
        """Prepare the remaining views and store their images; reasons for those that cannot be used."""
        left_out: dict[str, str] = {}
        tasks = list(self._view_tasks())
        todo = [task for task in tasks if task.name not in self.writer.images or not task.target.exists()]

        def records() -> Iterator[ImageRecord]:
            for task, result in work_through(prepare_view, todo, "image", len(tasks), self.jobs, self.progress):
                if isinstance(result, str):
                    left_out[task.view.name] = result
                elif task.name not in self.writer.images:
                    yield result

        in_batches(records(), 8, partial(self.writer.add, pairs=()))
        return left_out

    def _link_views(self, pairs: list[Pair]) -> None:
        """Find the correspondences of all pairs that are not in the file yet."""
        tasks = []
        for pair in pairs:
            if (names := self._names(pair)) not in self.writer.pairs:
                first = self._scratch_file(pair.first, transformed=False)
                second = self._scratch_file(pair.second, self.options.second.transforms)
                tasks.append(_LinkTask(names, (self.options.split.seed, *pair.views), first, second, self.options))

        def records() -> Iterator[PairRecord]:
            for task, (found, rejects) in work_through(_link, tasks, "pair", len(pairs), self.jobs, self.progress):
                yield PairRecord(*task.names, found, rejects)

        in_batches(records(), _BATCH, partial(self.writer.add, ()))


def _link(task: _LinkTask) -> tuple[Correspondences, Counter[str]]:
    random = np.random.default_rng(task.seed)
    return link_views(_load(task.first), _load(task.second), task.options, random)


@lru_cache(maxsize=2)
def _load(path: Path) -> PreparedView:
    return PreparedView.load(path)


def link_views(
    first: PreparedView, second: PreparedView, options: SceneOptions, random: np.random.Generator
) -> tuple[Correspondences, Counter[str]]:
    """Correspondences of two prepared views, of keypoints of the first whose plane is known."""
    known = np.flatnonzero(first.planes.known)
    keypoints, planes = first.keypoints[known], first.planes[known]
    there = Transfer.between(first.camera, second.camera)
    back = Transfer.between(second.camera, first.camera)
    homographies = there.of_planes(keypoints.xy, planes.inverse_depth, planes.slope)
    returns = back.of_planes(second.keypoints.xy, second.planes.inverse_depth, second.planes.slope)
    points = np.concatenate([keypoints.xy, np.ones((len(known), 1))], axis=1)
    depth = np.einsum("nj,nj->n", homographies[:, 2], points) / planes.inverse_depth
    homographies[depth <= 0] = np.nan  # behind the second camera
    warped, _ = warp_points(homographies, keypoints.xy)

    def is_known(_: Indices, other: Indices) -> NDArray[np.bool_]:
        return np.asarray(second.planes.known[other])

    def is_on_surface(here: Indices, other: Indices) -> NDArray[np.bool_]:
        surface = second.planes[other].at(warped[here] - second.keypoints.xy[other])
        return np.asarray(np.abs(depth[here] * surface - 1) <= options.depth.max_occlusion)

    def closes(here: Indices, other: Indices) -> NDArray[np.bool_]:
        returned, _ = warp_points(returns[other], warped[here])
        return np.asarray(np.linalg.norm(returned - keypoints.xy[here], axis=1) <= options.depth.max_cycle)

    checks: list[tuple[str, Check]] = [
        ("depth of the other unknown", is_known),
        ("occluded", is_on_surface),
        ("cycle does not close", closes),
    ]
    shape = second.camera.width, second.camera.height
    found, rejects = find_correspondences(
        keypoints, second.keypoints, homographies, shape, options.rules, random, checks
    )
    found.indices[:, 0] = known[found.indices[:, 0]]
    return found, rejects
