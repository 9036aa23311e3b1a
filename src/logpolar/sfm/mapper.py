"""COLMAP's incremental mapper: its options, its errors, the choice of the largest model and the report on it."""

from __future__ import annotations

import copy
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from logpolar.errors import LogpolarError, StorageError
from logpolar.sfm.binary_models import check_complete
from logpolar.sfm.database_files import connect
from logpolar.sfm.pycolmap_compat import colmap_errors, import_pycolmap, quiet, set_known
from logpolar.storage.documents import write_json
from logpolar.storage.inputs import parse_json, read_bytes

if TYPE_CHECKING:
    from logpolar.sfm.known_poses import KnownPoses

DATABASE, MODELS, REPORT = "database.db", "sparse", "report.json"
"""What a folder of models holds. The report also marks the folder as ours."""
PAGE, POINTS, SUMMARY = "report.html", "points.ply", "summary.png"
"""What is written beside it to look at."""


MapperName = Literal["incremental", "global"]
MAPPERS: tuple[MapperName, ...] = get_args(MapperName)


_BA_ITERATIONS = {"ba_local_max_num_iterations": 25, "ba_global_max_num_iterations": 50}
"""COLMAP's usual limits; its options hold -1 for them since 4.0."""

FEW_PHOTOS = 30
"""Up to so many photos one thread maps: several round differently in every run, and of few photos that decides
which ones are in the model. They are also mapped from two focal lengths, see ``attempts``."""

_LOSS_SCALE = 1.0
"""Of the last bundle adjustment, in pixels: from there on errors count less than their squares (SOFT_L1)."""

FEWEST = 0.25
"""Fraction of the photos below which a model counts as failed."""


class NoModelError(LogpolarError):
    """Reconstruction failed for lack of overlap; the files are fine."""


@dataclass(frozen=True)
class MapperOptions:
    """Options of ``pycolmap.incremental_mapping``; None leaves COLMAP's default."""

    seed: int = 0
    min_model_size: int | None = None
    threads: int = 0  # 0: all cores, or one for at most FEW_PHOTOS photos
    fixed_intrinsics: bool = False
    mapper: MapperName = "incremental"
    ba_iterations: float = 1.0  # of bundle adjustment, relative to COLMAP's default
    bare: bool = False  # no colours, and no second way to register what failed the first


@dataclass(frozen=True)
class RegisteredImage:
    name: str
    points: int  # 3D points that it observes
    centre: tuple[float, float, float]  # of its camera


@dataclass(frozen=True)
class SfmReport:
    """Result of a reconstruction; figures are those of the largest model."""

    photos: int
    left_out: dict[str, str]  # name -> reason, of photos that cannot be read
    pairs: int
    verified: int
    models: int
    model: int  # number of the largest
    registered: list[RegisteredImage]
    points: int
    mean_track_length: float
    mean_reprojection_error: float
    made_of: str = ""  # digest of the inputs and settings of database and models
    seconds: dict[str, float] = field(default_factory=dict)  # of each stage, in the run that made the model

    @property
    def failed(self) -> bool:
        """Whether most photos are missing: 2 of 26 are no reconstruction, whatever COLMAP says."""
        return len(self.registered) < FEWEST * self.photos

    @property
    def unregistered(self) -> int:
        return self.photos - len(self.left_out) - len(self.registered)


def run_mapper(
    database: str | Path,
    photos: str | Path,
    output: str | Path,
    options: MapperOptions,
    on_image: Callable[[], object] | None = None,
) -> dict[int, Any]:
    """Models by number, pycolmap's, also written to ``output``; none is a ``NoModelError``."""
    from logpolar.distributed import interruptibly

    pycolmap = import_pycolmap("structure from motion")
    paths = str(database), str(photos), str(output)
    if options.mapper == "global":
        settings = _global_options(pycolmap, options)
        return _some(interruptibly(lambda: pycolmap.global_mapping(*paths, settings)))
    settings = incremental_options(options)
    abandoned = threading.Event()

    def next_image() -> None:
        if abandoned.is_set():
            raise KeyboardInterrupt  # the only way to stop COLMAP
        if on_image:
            on_image()

    try:
        models = interruptibly(lambda: pycolmap.incremental_mapping(*paths, settings, next_image_callback=next_image))
    except KeyboardInterrupt:
        abandoned.set()
        raise
    return _some(models)


