"""Correspondences from a COLMAP dense workspace: SIFT keypoints linked through poses and depth.

First every image by itself: ``views``. Then every pair: the plane around a keypoint carries it, its scale and its
orientation into the other image, and is checked against the plane found there.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.building import (
    BuildReport,
    fingerprint,
    in_batches,
    read_report,
    split_images,
    with_progress,
)
from logpolar.datasets.correspondences import (
    Check,
    Correspondences,
    find_correspondences,
)
from logpolar.datasets.image_transforms import altered_name
from logpolar.datasets.options import SceneOptions
from logpolar.datasets.views import PreparedView, ViewTask, prepare_view
from logpolar.datasets.visibility import Pair, select_pairs, shared_points
from logpolar.datasets.writing import CorrespondenceWriter, ImageRecord, PairRecord
from logpolar.distributed import in_processes
from logpolar.errors import StorageError
from logpolar.geometry.cameras import Camera, Transfer
from logpolar.geometry.homography import warp_points
from logpolar.geometry.radius_search import Indices
from logpolar.sfm.pycolmap_compat import import_pycolmap
from logpolar.sfm.workspace import Scene, read_workspace
from logpolar.storage.documents import versions

_BATCH = 64  # pairs written in one transaction


def build_scene(
    workspace: str | Path,
    output: str | Path,
    options: SceneOptions | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    progress: bool = False,
) -> BuildReport:
    """Make the correspondence file of a workspace; continues a file whose making was stopped."""
    options = options or SceneOptions()
    scene = read_workspace(workspace)
    names = [view.name for view in scene.views]
    parts = split_images(names, options.split)
    shared = shared_points(scene)
    random = np.random.default_rng(options.split.seed)
    pairs, rejects = select_pairs(
        scene, shared, [parts[name] for name in names], options.pairs, random, options.images.max_size
    )
    _check_chances(scene, pairs, rejects, options)
    settings = {
        "source": "colmap",
        "scene": scene.folder.resolve().name,
        "images_hash": _fingerprint(scene),
        **asdict(options),
    }
    with CorrespondenceWriter(output, settings, overwrite) as writer:
        was_complete = writer.complete
        if not was_complete:
            scratch = _open_scratch(writer.path)
            _load.cache_clear()  # of views in a scratch folder of the same name
            tasks = _view_tasks(scene, shared, parts, pairs, options, writer.path, scratch)
            left_out = scene.left_out | _prepare_views(tasks, writer, jobs, progress)
            usable = [pair for pair in pairs if all(n in writer.images for n in _pair_names(names, pair, options))]
            if not usable:
                writer.path.unlink()
                _drop_scratch(scratch)
                reason = next(iter(left_out.values()))
                raise StorageError(f"{scene.folder}: no two images that can be used overlap enough; {reason}")
            rejects["image left out"] = len(pairs) - len(usable)
            _link_views(names, usable, options, writer, scratch, jobs, progress)
            pycolmap = import_pycolmap("reading COLMAP models")
            software = versions("numpy", "h5py", pycolmap=pycolmap.__version__)
            writer.finish({"image_pairs_rejected": rejects, "left_out": left_out, "versions": software})
            _drop_scratch(scratch)
    return read_report(output, was_complete)


def _fingerprint(scene: Scene) -> str:
    """Of all that the correspondences will come from."""
    cameras = [(view.name, view.camera.pose.tolist(), view.camera.matrix.tolist()) for view in scene.views]
    return fingerprint(cameras, [path for view in scene.views for path in (view.image, view.depth)])


def _check_chances(scene: Scene, pairs: list[Pair], rejects: Counter[str], options: SceneOptions) -> None:
    """Raise where nothing can come of a scene, with a hint at what would help."""
    if options.depth.min_views > len(scene.views) - 1:
        views = f"a depth must be confirmed by {options.depth.min_views} other views"
        raise StorageError(f"{scene.folder}: {views}, but there are {len(scene.views)} in all; lower --min-views")
    if not pairs:
        causes = ", ".join(f"{cause}: {count}" for cause, count in rejects.items() if count)
        hint = "--validation 0 or --test" if rejects["across the split"] else "a lower --min-overlap or --min-shared"
        raise StorageError(f"{scene.folder}: no two images overlap enough to be paired ({causes}); try {hint}")


def _open_scratch(output: Path) -> Path:
    """A folder beside the output for what pairing needs of each image; a run that was stopped finds it again."""
    folder = output.with_name(output.name + ".scratch")
    folder.mkdir(exist_ok=True)
    return folder


def _drop_scratch(folder: Path) -> None:
    """Remove our own files, and the folder unless there is anything else in it."""
    for path in folder.glob("*.view.npz"):
        path.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _scratch_file(scratch: Path, view: int, altered: bool) -> Path:
    return scratch / f"{view}{'-altered' if altered else ''}.view.npz"


def _pair_names(names: list[str], pair: Pair, options: SceneOptions) -> tuple[str, str]:
    """What the two images of a pair are called in the file."""
    second = names[pair.second]
    return names[pair.first], altered_name(second, options.second) if options.second.alters else second


def _view_tasks(
    scene: Scene,
    shared: NDArray[np.int32],
    parts: dict[str, str],
    pairs: list[Pair],
    options: SceneOptions,
    output: Path,
    scratch: Path,
) -> list[ViewTask]:
    """All views that go into the file. Where second images are altered, only what is first or second in a pair."""
    wanted = [(number, False) for number in range(len(scene.views))]
    if options.second.alters:
        wanted = sorted({(pair.first, False) for pair in pairs} | {(pair.second, True) for pair in pairs})
    tasks = []
    for number, altered in wanted:
        view = scene.views[number]
        others = confirming_views(scene, shared, number, options.depth.max_neighbours)
        path = Path(os.path.relpath(view.image.resolve(), output.parent.resolve())).as_posix()
        target = _scratch_file(scratch, number, altered)
        tasks.append(ViewTask(view, parts[view.name], others, options, path, target, altered))
    return tasks


def confirming_views(scene: Scene, shared: NDArray[np.int32], view: int, most: int) -> list[tuple[Path, Camera]]:
    """Depth maps and cameras of the views that share most points with one."""
    ranking = np.argsort(-shared[view], kind="stable")[:most]
    return [(scene.views[other].depth, scene.views[other].camera) for other in ranking if shared[view, other] > 0]


def _prepare_views(tasks: list[ViewTask], writer: CorrespondenceWriter, jobs: int, progress: bool) -> dict[str, str]:
    """Prepare those views that are not yet, and store their images; those that cannot be used, with the reason."""
    left_out: dict[str, str] = {}
    todo = [task for task in tasks if task.name not in writer.images or not task.target.exists()]

    def records() -> Iterator[ImageRecord]:
        made = in_processes(prepare_view, todo, jobs)
        for task, result in with_progress(made, "image", len(tasks), len(tasks) - len(todo), progress):
            if isinstance(result, str):
                left_out[task.view.name] = result
            elif task.name not in writer.images:
                yield result

    in_batches(records(), 8, partial(writer.add, pairs=()))
    return left_out


@dataclass(frozen=True)
class _LinkTask:
    """All that a process needs to link two prepared views."""

    names: tuple[str, str]
    seed: tuple[int, int, int]
    first: Path
    second: Path
    options: SceneOptions


def _link_views(
    names: list[str],
    pairs: list[Pair],
    options: SceneOptions,
    writer: CorrespondenceWriter,
    scratch: Path,
    jobs: int,
    progress: bool,
) -> None:
    """Find the correspondences of all pairs that are not in the file yet."""
    tasks = []
    for pair in pairs:
        key = _pair_names(names, pair, options)
        if key not in writer.pairs:
            first = _scratch_file(scratch, pair.first, altered=False)
            second = _scratch_file(scratch, pair.second, altered=options.second.alters)
            tasks.append(_LinkTask(key, (options.split.seed, *pair.views), first, second, options))

    def records() -> Iterator[PairRecord]:
        made = in_processes(_link, tasks, jobs)
        for task, (found, rejects) in with_progress(made, "pair", len(pairs), len(pairs) - len(tasks), progress):
            yield PairRecord(*task.names, found, rejects)

    in_batches(records(), _BATCH, partial(writer.add, ()))


def _link(task: _LinkTask) -> tuple[Correspondences, Counter[str]]:
    random = np.random.default_rng(task.seed)
    return link_views(_load(task.first), _load(task.second), task.options, random)


@lru_cache(maxsize=2)
def _load(path: Path) -> PreparedView:
    return PreparedView.load(path)


def link_views(
    first: PreparedView, second: PreparedView, options: SceneOptions, random: np.random.Generator
) -> tuple[Correspondences, Counter[str]]:
    """Correspondences of two prepared views; only keypoints of the first whose plane is known are considered."""
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
