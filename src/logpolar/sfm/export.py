"""Feature and match files into a COLMAP database."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logpolar.errors import StorageError, some_of
from logpolar.matching.pairs import Pair, each_once
from logpolar.settings import check_settings, setting
from logpolar.sfm.cameras import CameraOptions, misfits, read_calibration
from logpolar.storage.atomic_io import bytes_of, check_space, within

if TYPE_CHECKING:  # the command line builds its options from this module; the rest is slow to import
    from logpolar.features.collections import FeatureSource
    from logpolar.matching.collections import MatchSource
    from logpolar.sfm.database import Database
    from logpolar.sfm.database_files import DatabaseReport
    from logpolar.sfm.known_poses import KnownPoses


def verify_setting() -> Any:
    return setting(True, "Verify the matches by two-view geometry; otherwise COLMAP can do so later.")


@dataclass(frozen=True)
class ExportOptions:
    """How features become a database."""

    cameras: CameraOptions = CameraOptions()  # noqa: RUF009 - frozen
    verify: bool = verify_setting()
    refine: bool = setting(False, "Refine verified keypoints to sub-pixel precision along their tracks.")
    seed: int = setting(0, "Random seed of the verification.", 0)

    def __post_init__(self) -> None:
        check_settings(self)


def export_database(
    features: str | Path,
    matches: str | Path | None,
    output: str | Path,
    photos: str | Path | None = None,
    cameras: str | Path | None = None,
    options: ExportOptions | None = None,
    overwrite: bool = False,
    progress: bool = False,
    pairs: Sequence[Pair] | None = None,
    names: Sequence[str] | None = None,
    poses: KnownPoses | None = None,
    positions: Mapping[str, Sequence[float]] | None = None,
) -> DatabaseReport:
    """Write a COLMAP database from a feature file and an optional match file, ours or hloc's; verify the matches.

    COLMAP guesses cameras from the images in the folder ``photos``; or cameras, images and rigs are copied from another
    database, ``cameras``. ``output`` is written atomically. ``pairs`` and ``names`` select those of the files.
    ``poses`` may bring calibrations of their own. ``positions``: latitude, longitude and altitude by name, as priors.
    """
    from logpolar.features.collections import open_features
    from logpolar.features.hloc import HlocFeatureFile
    from logpolar.matching.collections import open_matches
    from logpolar.sfm.database import Database
    from logpolar.sfm.database_files import copy_database, read_content, written_atomically

    options, output = options or ExportOptions(), Path(output)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open_features(features))
        names = file.names() if names is None else names
        links = stack.enter_context(open_matches(matches, names)) if matches else None
        half = stack.enter_context(written_atomically(output, overwrite))
        check_room(half, file.path, links.path if links else None)
        if cameras:
            copy_database(Path(cameras), half)
        database = stack.enter_context(Database(half, Path(cameras) if cameras else None))
        if cameras:
            database.clear(keypoints=True)
        elif photos:
            check_photos(Path(photos), names, str(file.path))
            for reason in misfits(options.cameras, {name: file.image_size(name) for name in names}).values():
                raise StorageError(reason)
            calibration = read_calibration(options.cameras)
            database.add_photos(Path(photos), names, options.cameras, calibration)
            if poses:
                database.set_cameras(poses.cameras)
            if positions is not None:
                database.set_positions(positions)
        else:
            raise ValueError("a database needs photos, or the cameras of another database")
        _check_entered(database, names, str(cameras or photos))
        with_shape = not (isinstance(file, HlocFeatureFile) and file.missing)
        write_features(database, file, names, keypoints=True, with_shape=with_shape)
        if links:
            wanted = links.pairs() if pairs is None else pairs
            write_matches(database, file, links, wanted, options.seed if options.verify else None, progress)
            if options.refine and photos:
                database.refine(Path(photos), progress)
    return read_content(output)


def check_room(output: Path, features: Path, matches: Path | None) -> None:
    """Raise unless the disk has room for a database of these files, and SQLite's log: COLMAP would crash."""
    check_space(output, 2 * bytes_of(features) + (2 * bytes_of(matches) if matches else 0))


def check_photos(folder: Path, names: Sequence[str], source: str) -> None:
    """Raise unless the folder has all images."""
    if not folder.is_dir():
        raise StorageError(f"{folder}: no such folder")
    missing = [name for name in names if not within(folder, name).is_file()]
    if missing:
        raise StorageError(
            f"{folder}: {len(missing)} of {len(names)} images of {source} are not there: {some_of(missing)}"
        )


def _check_entered(database: Database, names: Sequence[str], source: str) -> None:
    missing = [name for name in names if name not in database.images]
    if missing:
        words = "are not in it, or COLMAP cannot read them"
        raise StorageError(f"{source}: {len(missing)} of {len(names)} images {words}: {some_of(missing)}")


def write_features(
    database: Database, file: FeatureSource, names: Sequence[str], keypoints: bool, with_shape: bool = True
) -> None:
    """Write descriptors and, if ``keypoints``, keypoints of the images into a database."""
    for name in names:
        features = file.read(name)
        check_size(name, features.image_size, database.images[name].size)
        if keypoints:
            database.write_keypoints(name, features.keypoints, with_shape)
        database.write_descriptors(name, features.descriptors)


def check_size(name: str, photo: tuple[int, int], camera: tuple[int, int]) -> None:
    """Raise unless a photo has its camera's size: keypoints would be misplaced."""
    if photo != camera:
        sizes = f"{photo[0]} x {photo[1]} pixels, but its camera {camera[0]} x {camera[1]}"
        raise StorageError(f"{name}: the image has {sizes}; are these the same photos?")


def write_matches(
    database: Database,
    file: FeatureSource,
    links: MatchSource,
    pairs: Sequence[Pair],
    seed: int | None,
    progress: bool,
) -> None:
    """Write matches of a match file into a database; verify them if there is a seed."""
    from logpolar.matching.files import check_matches

    pairs = each_once(pairs)
    counts = {name: file.count(name) for name in {name for pair in pairs for name in pair}}
    for first, second in pairs:
        matches = links.read(first, second)
        check_matches(matches, counts[first], counts[second], f"{links.path}: '{first}' and '{second}'")
        database.write_matches(first, second, matches.indices)
    if seed is not None:
        database.verify(pairs, seed, progress)