def polish(models: dict[int, Any], output: Path, options: MapperOptions) -> None:
    """A last bundle adjustment with a robust loss, and the models written again; cameras that ran away are put back.

    COLMAP's own has squares only, so that the few incorrect matches within its 4 pixels pull at the cameras. A model
    that this spoils stays as it was: a wrong one may collapse to a point.
    """
    from logpolar.sfm.merging import fits_as_well
    from logpolar.sfm.runaways import put_back

    pycolmap = import_pycolmap("structure from motion")
    settings = pycolmap.BundleAdjustmentOptions()
    if not hasattr(settings, "ceres"):  # before 4
        return
    settings.print_summary = False
    settings.ceres.loss_function_type = pycolmap.LossFunctionType.SOFT_L1
    settings.ceres.loss_function_scale = _LOSS_SCALE
    settings.ceres.solver_options.num_threads = options.threads or -1
    if options.fixed_intrinsics:
        settings.refine_focal_length = settings.refine_principal_point = settings.refine_extra_params = False
    for number, model in models.items():
        if model.num_reg_images() > 2 and model.num_points3D():
            if not options.fixed_intrinsics:
                models[number] = model = put_back(model, lambda model, held: _adjust(model, settings, held))
            adjusted = copy.deepcopy(model)
            _adjust(adjusted, settings, set())
            models[number] = model = adjusted if fits_as_well(adjusted, model) else model
            model.write(str(output / str(number)))


def _adjust(model: Any, settings: Any, held: set[int]) -> None:
    """Bundle adjustment of a whole model, with the intrinsics of some cameras held."""
    pycolmap = import_pycolmap("structure from motion")
    # pycolmap.bundle_adjustment would do, but it switches COLMAP's log on.
    chosen = pycolmap.BundleAdjustmentConfig()
    for image in model.reg_image_ids():
        chosen.add_image(image)
    for camera in held:
        chosen.set_constant_cam_intrinsics(camera)
    chosen.fix_gauge(pycolmap.BundleAdjustmentGauge.TWO_CAMS_FROM_WORLD)
    pycolmap.create_default_bundle_adjuster(settings, chosen, model).solve()
    model.update_point_3d_errors()


def _some(models: Mapping[int, Any]) -> dict[int, Any]:
    if not models:
        raise NoModelError("reconstruction failed: no two photos overlap enough with enough baseline")
    return dict(models)


def incremental_options(options: MapperOptions) -> Any:
    """pycolmap's options of the incremental mapper, which triangulation shares."""
    pycolmap = import_pycolmap("structure from motion")
    settings = pycolmap.IncrementalPipelineOptions()
    settings.num_threads = options.threads or -1
    set_known(settings, random_seed=options.seed)  # new in 3.13
    if options.min_model_size is not None:
        settings.min_model_size = options.min_model_size
    if options.ba_iterations != 1:
        for name, usual in _BA_ITERATIONS.items():
            setattr(settings, name, max(round(usual * options.ba_iterations), 1))
    if options.fixed_intrinsics:
        settings.ba_refine_focal_length = settings.ba_refine_principal_point = settings.ba_refine_extra_params = False
        settings.mapper.abs_pose_refine_focal_length = settings.mapper.abs_pose_refine_extra_params = False
    if options.bare:
        settings.extract_colors = False
        # New in COLMAP 4; on a set of 10 images it took 80 s and registered no further image.
        set_known(settings, structure_less_registration_fallback=False)
    return settings


def _global_options(pycolmap: Any, options: MapperOptions) -> Any:
    if not hasattr(pycolmap, "global_mapping"):
        raise LogpolarError(f"pycolmap {pycolmap.__version__} has no global mapper; install pycolmap 4 or newer")
    settings = pycolmap.GlobalPipelineOptions()
    settings.num_threads, settings.random_seed = options.threads or -1, options.seed
    if options.min_model_size is not None:
        settings.min_model_size = options.min_model_size
    adjustment = settings.mapper.bundle_adjustment
    if options.fixed_intrinsics:
        adjustment.refine_focal_length = adjustment.refine_principal_point = adjustment.refine_extra_params = False
    return settings


def _large_enough(models: dict[int, Any], options: MapperOptions, output: Path) -> dict[int, Any]:
    """COLMAP keeps a small model if it is the first; here the limit holds for every one."""
    least = options.min_model_size or 2
    kept = {number: model for number, model in models.items() if model.num_reg_images() >= least}
    if not kept:
        most = max(model.num_reg_images() for model in models.values())
        raise NoModelError(f"reconstruction failed: the largest model has {most} photos, fewer than {least}")
    for number in models.keys() - kept.keys():
        shutil.rmtree(output / str(number), ignore_errors=True)
    return kept


def largest_model(models: Mapping[int, Any]) -> tuple[int, Any]:
    """Number and model with the most images; the number of points breaks ties."""
    return max(models.items(), key=lambda item: (item[1].num_reg_images(), item[1].num_points3D()))


