"""From a folder of photos to a sparse COLMAP model with our features, every stage resumable.

OUTPUT/features.h5, matches.h5, pairs.txt   what `extract` and `match-features` make
OUTPUT/database.db                          the COLMAP database, verified
OUTPUT/sparse/0, 1, ...                     the models, as COLMAP's mapper writes them
OUTPUT/report.json                          what came of it, and what the last two were made of
OUTPUT/repeats/SEED/sparse, report.json     the same from other seeds, if ``map_again`` was called
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logpolar.errors import LogpolarError
from logpolar.matching.pairs import Pair, PairingOptions, choose_pairs, read_pairs
from logpolar.settings import setting
from logpolar.sfm.database_files import connect, verified_pairs
from logpolar.sfm.export import CameraMode, ExportOptions, camera_mode_setting, export_database
from logpolar.sfm.mapper import RegisteredImage, largest_model, map_database, registered_images
from logpolar.sfm.pycolmap_compat import import_pycolmap
from logpolar.storage.atomic_io import check_place, write_whole
from logpolar.storage.documents import write_json

if TYPE_CHECKING:  # the command line's options are made of this module, and the rest is slow to import
    from logpolar.features.batch import OpenExtractor
    from logpolar.matching.nearest import MatchingOptions

REPEATS = "repeats"
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
    from logpolar.features.batch import extract_images
    from logpolar.images import find_images
    from logpolar.matching.files import match_pairs

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
    before = read_report(job.output)
    if not overwrite and before and before.made_of == made_of:
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
    from logpolar.features.files import FeatureFile

    if pairs:
        chosen = read_pairs(pairs, names)
    else:
        with FeatureFile(job.output / FEATURES) as file:
            chosen = choose_pairs(names, job.options, lambda name: file.read(name).descriptors)
    write_whole(job.output / PAIRS, "".join(f"{first} {second}\n" for first, second in chosen).encode())
    return chosen


def _digest(job: _Job, pairs: list[Pair]) -> str:
    """Of all that decides what the database and the models hold."""
    from logpolar.matching.files import MatchFile

    with MatchFile(job.output / MATCHES) as file:
        content = [sorted(pairs), file.settings, asdict(job.options)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def map_again(photos: str | Path, output: str | Path, seed: int, min_model_size: int = 3) -> StructureReport:
    """Models of the database that an earlier call left in ``output``, from another seed, with a report of their own.

    They are put into ``repeats/SEED`` there, and found again unless the database's matches have changed since.
    """
    photos, output = Path(photos), Path(output)
    place = output / REPEATS / str(seed)
    with connect(output / DATABASE) as tables:
        (images,) = tables.execute("SELECT COUNT(*) FROM images").fetchone()
        (pairs,) = tables.execute("SELECT COUNT(*) FROM two_view_geometries").fetchone()
        matches = tables.execute("SELECT pair_id, rows, data FROM two_view_geometries ORDER BY pair_id")
        digest = hashlib.sha256(repr((seed, min_model_size)).encode())
        for row in matches:
            digest.update(repr(row).encode())
    before = read_report(place)
    if before and before.made_of == digest.hexdigest():
        return before
    place.mkdir(parents=True, exist_ok=True)
    models = map_database(output / DATABASE, photos, place / MODELS, images, min_model_size, seed)
    report = report_models(models, images, {}, pairs, verified_pairs(output / DATABASE), digest.hexdigest())
    write_report(place, report)
    return report


def report_models(
    models: Mapping[int, Any], photos: int, left_out: dict[str, str], pairs: int, verified: int, made_of: str
) -> StructureReport:
    """The figures of the largest of the models that COLMAP made."""
    number, best = largest_model(models)
    return StructureReport(
        photos=photos,
        left_out=left_out,
        pairs=pairs,
        verified=verified,
        models=len(models),
        model=int(number),
        registered=list(registered_images(best)),
        points=best.num_points3D(),
        mean_track_length=best.compute_mean_track_length(),
        mean_reprojection_error=best.compute_mean_reprojection_error(),
        made_of=made_of,
    )


def write_report(output: Path, report: StructureReport) -> None:
    write_json(output / REPORT, asdict(report), indent=1)


def read_report(output: Path) -> StructureReport | None:
    """An earlier run's, if there is one that can be read, and its models."""
    try:
        found = json.loads((output / REPORT).read_bytes())
        registered = [
            RegisteredImage(each["name"], each["points"], tuple(each["centre"])) for each in found["registered"]
        ]
        report = StructureReport(**{**found, "registered": registered})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return report if (output / MODELS).is_dir() else None


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
    settings = job.options.min_model_size, job.options.seed
    place = job.output / MODELS
    models = map_database(job.output / DATABASE, job.photos, place, written.images, *settings, job.progress)
    report = report_models(models, photos, job.left_out, written.pairs, written.verified, made_of)
    write_report(job.output, report)
    return report
