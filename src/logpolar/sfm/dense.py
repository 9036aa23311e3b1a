"""Photos to a COLMAP dense workspace: COLMAP's features and matches, mapping, undistortion, depth maps.

Heavy modules are imported on demand.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO, get_args

from logpolar.errors import ImageError, LogpolarError, first_line
from logpolar.settings import check_settings, setting
from logpolar.sfm.database_files import remove_database
from logpolar.sfm.dense_record import (
    DENSE,
    LINKS,
    MAPPING,
    UNFINISHED,
    Record,
    link_photos,
    open_record,
    open_workspace,
    remove,
    stderr_into,
)
from logpolar.sfm.mapper import DATABASE, MapperOptions, NoModelError, largest_model, registered_images, run_mapper
from logpolar.sfm.pycolmap_compat import import_pycolmap_4, verification_options
from logpolar.storage.atomic_io import check_space

Matcher = Literal["exhaustive", "sequential"]
MATCHERS: tuple[Matcher, ...] = get_args(Matcher)

_BLOCK = 20
"""Pairs among this many photos are stored together: what a killed run loses, and what Ctrl-C waits for."""

_BYTES_PER_PHOTO = 2**21
"""What COLMAP's keypoints, descriptors and matches of a photo take in its database, about."""


class ReconstructionError(LogpolarError):
    """Photos that cannot be reconstructed, or a failed step of COLMAP."""


@dataclass(frozen=True)
class DenseOptions:
    """How photos become a dense workspace."""

    max_image_size: int = setting(1600, "Photos are downscaled to this longer side, in pixels, to detect features.", 64)
    dense_image_size: int = setting(1024, "Longer side of undistorted images and depth maps, in pixels.", 64)
    matcher: Matcher = setting(  # noqa: RUF009 - it makes a field
        "exhaustive",
        "All pairs, or, for video frames, each photo with those 1, 2, 4, 8, ... places later by name.",
        choices=MATCHERS,
    )
    single_camera: bool = setting(False, "All photos share one camera and zoom; otherwise EXIF decides.")
    seed: int = setting(0, "COLMAP's random seed; runs are reproducible with one thread only.", 0)
    threads: int = setting(0, "0 uses all cores; may differ when a run is resumed.", 0)

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class DenseReport:
    """Content of a dense workspace."""

    photos: int
    left_out: dict[str, str]  # name -> reason, of photos that cannot be read
    registered: int
    unregistered: list[str]  # readable, but not in the model
    models: int  # disconnected ones; the workspace has the largest
    points: int
    depth_maps: int
    dense: bool  # whether all possible depth maps exist


