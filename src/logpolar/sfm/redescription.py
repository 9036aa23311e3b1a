"""An existing COLMAP database with its keypoints described and matched anew."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from logpolar.errors import LogpolarError, StorageError
from logpolar.matching.pairs import PAIRINGS, Pair, PairingOptions, choose_pairs, read_pairs
from logpolar.settings import setting
from logpolar.sfm.export import (
    DatabaseReport,
    check_photos,
    check_size,
    verify_setting,
    write_features,
    write_matches,
)

if TYPE_CHECKING:  # the command line's options are made of this module, and the rest is slow to import
    from logpolar.features.batch import OpenExtractor
    from logpolar.features.files import FeatureFile
    from logpolar.keypoints import Keypoints
    from logpolar.matching.nearest import MatchingOptions
    from logpolar.sfm.database import Database

DatabasePairing = Literal["database", "exhaustive", "sequential", "retrieval"]
assert get_args(DatabasePairing) == ("database", *PAIRINGS)


@dataclass(frozen=True)
class RedescriptionOptions(PairingOptions):
    """Which pairs are matched, and how they are verified."""

    pairing: DatabasePairing = setting(  # type: ignore[assignment] # noqa: RUF009 - one choice more; it makes a field
        "database",
        "The pairs that the database has matches of, every image with every other, with the next ones by name, or with "
        "those that look most alike.",
        choices=get_args(DatabasePairing),
    )
    verify: bool = verify_setting()
    seed: int = setting(0, "Of the verification.", 0)


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
) -> DatabaseReport:
    """Describe the keypoints of a database, scale and orientation as stored, match and verify them.

    ``output`` has the cameras, images, rigs and keypoints of ``source``, which is not changed, and new descriptors,
    matches and geometries. It is written whole or not at all; what a run has finished before it was stopped waits in
    two files beside it, OUTPUT.features.h5 and OUTPUT.matches.h5, which go when all is done. ``pairs`` is a text file
    of pairs instead of those of ``options``. Photos that cannot be described are an error: the rest would not be what
    was asked for.
    """
    from logpolar.features.files import FeatureFile
    from logpolar.matching.files import MatchFile, match_pairs
    from logpolar.sfm.database import Database
    from logpolar.sfm.database_files import copy_database, written_whole

    source, output, options = Path(source), Path(output), options or RedescriptionOptions()
    if output.exists() and source.exists() and output.samefile(source):
        raise StorageError(f"{output}: is the database that is to be described; choose another output")
    described, matched = (output.with_name(f"{output.name}.{what}.h5") for what in ("features", "matches"))
    with contextlib.ExitStack() as stack:
        half = stack.enter_context(written_whole(output, overwrite))
        copy_database(source, half)
        database = stack.enter_context(Database(half, source))
        names = _check_content(database, source)
        check_photos(Path(photos), names, str(source))
        own_pairs = database.pairs()
        columns = _describe(database, source, Path(photos), described, open_extractor, jobs, overwrite, progress)
        with FeatureFile(described) as file:
            for name in names:
                check_size(name, file.image_size(name), database.images[name].size)
            chosen = _choose(file, options, own_pairs, source, pairs)
        match_pairs(described, matched, chosen, matching, jobs, overwrite, progress)
        database.clear()
        with FeatureFile(described) as file, MatchFile(matched) as links:
            report = write_features(database, file, names, keypoints=False)
            report.columns = columns
            write_matches(database, file, links, chosen, report, options.seed if options.verify else None, progress)
    for path in (described, matched):
        path.unlink()
    return report


def _check_content(database: Database, source: Path) -> list[str]:
    """The images' names; raises unless there are two, all with keypoints."""
    names = list(database.images)
    if len(names) < 2:
        raise StorageError(f"{source}: has {len(names)} images, and matching needs two or more")
    bare = [name for name in names if not database.has_keypoints(name)]
    if bare:
        hint = "run COLMAP's feature_extractor, or `logpolar extract` and `logpolar colmap export`"
        raise StorageError(f"{source}: {len(bare)} of {len(names)} images have no keypoints ({bare[0]}); {hint}")
    return names


def _describe(
    database: Database,
    source: Path,
    photos: Path,
    output: Path,
    open_extractor: OpenExtractor,
    jobs: int,
    overwrite: bool,
    progress: bool,
) -> int:
    """Features of all images into a file; how many columns the stored keypoints have, at the least."""
    from logpolar.features.batch import GivenKeypoints, extract_images
    from logpolar.keypoints import Keypoints

    digest, columns = hashlib.sha256(), 6
    for name in database.images:
        rows = database.stored_keypoints(name)
        digest.update(name.encode() + rows.tobytes())
        columns = min(columns, rows.shape[1] if len(rows) else columns)

    def read(name: str) -> Keypoints:
        return Keypoints.from_colmap(database.stored_keypoints(name))

    given = GivenKeypoints(f"{source.name} {digest.hexdigest()[:16]}", read)
    images = {name: photos / name for name in database.images}
    report = extract_images(images, output, open_extractor, jobs, overwrite, progress, given)
    if report.failed:
        name, reason = next(iter(report.failed.items()))
        more = f" (and {len(report.failed) - 1} more)" if len(report.failed) > 1 else ""
        raise LogpolarError(f"cannot describe {name}: {reason}{more}")
    return columns


def _choose(
    file: FeatureFile, options: RedescriptionOptions, own_pairs: list[Pair], source: Path, pairs: str | Path | None
) -> list[Pair]:
    if pairs:
        return read_pairs(pairs, file.names())
    if options.pairing != "database":
        return choose_pairs(file.names(), options, lambda name: file.read(name).descriptors)
    if not own_pairs:
        raise StorageError(f"{source}: has no pairs of images that were matched; choose another pairing")
    return own_pairs
