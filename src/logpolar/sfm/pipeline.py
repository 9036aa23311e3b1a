"""From a folder of photos to a sparse COLMAP model with our features; every stage is resumable.

OUTPUT/features.h5, matches.h5, pairs.txt   as written by `extract` and `match-features`
OUTPUT/looks.h5, merged.h5                  of second looks at the pairs, see ``second_looks``
OUTPUT/database.db                          the verified COLMAP database
OUTPUT/sparse/0, 1, ...                     the models, as COLMAP's mapper writes them
OUTPUT/report.json                          figures of the largest model, and a digest of all inputs and settings
OUTPUT/report.html, points.ply, summary.png written by `logpolar sfm` to look at, see reports.py
OUTPUT/repeats/SEED/sparse, report.json     the same for other seeds, see ``map_again``
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from logpolar.errors import LogpolarError, some_of
from logpolar.geometry.options import DEFAULT_REGION_SIZE
from logpolar.matching.pairs import PAIRINGS, Pair, PairingOptions, choose_pairs, read_pairs, spatial_pairs
from logpolar.settings import setting
from logpolar.sfm.cameras import CameraOptions, misfits, read_calibration
from logpolar.sfm.database_files import digest_rows
from logpolar.sfm.export import ExportOptions, export_database
from logpolar.sfm.mapper import (
    DATABASE,
    MAPPERS,
    PAGE,
    POINTS,
    REPORT,
    SUMMARY,
    MapperName,
    MapperOptions,
    NoModelError,
    SfmReport,
    Stopwatch,
    claim_folder,
    map_database,
    read_report,
    write_report,
)
from logpolar.sfm.pycolmap_compat import import_pycolmap
from logpolar.storage.atomic_io import Lock, check_place, write_whole

if TYPE_CHECKING:  # the command line builds its options from this module; the rest is slow to import
    from logpolar.features.batch import OpenExtractor
    from logpolar.matching.options import MatchingOptions
    from logpolar.sfm.georegistration import Position
    from logpolar.sfm.known_poses import KnownPoses

FEATURES, MATCHES, PAIRS, REPEATS = "features.h5", "matches.h5", "pairs.txt", "repeats"
LOOKS, MERGED = "looks.h5", "merged.h5"


LookAt = Literal["missing", "all"]
SfmPairing = Literal["exhaustive", "sequential", "retrieval", "spatial"]
assert get_args(SfmPairing)[:-1] == PAIRINGS


@dataclass(frozen=True)
class SfmOptions(PairingOptions):
    """How a folder of photos becomes a model."""

    pairing: SfmPairing = setting(  # type: ignore[assignment] # noqa: RUF009 - one choice more; it makes a field
        "exhaustive",
        "Every image with every other, with the next ones by name, with the most similar, or the nearest by GPS.",
        choices=get_args(SfmPairing),
    )
    cameras: CameraOptions = CameraOptions()  # noqa: RUF009 - frozen
    fixed_intrinsics: bool = setting(False, "Keep the intrinsics as they are: known, or guessed from EXIF.")
    second_look: str = setting(
        "auto",
        "Look again at pairs of photos, see `match`, with this model: several times the matches, for one to three "
        "seconds a pair and core. auto: logpolar-sf, or its int8 variant if the first model is one; same: the first "
        "model; none: look once.",
    )
    look_at: LookAt = setting(  # noqa: RUF009 - it makes a field
        "missing",
        "Pairs that are looked at again: those of photos that the model lacks, if there are any, or all.",
        choices=get_args(LookAt),
    )
    region_size: int = setting(
        DEFAULT_REGION_SIZE, "Longer side, in pixels, at which a second look sees what two photos share.", 64, 8192
    )
    refine: bool = setting(True, "Refine matched keypoints to sub-pixel precision.")
    mapper: MapperName = setting(  # noqa: RUF009 - it makes a field
        "incremental", "COLMAP's mapper: photo after photo, or all at once (faster; pycolmap 4).", choices=MAPPERS
    )
    min_model_size: int = setting(3, "Discard models with fewer images.", 2)
    seed: int = setting(0, "Random seed of COLMAP.", 0)
    ba_iterations: float = 1.0  # see ``quality.Quality``


@dataclass(frozen=True)
class SfmInputs:
    """What a reconstruction may be given beside photos."""

    pairs: Path | None = None  # text file of pairs that replaces the pairing
    masks: Path | None = None  # folder of masks, see ``images.masks``
    poses: Path | None = None  # known poses, see ``known_poses``: points are triangulated, nothing is mapped
    features: Path | None = None  # feature file or collection of the photos: nothing is extracted


def reconstruct(
    photos: str | Path,
    output: str | Path,
    open_extractor: OpenExtractor,
    options: SfmOptions | None = None,
    matching: MatchingOptions | None = None,
    inputs: SfmInputs | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    progress: bool = False,
    say: Callable[[str], None] = lambda line: None,
    device: str = "cpu",
    warn: Callable[[str], None] = lambda line: None,
    open_second: OpenExtractor | None = None,
) -> SfmReport:
    """Features, pairs, matches, database and model of the photos in a folder, with COLMAP's mapper.

    A second call resumes an interrupted run, adds new photos and drops those that are gone. Files made with other
    settings are refused; ``overwrite`` starts over. A folder with a COLMAP project that was not made here is refused
    either way. ``device``: where pairs are matched. ``open_second``: the extractor of second looks, if any. ``say``
    gets a line on every stage, ``warn`` one on every photo that is left out or lacks its mask.
    """
    from logpolar.images import find_images
    from logpolar.sfm.known_poses import read_known_poses

    import_pycolmap("structure from motion")
    photos, output, options, inputs = Path(photos), Path(output), options or SfmOptions(), inputs or SfmInputs()
    _check_folders(photos, output)
    images = find_images([photos])
    if len(images) < 2:
        raise LogpolarError(f"{photos}: a reconstruction needs at least two photos")
    read_calibration(options.cameras)
    poses = read_known_poses(inputs.poses) if inputs.poses else None
    if not output.is_dir():
        check_place(output)
        output.mkdir()
    with Lock(output / REPORT):
        # Pairs beside features are those of an unfinished run of version 0.1, which wrote no report before the end.
        given = inputs.pairs and inputs.pairs.resolve() == (output / PAIRS).resolve()
        claim_folder(output, PAGE, POINTS, SUMMARY, *([] if given or (output / FEATURES).exists() else [PAIRS]))
        run = _Run(photos, output, options, inputs, jobs, overwrite, progress, say, warn)
        names, left_out = run.extract(images, open_extractor)
        chosen, made_of = run.match(names, matching, device, poses)
        before = run.report
        if before and before.made_of == made_of:
            say("database and model are up to date")
            return before
        mapped = partial(run.map, names, chosen, left_out, poses)
        if open_second is None or poses:  # with known poses there is nothing to find
            run.look_once()
            return mapped(made_of)
        if options.look_at == "all":
            run.look_again(chosen, names, chosen, open_second)
            return mapped(made_of)
        again = partial(run.look_again, names=names, chosen=chosen, open_second=open_second)
        return _with_missing(run, set(names), chosen, made_of, mapped, again)


def _with_missing(
    run: _Run,
    names: set[str],
    chosen: list[Pair],
    made_of: str,
    mapped: Callable[[str], SfmReport],
    look_again: Callable[[list[Pair]], int],
) -> SfmReport:
    """Maps; if photos are missing from the model, looks again at their pairs and maps again, unless that loses more.

    The first report is marked as such: a run that is stopped before the end does not end there.
    """
    first = f"{made_of}, first look"
    report, failure = run.report, None
    if report is None or report.made_of != first:
        run.look_once()
        try:
            report = mapped(first)
        except NoModelError as error:
            report, failure = None, error
    known = {image.name for image in report.registered} if report else set()
    pairs = [pair for pair in chosen if not known.issuperset(pair)]
    if pairs:
        run.say(f"{len(names - known)} of {len(names)} photos are missing from the model")
    if pairs and look_again(pairs):
        try:
            again = mapped(made_of)
        except NoModelError as error:
            again, failure = None, error
        if again and len(again.registered) >= len(known):
            return again
        run.look_once()
        report = mapped(first) if report else None
    if report is None:
        assert failure
        raise failure
    return write_report(run.output, replace(report, made_of=made_of))


def _check_folders(photos: Path, output: Path) -> None:
    if not photos.is_dir():
        raise LogpolarError(f"{photos}: no such folder of photos")
    if output.resolve().is_relative_to(photos.resolve()):
        raise LogpolarError(f"{output}: the output cannot lie inside the photos' folder")


class _Run:
    """The stages of one call of ``reconstruct``."""

    def __init__(
        self,
        photos: Path,
        output: Path,
        options: SfmOptions,
        inputs: SfmInputs,
        jobs: int,
        overwrite: bool,
        progress: bool,
        say: Callable[[str], None],
        warn: Callable[[str], None],
    ) -> None:
        self._photos, self.output, self._options, self._inputs = photos, output, options, inputs
        self._jobs, self._overwrite, self._progress, self.say, self._warn = jobs, overwrite, progress, say, warn
        self._clock = Stopwatch()
        self._masks: dict[str, Path] = {}
        self._features, self._matches = inputs.features or output / FEATURES, output / MATCHES
        self._positions: dict[str, Position] = {}

    def extract(self, images: dict[str, Path], open_extractor: OpenExtractor) -> tuple[list[str], dict[str, str]]:
        """Names of photos with features, and reasons of those left out."""
        from logpolar.features.collections import open_features
        from logpolar.images import copied_files

        for first, others in copied_files(images):
            self._warn(f"{first}: copies of this photo add nothing: {some_of(others)}")
        left_out = self._find(images) if self._inputs.features else self._extract(images, open_extractor)
        self._clock.lap("features")
        names = sorted(images.keys() - left_out.keys())
        if names:
            with open_features(self._features) as file:
                sizes = {name: file.image_size(name) for name in names}
            left_out |= misfits(self._options.cameras, sizes)
        names = [name for name in names if name not in left_out]
        for reason in left_out.values():
            self._warn(f"left out: {reason}")
        if len(names) < 2:
            reason = next(iter(left_out.values()))
            raise LogpolarError(f"{self._photos}: a reconstruction needs at least two readable photos; {reason}")
        return names, left_out

    def _find(self, images: dict[str, Path]) -> dict[str, str]:
        """Reasons of photos without given features."""
        from logpolar.features.collections import open_features

        if self._inputs.masks:
            raise LogpolarError("masks are for keypoints that are yet to be detected; give them to `logpolar extract`")
        with open_features(self._features) as file:
            missing = images.keys() - set(file.names())
        self.say(f"features of {len(images) - len(missing)} photos in {self._features}")
        return {name: f"{name}: not in {self._features}" for name in sorted(missing)}

    def _extract(self, images: dict[str, Path], open_extractor: OpenExtractor) -> dict[str, str]:
        """Extracts features; reasons of photos without."""
        from logpolar.features.batch import extract_images
        from logpolar.images.masks import find_masks

        masks = find_masks(self._inputs.masks, images) if self._inputs.masks else None
        for name in sorted(images.keys() - masks.keys()) if masks else ():
            self._warn(f"{name}: no mask in {self._inputs.masks}")
        self.say(f"features of {len(images)} photos")
        report = extract_images(
            images, self._features, open_extractor, self._jobs, self._overwrite, self._progress, masks=masks
        )
        if masks is not None:
            self._masks = masks
            used = len(masks.keys() - report.failed.keys())
            self.say(f"masks: {report.masked} keypoints of {used} photos dropped")
        return dict(report.failed)

    def match(
        self, names: list[str], matching: MatchingOptions | None, device: str, poses: KnownPoses | None
    ) -> tuple[list[Pair], str]:
        """Matched pairs, and the digest of all that determines the model."""
        from logpolar.matching.batch import match_pairs
        from logpolar.matching.files import MatchFile
        from logpolar.sfm.georegistration import read_positions

        self._positions = read_positions(self._photos, names, self._warn)
        chosen = _choose(self.output, self._features, names, self._options, self._inputs.pairs, self._positions)
        self._clock.lap("pairs")
        self.say(f"matches of {len(chosen)} pairs")
        match_pairs(
            self._features, self._matches, chosen, matching, self._jobs, self._overwrite, self._progress, device
        )
        self._clock.lap("matches")
        with MatchFile(self._matches) as file:
            content = [names, sorted(chosen), file.settings, asdict(self._options), poses.poses if poses else None]
        return chosen, hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def look_once(self) -> None:
        """From here on features and matches are those of the first look."""
        self._features, self._matches = self._inputs.features or self.output / FEATURES, self.output / MATCHES
        (self.output / MERGED).unlink(missing_ok=True)

    def look_again(self, pairs: list[Pair], names: list[str], chosen: list[Pair], open_second: OpenExtractor) -> int:
        """Second looks at some of the chosen pairs of photos; how many matches they add.

        If any, features and matches are those of both looks from here on.
        """
        from logpolar.sfm.second_looks import LookSources, look_at_pairs, merge_looks

        size, looks = self._options.region_size, self.output / LOOKS
        self.say(f"second looks at {len(pairs)} pairs")
        sources = LookSources(self._photos, self._features, self._matches, open_second, size, self._masks)
        report = look_at_pairs(sources, looks, pairs, self._jobs, self._overwrite, self._progress)
        self.say(f"second looks: {report.matches} matches more, of {report.gained} pairs")
        if report.matches:
            merge_looks(self._features, self._matches, looks, self.output / MERGED, names, chosen)
            self._features = self._matches = self.output / MERGED
        self._clock.lap("second looks")
        return report.matches

    @property
    def report(self) -> SfmReport | None:
        """Of an earlier run that is not to be overwritten."""
        return None if self._overwrite else read_report(self.output)

    def map(
        self,
        names: list[str],
        chosen: list[Pair],
        left_out: dict[str, str],
        poses: KnownPoses | None,
        made_of: str,
    ) -> SfmReport:
        """Database, verification, refinement and model."""
        options, output = self._options, self.output
        self.say("database and verification")
        claim_folder(output, reset=True)
        cameras = replace(options.cameras, camera_mode="per-image") if poses and poses.cameras else options.cameras
        export = ExportOptions(cameras, seed=options.seed, refine=options.refine)
        files = self._features, self._matches, output / DATABASE
        given: dict[str, Any] = {"pairs": chosen, "names": names, "poses": poses, "progress": self._progress}
        given["positions"] = self._positions
        written = export_database(*files, self._photos, options=export, overwrite=True, **given)
        self._clock.lap("verification")
        self.say(f"mapping: {written.verified} of {written.pairs} pairs verified")
        mapping = MapperOptions(
            options.seed,
            options.min_model_size,
            fixed_intrinsics=options.fixed_intrinsics,
            mapper=options.mapper,
            ba_iterations=options.ba_iterations,
        )
        where = output / DATABASE, self._photos, output, mapping, made_of
        return map_database(*where, left_out, self._progress, self._clock.seconds, poses)


def _choose(
    output: Path,
    features: Path,
    names: list[str],
    options: SfmOptions,
    pairs: Path | None,
    positions: Mapping[str, Position],
) -> list[Pair]:
    from logpolar.features.collections import open_features
    from logpolar.sfm.georegistration import in_metres

    if pairs:
        chosen = read_pairs(pairs, names)
    elif options.pairing == "spatial":
        chosen = spatial_pairs(names, in_metres(positions), options.neighbours)
    else:
        with open_features(features) as file:
            chosen = choose_pairs(names, options, file)
    write_whole(output / PAIRS, "".join(f"{first} {second}\n" for first, second in chosen).encode())
    return chosen


def map_again(photos: str | Path, output: str | Path, seed: int, min_model_size: int = 3) -> SfmReport:
    """Map the database in ``output`` from another seed, into ``repeats/SEED`` there, with a report of its own.

    An earlier result is returned unless the database's matches have changed since.
    """
    database, place = Path(output) / DATABASE, Path(output) / REPEATS / str(seed)
    geometries = "SELECT pair_id, rows, data FROM two_view_geometries ORDER BY pair_id"
    made_of = digest_rows(database, [geometries], (seed, min_model_size))
    before = read_report(place)
    if before and before.made_of == made_of:
        return before
    place.mkdir(parents=True, exist_ok=True)
    return map_database(database, Path(photos), place, MapperOptions(seed, min_model_size), made_of)
