"""Redescribe and rematch the keypoints of an existing COLMAP database."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from logpolar.errors import LogpolarError, StorageError
from logpolar.matching.pairs import PAIRINGS, Pair, PairingOptions, choose_pairs, read_pairs
from logpolar.settings import setting
from logpolar.sfm.export import check_photos, check_room, check_size, verify_setting, write_features, write_matches
from logpolar.storage.atomic_io import within
from logpolar.storage.inputs import read_text

if TYPE_CHECKING:  # the command line builds its options from this module; the rest is slow to import
    from logpolar.features.batch import OpenExtractor
    from logpolar.features.files import FeatureFile
    from logpolar.matching.options import MatchingOptions
    from logpolar.sfm.database import Database
    from logpolar.sfm.database_files import DatabaseReport

DatabasePairing = Literal["database", "exhaustive", "sequential", "retrieval"]
assert get_args(DatabasePairing) == ("database", *PAIRINGS)


_KEYPOINTS = ("SELECT image_id, name FROM images ORDER BY 1", "SELECT * FROM keypoints ORDER BY image_id")
_PAIRS = ("SELECT pair_id FROM matches UNION SELECT pair_id FROM two_view_geometries ORDER BY 1",)


@dataclass(frozen=True)
class RedescriptionOptions(PairingOptions):
    """Which pairs are matched, and how they are verified."""

    pairing: DatabasePairing = setting(  # type: ignore[assignment] # noqa: RUF009 - one choice more; it makes a field
        "database",
        "Pairs that the database has matches of, all pairs, each image with the next ones by name, or with the most "
        "similar ones.",
        choices=get_args(DatabasePairing),
    )
    verify: bool = verify_setting()
    seed: int = setting(0, "Random seed of the verification.", 0)


def redescribe_database(
    source: str | Path,
    photos: str | Path,
    output: str | Path,
    open_extractor: OpenExtractor,
    options: RedescriptionOptions | None = None,
    matching: MatchingOptions | None = None,
    pairs: str | Path | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    progress: bool = False,
    device: str = "cpu",
) -> DatabaseReport:
    """Describe the keypoints of a database, with their stored scale and orientation, match and verify them.

    ``output`` gets the cameras, images, rigs and keypoints of ``source``, which is not changed, and new descriptors,
    matches and geometries. It is written atomically; an interrupted run leaves its finished work in two files beside
    it, OUTPUT.features.h5 and OUTPUT.matches.h5, which are removed at the end. An output that was made of the same
    source with the same settings is recognised and left alone. ``pairs`` is a text file of pairs that replaces the
    pairing of ``options``. Photos that cannot be described are an error: the result would be incomplete.
    ``device``: where pairs are matched.
    """
    from logpolar.features.files import FeatureFile
    from logpolar.matching.batch import match_pairs
    from logpolar.matching.files import MatchFile
    from logpolar.matching.options import MatchingOptions
    from logpolar.sfm.database import Database
    from logpolar.sfm.database_files import (
        copy_database,
        digest_rows,
        is_marked,
        mark,
        read_content,
        written_atomically,
    )

    source, output, options = Path(source), Path(output), options or RedescriptionOptions()
    if output.exists() and source.exists() and output.samefile(source):
        raise StorageError(f"{output}: is the database to describe; choose another output")
    features, matches = (output.with_name(f"{output.name}.{what}.h5") for what in ("features", "matches"))
    keypoints = digest_rows(source, _KEYPOINTS, source.name)
    given_pairs = read_text(pairs, LogpolarError, "text file of pairs") if pairs and Path(pairs).is_file() else ""
    settings = keypoints, asdict(options), matching or MatchingOptions(), given_pairs, open_extractor().settings
    made_of = digest_rows(source, _PAIRS, settings)
    if overwrite or not is_marked(output, made_of):
        with written_atomically(output, overwrite) as half:
            copy_database(source, half)
            with Database(half, source) as database:
                names = _check_content(database, source)
                check_photos(Path(photos), names, str(source))
                own_pairs, label = database.pairs(), f"{source.name} {keypoints[:16]}"
                _describe(database, label, Path(photos), features, open_extractor, jobs, overwrite, progress)
                with FeatureFile(features) as file:
                    for name in names:
                        check_size(name, file.image_size(name), database.images[name].size)
                    chosen = _choose(file, options, own_pairs, source, pairs)
                match_pairs(features, matches, chosen, matching, jobs, overwrite, progress, device)
                check_room(half, features, matches)
                database.clear()
                with FeatureFile(features) as file, MatchFile(matches) as links:
                    write_features(database, file, names, keypoints=False)
                    write_matches(database, file, links, chosen, options.seed if options.verify else None, progress)
            mark(half, made_of)
    for path in (features, matches):
        path.unlink(missing_ok=True)
    return read_content(output)


@dataclass(frozen=True)
class MappedDatabase:
    """What COLMAP's mapper makes of a database: figures of the largest model; zeros without one."""

    images: int
    points: int
    track_length: float
    error: float  # mean reprojection error in pixels
    seconds: float


