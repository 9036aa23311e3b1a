"""From a folder of photos to a sparse COLMAP model with our features, every stage resumable.

OUTPUT/features.h5, matches.h5, pairs.txt   what `extract` and `match-features` make
OUTPUT/database.db                          the COLMAP database, verified
OUTPUT/sparse/0, 1, ...                     the models, as COLMAP's mapper writes them
OUTPUT/report.json                          what came of it, and what the last two were made of
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logpolar.colmap.exporting import CameraMode, ExportOptions, camera_mode_setting, export_database
from logpolar.colmap.library import first_line, import_pycolmap, quiet, set_known
from logpolar.errors import LogpolarError, StorageError
from logpolar.outputs import check_place, write_whole
from logpolar.pairing import Pair, PairingOptions, choose_pairs, read_pairs
from logpolar.settings import setting

if TYPE_CHECKING:  # the command line's options are made of this module, and the rest is slow to import
    from logpolar.folders import OpenExtractor
    from logpolar.matching import MatchingOptions

FEATURES, MATCHES, PAIRS, DATABASE, MODELS, REPORT = (
    "features.h5",
    "matches.h5",
    "pairs.txt",
    "database.db",
    "sparse",
    "report.json",
)


@dataclass(frozen=True)
class StructureOptions(PairingOptions):
    """How a folder of photos becomes a model."""

    camera_mode: CameraMode = camera_mode_setting()  # noqa: RUF009 - it makes a field
    min_model_size: int = setting(3, "Images of the smallest model that is kept.", 2)
    seed: int = setting(0, "Of all that COLMAP leaves to chance.", 0)


@dataclass(frozen=True)
class RegisteredImage:
    name: str
    points: int  # of the model, that it sees
    centre: tuple[float, float, float]  # of its camera


@dataclass(frozen=True)
class StructureReport:
    """What came of the photos; figures are those of the largest model."""

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
    made_of: str = ""  # a digest of what database and models were made of

    @property
    def unregistered(self) -> int:
        return self.photos - len(self.left_out) - len(self.registered)


@dataclass
class _Job:
    photos: Path
    output: Path
    options: StructureOptions
    progress: bool
    say: Callable[[str], None]
    left_out: dict[str, str] = field(default_factory=dict)


def reconstruct_structure(
    photos: str | Path,
    output: str | Path,
    open_extractor: OpenExtractor,
    options: StructureOptions | None = None,
    matching: MatchingOptions | None = None,
    pairs: str | Path | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    progress: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> StructureReport:
    """Features, pairs, matches, database and model of the photos in a folder, with COLMAP's incremental mapper.

    A second call goes on where the first one stopped, and takes in photos that are new. Files made with other settings
    are refused; ``overwrite`` makes all anew. ``pairs`` is a text file of pairs instead of those of ``options``.
    """
    from logpolar.folders import extract_images
    from logpolar.images import find_images
    from logpolar.match_files import match_pairs

    import_pycolmap("structure from motion")
    job = _Job(Path(photos), Path(output), options or StructureOptions(), progress, say)
    images = _find(job, find_images)
    say(f"features of {len(images)} photos")
    extracted = extract_images(images, job.output / FEATURES, open_extractor, jobs, overwrite, progress)
    job.left_out = extracted.failed
    if len(images) - len(job.left_out) < 2:
        reason = next(iter(job.left_out.values()))
        raise LogpolarError(f"{photos}: a model needs two photos or more that can be read; {reason}")
    chosen = _choose(job, sorted(set(images) - set(job.left_out)), pairs)
    say(f"matches of {len(chosen)} pairs")
    match_pairs(job.output / FEATURES, job.output / MATCHES, chosen, matching, jobs, overwrite, progress)
    made_of = _digest(job, chosen)
    before = _read_report(job.output / REPORT)
    if not overwrite and before and before.made_of == made_of and (job.output / MODELS).is_dir():
        say("database and model are there already")
        return before
    return _map(job, len(images), chosen, made_of)


def _find(job: _Job, find_images: Callable[[list[Path]], dict[str, Path]]) -> dict[str, Path]:
    if not job.photos.is_dir():
        raise LogpolarError(f"{job.photos}: no such folder of photos")
    if job.output.resolve().is_relative_to(job.photos.resolve()):
        raise LogpolarError(f"{job.output}: the output cannot lie inside the photos' folder")
    images = find_images([job.photos])
    if len(images) < 2:
        raise LogpolarError(f"{job.photos}: a model needs two photos or more")
    if not job.output.is_dir():
        check_place(job.output)
        job.output.mkdir()
    return images


def _choose(job: _Job, names: list[str], pairs: str | Path | None) -> list[Pair]:
    from logpolar.storage import FeatureFile

    if pairs:
        chosen = read_pairs(pairs, names)
    else:
        with FeatureFile(job.output / FEATURES) as file:
            chosen = choose_pairs(names, job.options, lambda name: file.read(name).descriptors)
    write_whole(job.output / PAIRS, "".join(f"{first} {second}\n" for first, second in chosen).encode())
    return chosen


def _digest(job: _Job, pairs: list[Pair]) -> str:
    """Of all that decides what the database and the models hold."""
    from logpolar.match_files import MatchFile

    with MatchFile(job.output / MATCHES) as file:
        content = [sorted(pairs), file.settings, asdict(job.options)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_report(path: Path) -> StructureReport | None:
    """An earlier run's, if there is one that can be read."""
    try:
        found = json.loads(path.read_bytes())
        registered = [
            RegisteredImage(each["name"], each["points"], tuple(each["centre"])) for each in found["registered"]
        ]
        return StructureReport(**{**found, "registered": registered})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _map(job: _Job, photos: int, pairs: list[Pair], made_of: str) -> StructureReport:
    (job.output / REPORT).unlink(missing_ok=True)
    options = ExportOptions(job.options.camera_mode, seed=job.options.seed)
    job.say("database and verification")
    written = export_database(
        job.output / FEATURES,
        job.output / MATCHES,
        job.output / DATABASE,
        job.photos,
        options=options,
        overwrite=True,
        progress=job.progress,
        pairs=pairs,
    )
    job.say(f"mapping: {written.verified} of {written.pairs} pairs passed verification")
    models = _run_mapper(job, written.images)
    number, best = max(models.items(), key=lambda item: (item[1].num_reg_images(), item[1].num_points3D()))
    report = StructureReport(
        photos=photos,
        left_out=job.left_out,
        pairs=written.pairs,
        verified=written.verified,
        models=len(models),
        model=int(number),
        registered=list(_registered(best)),
        points=best.num_points3D(),
        mean_track_length=best.compute_mean_track_length(),
        mean_reprojection_error=best.compute_mean_reprojection_error(),
        made_of=made_of,
    )
    write_whole(job.output / REPORT, (json.dumps(asdict(report), indent=1) + "\n").encode())
    return report