def map_database(
    database: Path,
    photos: Path,
    output: Path,
    options: MapperOptions,
    made_of: str,
    left_out: Mapping[str, str] | None = None,
    progress: bool = False,
    seconds: Mapping[str, float] | None = None,
    poses: KnownPoses | None = None,
) -> SfmReport:
    """Map a verified database into ``output/sparse`` and ``output/report.json``.

    Models of an earlier run are replaced only once the new ones are complete. ``left_out`` are photos that could not be
    read, and so are not in the database. ``seconds``: what the stages before took. With known ``poses`` points are
    triangulated, and nothing is mapped.
    """
    from logpolar.distributed import show_progress
    from logpolar.sfm.attempts import map_best
    from logpolar.sfm.known_poses import triangulate
    from logpolar.sfm.merging import merge_models

    began = time.perf_counter()
    with connect(database) as tables:
        (images,) = tables.execute("SELECT COUNT(*) FROM images").fetchone()
        pairs, verified = tables.execute("SELECT COUNT(*), COUNT(NULLIF(rows, 0)) FROM two_view_geometries").fetchone()
    options = replace(options, threads=options.threads or int(images <= FEW_PHOTOS))
    place, half = output / MODELS, output / f".{MODELS}.half"
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    bar = show_progress(images, "mapping", "image", progress)
    try:
        with bar, quiet(), colmap_errors(f"{database}: COLMAP could not map it"):
            if poses:
                models = triangulate(database, photos, half, poses, incremental_options(options))
            else:
                models = map_best(database, photos, half, options, bar.update)
                models = merge_models(database, photos, half, models, incremental_options(options))
                models = _large_enough(models, options, half)
                polish(models, half, options)
            for model in half.iterdir():
                check_complete(model)  # COLMAP does not notice a full disk
        shutil.rmtree(place, ignore_errors=True)
        half.rename(place)
    except NoModelError as error:
        raise NoModelError(f"{photos}: {error} ({images} photos, {verified} of {pairs} pairs verified)") from None
    finally:
        shutil.rmtree(half, ignore_errors=True)
    number, best = largest_model(models)
    report = SfmReport(
        photos=images + len(left_out or {}),
        left_out=dict(left_out or {}),
        pairs=pairs,
        verified=verified,
        models=len(models),
        model=int(number),
        registered=registered_images(best),
        points=best.num_points3D(),
        mean_track_length=best.compute_mean_track_length(),
        mean_reprojection_error=best.compute_mean_reprojection_error(),
        made_of=made_of,
        seconds={**(seconds or {}), "mapping": round(time.perf_counter() - began, 3)},
    )
    return write_report(output, report)


def write_report(output: Path, report: SfmReport) -> SfmReport:
    """Write the report of a finished run, and return it."""
    write_json(output / REPORT, asdict(report), indent=1)
    return report


class Stopwatch:
    """Seconds of the stages of a run."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """What has passed since the last call was spent in this stage."""
        now = time.perf_counter()
        self.seconds[stage] = round(now - self._last, 3)
        self._last = now


def registered_images(model: Any) -> list[RegisteredImage]:
    """Sorted by name."""
    found = []
    for image in sorted((model.images[number] for number in model.reg_image_ids()), key=lambda image: str(image.name)):
        x, y, z = (float(value) for value in image.projection_center())
        found.append(RegisteredImage(image.name, sum(point.has_point3D() for point in image.points2D), (x, y, z)))
    return found


def read_report(output: Path) -> SfmReport | None:
    """Report of an earlier run, if it is readable and its models exist."""
    try:
        found = parse_json(read_bytes(output / REPORT))
        registered = [
            RegisteredImage(each["name"], each["points"], tuple(each["centre"])) for each in found["registered"]
        ]
        kept = {each.name: found[each.name] for each in fields(SfmReport) if each.name in found}
        report = SfmReport(**{**kept, "registered": registered})
    except (StorageError, ValueError, TypeError, KeyError):
        return None
    return report if (output / MODELS).is_dir() else None


def claim_folder(output: Path, *made: str, reset: bool = False) -> None:
    """Mark a folder as ours by a report; refuse one with a COLMAP project of someone else, see ``check_claim``.

    With ``reset`` an earlier report, which no longer holds, is replaced.
    """
    if not check_claim(output, *made) or reset:
        write_json(output / REPORT, {"made_of": ""})


def check_claim(output: Path, *made: str) -> bool:
    """Whether a folder is ours, as its report says; otherwise none of ``made``, what will be written, may exist."""
    try:
        ours = "made_of" in parse_json(read_bytes(output / REPORT))
    except (StorageError, ValueError, TypeError):
        ours = False
    foreign = [name for name in (DATABASE, MODELS, REPORT, *made) if not ours and (output / name).exists()]
    if foreign:
        raise StorageError(f"{output}: {foreign[0]} was not made by this command; choose another folder")
    return ours