def map_quickly(database: Path, photos: Path, seed: int = 0) -> MappedDatabase:
    """Map a database with COLMAP's defaults, into a temporary folder, to see what it is worth."""
    from logpolar.sfm.database_files import copy_database
    from logpolar.sfm.mapper import MapperOptions, NoModelError, largest_model, run_mapper
    from logpolar.sfm.pycolmap_compat import colmap_errors, quiet

    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="logpolar-mapping-") as folder, quiet():
        try:
            with colmap_errors(f"{database}: COLMAP could not map it"):
                copy = Path(folder) / "copy.db"
                copy_database(database, copy)  # COLMAP upgrades the layout of older ones
                models = run_mapper(copy, photos, folder, MapperOptions(seed, min_model_size=3))
        except NoModelError:
            return MappedDatabase(0, 0, 0.0, 0.0, time.perf_counter() - began)
    _, model = largest_model(models)
    lengths = model.compute_mean_track_length(), model.compute_mean_reprojection_error()
    return MappedDatabase(model.num_reg_images(), model.num_points3D(), *lengths, time.perf_counter() - began)


def _check_content(database: Database, source: Path) -> list[str]:
    """Names of the images; raises unless there are two or more, all with keypoints."""
    names = list(database.images)
    if len(names) < 2:
        raise StorageError(f"{source}: has {len(names)} images; matching needs at least two")
    bare = [name for name in names if not database.has_keypoints(name)]
    if bare:
        hint = "run COLMAP's feature_extractor, or `logpolar extract` and `logpolar colmap export`"
        raise StorageError(f"{source}: {len(bare)} of {len(names)} images have no keypoints ({bare[0]}); {hint}")
    return names


def _describe(
    database: Database,
    label: str,
    photos: Path,
    output: Path,
    open_extractor: OpenExtractor,
    jobs: int,
    overwrite: bool,
    progress: bool,
) -> None:
    """Features of all images into a file; ``label`` identifies the keypoints."""
    from logpolar.features.batch import GivenKeypoints, extract_images
    from logpolar.keypoints import Keypoints

    given = GivenKeypoints(label, lambda name: Keypoints.from_colmap(database.stored_keypoints(name)))
    images = {name: within(photos, name) for name in database.images}
    report = extract_images(images, output, open_extractor, jobs, overwrite, progress, given)
    if report.failed:
        name, reason = next(iter(report.failed.items()))
        more = f" (and {len(report.failed) - 1} more)" if len(report.failed) > 1 else ""
        raise LogpolarError(f"cannot describe {name}: {reason}{more}")


def _choose(
    file: FeatureFile, options: RedescriptionOptions, own_pairs: list[Pair], source: Path, pairs: str | Path | None
) -> list[Pair]:
    if pairs:
        return read_pairs(pairs, file.names())
    if options.pairing != "database":
        return choose_pairs(file.names(), options, file)
    if not own_pairs:
        raise StorageError(f"{source}: has no matched pairs of images; choose another pairing")
    return own_pairs