def _run_mapper(job: _Job, images: int) -> dict[int, Any]:
    """Models by number; they take the place of earlier ones when all are there."""
    from tqdm import tqdm

    pycolmap = import_pycolmap("structure from motion")
    half, place = job.output / ".sparse.half", job.output / MODELS
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir()
    options = pycolmap.IncrementalPipelineOptions()
    options.min_model_size = job.options.min_model_size
    set_known(options, random_seed=job.options.seed)
    bar = tqdm(total=images, desc="mapping", unit="image", leave=False, disable=None if job.progress else True)
    try:
        with bar, _colmap_errors(job.output / DATABASE), quiet(pycolmap):
            models = pycolmap.incremental_mapping(
                str(job.output / DATABASE),
                str(job.photos),
                str(half),
                options,
                next_image_callback=lambda: bar.update() and None,
            )
        if not models:
            reason = "no two of them show enough of the same things from different places"
            raise LogpolarError(f"no model came of these {images} photos: {reason}")
        shutil.rmtree(place, ignore_errors=True)
        half.rename(place)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return dict(models)


@contextlib.contextmanager
def _colmap_errors(database: Path) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, ValueError, IndexError) as error:
        raise StorageError(f"{database}: COLMAP could not map it ({first_line(error)})") from error


def _registered(model: Any) -> Iterator[RegisteredImage]:
    for image in sorted((model.images[number] for number in model.reg_image_ids()), key=lambda image: str(image.name)):
        x, y, z = (float(value) for value in image.projection_center())
        yield RegisteredImage(image.name, sum(point.has_point3D() for point in image.points2D), (x, y, z))