def reconstruct_dense(
    photos: Iterable[str | Path],
    workspace: str | Path,
    options: DenseOptions | None = None,
    overwrite: bool = False,
    progress: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> DenseReport:
    """Reconstruct photos (files, folders, globs) into a COLMAP dense workspace, with depth maps where CUDA exists.

    A second call resumes after the last finished step. Photos or settings that differ from those of the first call are
    refused; ``overwrite`` starts over. ``say`` receives a line per step.
    """
    options, workspace, sources = options or DenseOptions(), Path(workspace), [Path(each) for each in photos]
    images = _find_photos(sources, workspace)
    pycolmap = import_pycolmap_4("reconstruction")  # older versions name linked photos by the targets of the links
    settings = {key: value for key, value in asdict(options).items() if key != "threads"}
    sizes = {name: path.stat().st_size for name, path in images.items()}
    linked = len(sources) > 1 or not sources[0].is_dir()
    with open_workspace(workspace) as log:
        products = {name: product for name, (_, product) in _STEPS.items()}
        record = open_record(workspace, Record(settings, sizes, linked), products, overwrite)
        folder = workspace / LINKS if linked else sources[0]
        if linked:
            link_photos(images, folder)
        job = _Job(workspace, folder, images, options, record, log, progress, pycolmap)
        _run_steps(job, say)
        return _report(job)


def has_cuda() -> bool:
    """Whether pycolmap was built with CUDA (its own ``has_cuda``) and finds a device."""
    import pycolmap

    return bool(pycolmap.has_cuda and getattr(pycolmap, "get_num_cuda_devices", lambda: 1)())


def _find_photos(sources: list[Path], workspace: Path) -> dict[str, Path]:
    """Two or more photos by name; neither photos nor workspace may lie inside the other."""
    from logpolar.images import find_images

    place = workspace.resolve()
    for folder in sources:
        if folder.is_dir() and place.is_relative_to(folder.resolve()):
            raise ReconstructionError(f"{workspace}: the workspace cannot lie inside the photos' folder {folder}")
    images = find_images(sources)
    for path in images.values():
        if path.parent.resolve().is_relative_to(place):
            raise ReconstructionError(f"{path}: the photos cannot lie inside the workspace {workspace}")
    if len(images) < 2:
        raise ReconstructionError(f"a reconstruction needs at least two photos, found {', '.join(images) or 'none'}")
    return images


def _run_steps(job: _Job, say: Callable[[str], None]) -> None:
    finished = job.record.finished
    if finished:
        say(f"continuing after step {len(finished)} of {len(_STEPS)}: {list(finished)[-1]}")
    for number, (name, (step, _)) in enumerate(_STEPS.items(), 1):
        if name not in finished and (step is not _make_depth or has_cuda()):
            say(f"step {number} of {len(_STEPS)}: {name}")
            finished[name] = step(job)
            job.record.save(job.workspace)


def _report(job: _Job) -> DenseReport:
    finished, maps = job.record.finished, _count(job.depth_maps, "*.geometric.bin")
    registered = set(finished["mapping"]["registered"])
    return DenseReport(
        photos=len(job.images),
        left_out=finished["photos"]["left_out"],
        registered=len(registered),
        unregistered=[name for name in job.names if name not in registered],
        models=finished["mapping"]["models"],
        points=finished["mapping"]["points"],
        depth_maps=maps,
        # Without CUDA here, COLMAP may have made them on another machine.
        dense="depth maps" in finished or maps == len(registered),
    )


@dataclass
class _Job:
    workspace: Path
    folder: Path  # of the photos, for COLMAP
    images: dict[str, Path]
    options: DenseOptions
    record: Record
    log: BinaryIO
    progress: bool
    pycolmap: Any

    @property
    def device(self) -> Any:
        return self.pycolmap.Device.cuda if has_cuda() else self.pycolmap.Device.cpu

    @property
    def names(self) -> list[str]:
        """Readable photos."""
        return [name for name in self.images if name not in self.record.finished["photos"]["left_out"]]

    @property
    def database(self) -> str:
        return str(self.workspace / DATABASE)

    @property
    def depth_maps(self) -> Path:
        return self.workspace / "stereo" / "depth_maps"

    def query(self, table: str, column: str = "COUNT(*)") -> list[Any]:
        """A column of what COLMAP has stored so far, or [the number of rows]; empty if there is no such table."""
        address = f"{Path(self.database).resolve().as_uri()}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(address, uri=True)) as database:
                return [row[0] for row in database.execute(f"SELECT {column} FROM {table}")]
        except sqlite3.Error:
            return []

    def log_since(self, start: int) -> str:
        return Path(self.log.name).read_bytes()[start:].decode(errors="replace")

    @contextlib.contextmanager
    def colmap(self, what: str, total: int | None = None, count: Callable[[], int] | None = None) -> Iterator[Any]:
        """Send COLMAP's output to the log, turn its errors into ours; the progress bar polls ``count``."""
        start = self.log.seek(0, os.SEEK_END)
        try:
            with stderr_into(self.log) as terminal, _bar(terminal, what, total, count, self.progress) as bar:
                yield bar
        except (RuntimeError, ValueError, IndexError, MemoryError) as error:
            words = re.sub(r"^\[.*?\] ", "", first_line(error)).strip()
            logged = re.findall(r"^E\d.*?\] (.*)", self.log_since(start), re.MULTILINE)
            reasons = "; ".join(dict.fromkeys([words, *logged[-1:]]))
            raise ReconstructionError(f"COLMAP failed to create the {what}: {reasons} ({self.log.name})") from error


@contextlib.contextmanager
def _bar(
    terminal: TextIO, what: str, total: int | None, count: Callable[[], int] | None, progress: bool
) -> Iterator[Any]:
    """A bar that polls COLMAP's progress every second, since it has no callback."""
    from tqdm import tqdm

    done = threading.Event()
    with tqdm(total=total, desc=what, file=terminal, leave=False, disable=None if progress else True) as bar:

        def watch() -> None:
            while count and not bar.disable and not done.wait(1):
                bar.update(count() - bar.n)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield bar
        finally:
            done.set()
            watcher.join()


def _take_photos(job: _Job) -> dict[str, Any]:
    """Add all photos and their cameras at once: resumed feature extraction would make further cameras."""
    remove_database(Path(job.database))
    check_space(Path(job.database), _BYTES_PER_PHOTO * len(job.images))
    left_out, sizes = _check_photos(job.images, job.progress)
    if job.options.single_camera and len(set(sizes.values())) > 1:
        examples = {size: name for name, size in sizes.items()}
        some = ", ".join(f"{name} {size}" for size, name in list(examples.items())[:2])
        raise ReconstructionError(f"photos of a single camera must have the same size in pixels: {some}")
    job.pycolmap.Database.open(job.database).close()
    mode = job.pycolmap.CameraMode.SINGLE if job.options.single_camera else job.pycolmap.CameraMode.AUTO
    start = job.log.seek(0, os.SEEK_END)
    if sizes:  # an empty list of names means all files to COLMAP
        with job.colmap("list of photos"):
            job.pycolmap.import_images(job.database, str(job.folder), mode, list(sizes))
    entered = job.query("images", "name")
    for name in set(sizes).difference(entered):  # OpenCV reads formats that COLMAP does not
        words = re.search(rf"\] {re.escape(name)} (.*)", job.log_since(start))
        left_out[name] = f"{job.images[name]}: COLMAP cannot read it ({words[1] if words else 'no reason given'})"
    if len(entered) < 2:
        reason = next(iter(left_out.values()))
        raise ReconstructionError(f"only {len(entered)} of {len(job.images)} photos can be read; {reason}")
    return {"left_out": dict(sorted(left_out.items()))}


def _check_photos(images: dict[str, Path], progress: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Reasons to leave photos out, and sizes of the others; COLMAP would accept a truncated JPEG."""
    from tqdm import tqdm

    from logpolar.images import read_image, unnamed_images

    left_out, sizes = unnamed_images(images), {}
    for name, path in tqdm(images.items(), "photos", leave=False, disable=None if progress else True):
        try:
            height, width = read_image(path).shape[:2]
        except ImageError as error:
            left_out[name] = str(error)
        if name not in left_out:
            sizes[name] = f"{width} x {height}"
    return left_out, sizes


def _find_features(job: _Job) -> dict[str, Any]:
    options = job.pycolmap.FeatureExtractionOptions()
    options.max_image_size, options.num_threads = job.options.max_image_size, job.options.threads or -1
    with job.colmap("features", len(job.names), lambda: sum(job.query("descriptors"))):
        photos = job.database, str(job.folder), job.names
        job.pycolmap.extract_features(*photos, extraction_options=options, device=job.device)
    return {}


def _match(job: _Job) -> dict[str, Any]:
    matching, verification = job.pycolmap.FeatureMatchingOptions(), verification_options(job.options.seed)
    matching.num_threads, device = job.options.threads or -1, job.device
    exhaustive, count = job.options.matcher == "exhaustive", len(job.names)
    total = count * (count - 1) // 2 if exhaustive else None
    with job.colmap("matches", total, lambda: sum(job.query("two_view_geometries"))):
        if exhaustive:
            blocks = job.pycolmap.ExhaustivePairingOptions(block_size=_BLOCK)
            job.pycolmap.match_exhaustive(job.database, matching, blocks, verification, device)
        else:
            job.pycolmap.match_sequential(job.database, matching, verification_options=verification, device=device)
    return {}


def _map(job: _Job) -> dict[str, Any]:
    place = job.workspace / MAPPING
    remove(place)
    place.mkdir()
    options = MapperOptions(job.options.seed, threads=job.options.threads)
    try:
        with job.colmap("model", len(job.names)) as bar:
            models = run_mapper(job.database, job.folder, place, options, bar.update)
    except NoModelError as error:
        unread = len(job.images) - len(job.names)
        more = f"; {unread} more cannot be read" if unread else ""
        raise ReconstructionError(f"{error} ({len(job.names)} photos{more}; {job.log.name})") from None
    number, model = largest_model(models)
    registered = [image.name for image in registered_images(model)]
    return {"model": number, "models": len(models), "registered": registered, "points": model.num_points3D()}


def _undistort(job: _Job) -> dict[str, Any]:
    """Undistort into a temporary folder first, so that a workspace that looks complete is complete."""
    mapping, place = job.record.finished["mapping"], job.workspace / UNFINISHED
    remove(place)
    options = job.pycolmap.UndistortCameraOptions()
    options.max_image_size = job.options.dense_image_size
    threads = job.options.threads or -1
    model = str(job.workspace / MAPPING / str(mapping["model"]))
    with job.colmap("undistorted images", len(mapping["registered"]), lambda: _count(place / "images", "*")):
        job.pycolmap.undistort_images(
            str(place), model, str(job.folder), undistort_options=options, num_threads=threads
        )
    for name in mapping["registered"]:
        if not (place / "images" / name).is_file():
            raise ReconstructionError(f"{name}: COLMAP wrote no undistorted image of it ({job.log.name})")
    for name in DENSE:
        remove(job.workspace / name)
        if (place / name).exists():
            (place / name).rename(job.workspace / name)
    remove(place)
    return {}


def _make_depth(job: _Job) -> dict[str, Any]:
    from logpolar.sfm.depth_maps import is_complete

    for path in (job.workspace / "stereo").rglob("*.bin"):
        if not is_complete(path):  # COLMAP would take the partial file of a killed run for finished
            path.unlink()
    options = job.pycolmap.PatchMatchOptions()
    options.geom_consistency = True
    total = 2 * len(job.record.finished["mapping"]["registered"])  # a photometric map first, then the geometric one
    with job.colmap("depth maps", total, lambda: _count(job.depth_maps, "*.bin")):
        job.pycolmap.patch_match_stereo(str(job.workspace), options=options)
    if not _count(job.depth_maps, "*.geometric.bin"):
        raise ReconstructionError(f"{job.workspace}: COLMAP made no depth maps ({job.log.name})")
    return {}


def _count(folder: Path, pattern: str) -> int:
    return sum(path.is_file() for path in folder.rglob(pattern))


# The steps, and the product that must still exist for a finished step to count.
_STEPS: dict[str, tuple[Callable[[_Job], dict[str, Any]], str]] = {
    "photos": (_take_photos, DATABASE),
    "features": (_find_features, DATABASE),
    "matches": (_match, DATABASE),
    "mapping": (_map, MAPPING),
    "undistortion": (_undistort, "sparse"),
    "depth maps": (_make_depth, "stereo/depth_maps"),
}
