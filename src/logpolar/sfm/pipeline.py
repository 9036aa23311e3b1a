"""From a folder of photos to a sparse COLMAP model with our features; every stage is resumable.

OUTPUT/features.h5, matches.h5, pairs.txt   as written by `extract` and `match-features`
OUTPUT/database.db                          the verified COLMAP database
OUTPUT/sparse/0, 1, ...                     the models, as COLMAP's mapper writes them
OUTPUT/report.json                          figures of the largest model, and a digest of all inputs and settings
OUTPUT/report.html, points.ply, summary.png written by `logpolar sfm` to look at, see reports.py
OUTPUT/repeats/SEED/sparse, report.json     the same for other seeds, see ``map_again``
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from logpolar.errors import LogpolarError
from logpolar.matching.pairs import Pair, PairingOptions, choose_pairs, read_pairs
from logpolar.settings import setting
from logpolar.sfm.database_files import digest_rows
from logpolar.sfm.export import CameraMode, ExportOptions, camera_mode_setting, export_database
from logpolar.sfm.mapper import (
    DATABASE,
    PAGE,
    POINTS,
    REPORT,
    SUMMARY,
    MapperOptions,
    SfmReport,
    claim_folder,
    map_database,
    read_report,
)
from logpolar.sfm.pycolmap_compat import import_pycolmap
from logpolar.storage.atomic_io import Lock, check_place, write_whole

if TYPE_CHECKING:  # the command line builds its options from this module; the rest is slow to import
    from logpolar.features.batch import OpenExtractor
    from logpolar.matching.options import MatchingOptions

FEATURES, MATCHES, PAIRS, REPEATS = "features.h5", "matches.h5", "pairs.txt", "repeats"


@dataclass(frozen=True)
class SfmOptions(PairingOptions):
    """How a folder of photos becomes a model."""

    camera_mode: CameraMode = camera_mode_setting()  # noqa: RUF009 - it makes a field
    min_model_size: int = setting(3, "Discard models with fewer images.", 2)
    seed: int = setting(0, "Random seed of COLMAP.", 0)


def reconstruct(
    photos: str | Path,
    output: str | Path,
    open_extractor: OpenExtractor,
    options: SfmOptions | None = None,
    matching: MatchingOptions | None = None,
    pairs: str | Path | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    progress: bool = False,
    say: Callable[[str], None] = lambda line: None,
    device: str = "cpu",
) -> SfmReport:
    """Features, pairs, matches, database and model of the photos in a folder, with COLMAP's incremental mapper.

    A second call resumes an interrupted run and adds new photos. Files made with other settings are refused;
    ``overwrite`` starts over. A folder with a COLMAP project that was not made here is refused either way. ``pairs`` is
    a text file of pairs that replaces the pairing of ``options``. ``device``: where pairs are matched.
    """
    from logpolar.features.batch import extract_images
    from logpolar.images import find_images
    from logpolar.matching.files import MatchFile, match_pairs

    import_pycolmap("structure from motion")
    photos, output, options = Path(photos), Path(output), options or SfmOptions()
    if not photos.is_dir():
        raise LogpolarError(f"{photos}: no such folder of photos")
    if output.resolve().is_relative_to(photos.resolve()):
        raise LogpolarError(f"{output}: the output cannot lie inside the photos' folder")
    images = find_images([photos])
    if len(images) < 2:
        raise LogpolarError(f"{photos}: a reconstruction needs at least two photos")
    if not output.is_dir():
        check_place(output)
        output.mkdir()
    with Lock(output / REPORT):
        # Pairs beside features are those of an unfinished run of version 0.1, which wrote no report before the end.
        given = pairs and Path(pairs).resolve() == (output / PAIRS).resolve()
        clock = _Stopwatch()
        claim_folder(output, PAGE, POINTS, SUMMARY, *([] if given or (output / FEATURES).exists() else [PAIRS]))
        say(f"features of {len(images)} photos")
        left_out = extract_images(images, output / FEATURES, open_extractor, jobs, overwrite, progress).failed
        clock.lap("features")
        if len(images) - len(left_out) < 2:
            reason = next(iter(left_out.values()))
            raise LogpolarError(f"{photos}: a reconstruction needs at least two readable photos; {reason}")
        chosen = _choose(output, sorted(set(images) - set(left_out)), options, pairs)
        clock.lap("pairs")
        say(f"matches of {len(chosen)} pairs")
        match_pairs(output / FEATURES, output / MATCHES, chosen, matching, jobs, overwrite, progress, device)
        clock.lap("matches")
        with MatchFile(output / MATCHES) as file:
            content = [sorted(chosen), file.settings, asdict(options)]
        made_of = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        before = read_report(output)
        if not overwrite and before and before.made_of == made_of:
            say("database and model are up to date")
            return before
        say("database and verification")
        claim_folder(output, reset=True)
        export = ExportOptions(options.camera_mode, seed=options.seed)
        files = output / FEATURES, output / MATCHES, output / DATABASE
        written = export_database(*files, photos, options=export, overwrite=True, progress=progress, pairs=chosen)
        clock.lap("verification")
        say(f"mapping: {written.verified} of {written.pairs} pairs verified")
        mapping = MapperOptions(options.seed, options.min_model_size)
        return map_database(output / DATABASE, photos, output, mapping, made_of, left_out, progress, clock.seconds)


class _Stopwatch:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """What has passed since the last call was spent in this stage."""
        now = time.perf_counter()
        self.seconds[stage] = round(now - self._last, 3)
        self._last = now


def _choose(output: Path, names: list[str], options: SfmOptions, pairs: str | Path | None) -> list[Pair]:
    from logpolar.features.files import FeatureFile

    if pairs:
        chosen = read_pairs(pairs, names)
    else:
        with FeatureFile(output / FEATURES) as file:
            chosen = choose_pairs(names, options, lambda name: file.read(name).descriptors)
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
