"""Databases of COLMAP as files: is it one, a consistent copy of one, and writing one whole or not at all."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from logpolar.errors import StorageError, in_words
from logpolar.storage.atomic_io import check_place

_TABLES = {"cameras", "images", "keypoints", "descriptors", "matches", "two_view_geometries"}
"""What every version of COLMAP has."""

_PATIENCE = 1.0
"""Seconds to wait for another program to release its lock."""


def copy_database(source: Path, target: Path) -> None:
    """A consistent copy, even of a database that another program has open; refuses what is not one of COLMAP."""
    with connect(source) as database, contextlib.closing(sqlite3.connect(target)) as copy:
        database.backup(copy)


@contextlib.contextmanager
def connect(path: Path) -> Iterator[sqlite3.Connection]:
    """A COLMAP database, for reading by SQL. Its content is not changed, and no file is left beside it."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise StorageError(f"{path}: {in_words(error)}") from error
    # Not read-only: SQLite would then leave the files of its log behind.
    address = path.resolve().as_uri() + "?mode=rw"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=_PATIENCE)) as database:
            _check(database, path)
            yield database
    except sqlite3.Error as error:
        if "locked" in str(error):
            raise StorageError(f"{path}: another program has locked this database; close it first") from error
        raise StorageError(f"{path}: not a COLMAP database, or a damaged one ({error})") from error


def _check(database: sqlite3.Connection, path: Path) -> None:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables >= _TABLES:
        missing = ", ".join(sorted(_TABLES - tables))
        raise StorageError(f"{path}: not a COLMAP database: it has no tables {missing}")


def verified_pairs(path: Path) -> int:
    """Pairs of images with a two-view geometry; those that were tried in vain have one without matches."""
    with connect(path) as database:
        return int(database.execute("SELECT COUNT(*) FROM two_view_geometries WHERE rows > 0").fetchone()[0])


@contextlib.contextmanager
def written_whole(output: Path, overwrite: bool = False) -> Iterator[Path]:
    """A path to write a database to, which takes the place of ``output`` if all went well, and vanishes if not.

    With ``overwrite`` another COLMAP database, and nothing else, may be replaced.
    """
    check_place(output, StorageError)
    if output.exists():
        if not overwrite:
            raise StorageError(f"{output}: exists already; choose another name or overwrite it")
        with connect(output) as database:
            database.execute("BEGIN EXCLUSIVE")  # refused while somebody uses it
    half = output.with_name(f".{output.name}.half")
    _remove(half)
    try:
        yield half
        with contextlib.closing(sqlite3.connect(half)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # all into one file
        _remove_logs(output)
        half.replace(output)
    except OSError as error:
        raise StorageError(f"{output}: cannot be written ({in_words(error)})") from error
    finally:
        _remove(half)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _remove_logs(path)


def _remove_logs(path: Path) -> None:
    """SQLite would take an old log for part of a new database."""
    for ending in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
