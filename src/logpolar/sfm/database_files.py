"""COLMAP databases as files: validation, consistent copies, atomic writing, digests and counts by SQL."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from logpolar.errors import StorageError, in_words
from logpolar.storage.atomic_io import check_place

_TABLES = {"cameras", "images", "keypoints", "descriptors", "matches", "two_view_geometries"}
"""In every version of COLMAP."""

_PATIENCE = 1.0
"""Seconds to wait for another program's lock."""


@dataclass(frozen=True)
class DatabaseReport:
    """Content of a database."""

    images: int
    keypoints: int
    columns: int  # of the keypoints: 2 have no scale and orientation
    descriptor_bytes: int  # 512 for float32, 128 for the 8 bits of COLMAP 3
    pairs: int
    matches: int
    verified: int  # pairs that passed
    inliers: int


def read_content(path: Path) -> DatabaseReport:
    """Counts of what is in a database."""
    queries = (
        "SELECT COUNT(*) FROM images",
        "SELECT COALESCE(SUM(rows), 0) FROM keypoints",
        "SELECT COALESCE(MIN(cols), 4) FROM keypoints WHERE rows > 0",
        "SELECT COALESCE(MAX(cols), 512) FROM descriptors WHERE rows > 0",
        "SELECT COUNT(*) FROM matches",
        "SELECT COALESCE(SUM(rows), 0) FROM matches",
        "SELECT COUNT(*) FROM two_view_geometries WHERE rows > 0",
        "SELECT COALESCE(SUM(rows), 0) FROM two_view_geometries",
    )
    with connect(path) as database:
        return DatabaseReport(*(int(database.execute(query).fetchone()[0]) for query in queries))


def digest_rows(path: Path, queries: Iterable[str], settings: object) -> str:
    """SHA-256 of settings and of the rows that queries give."""
    digest = hashlib.sha256(repr(settings).encode())
    with connect(path) as database:
        for query in queries:
            for row in database.execute(query):
                digest.update(repr(row).encode())
    return digest.hexdigest()


def copy_database(source: Path, target: Path) -> None:
    """A consistent copy, even of a database that another program has open; refuses anything else."""
    with connect(source) as database, contextlib.closing(sqlite3.connect(target)) as copy:
        database.backup(copy)
        copy.execute("PRAGMA application_id = 0")  # a copy is not marked


def mark(path: Path, digest: str) -> None:
    """Record the digest of a database's inputs in SQLite's ``application_id``, which COLMAP leaves alone."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute(f"PRAGMA application_id = {_mark_of(digest)}")


def is_marked(path: Path, digest: str) -> bool:
    """Whether ``mark`` was called with this digest."""
    with contextlib.suppress(StorageError), connect(path) as database:
        return bool(database.execute("PRAGMA application_id").fetchone()[0] == _mark_of(digest))
    return False


def _mark_of(digest: str) -> int:
    return int(digest[:7], 16) + 1  # positive, in 32 bits


@contextlib.contextmanager
def connect(path: Path) -> Iterator[sqlite3.Connection]:
    """A COLMAP database to read by SQL. Its content is not changed, and no file is left beside it."""
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


@contextlib.contextmanager
def written_atomically(output: Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary path to write a database to; it replaces ``output`` on success and is removed otherwise.

    With ``overwrite`` an existing COLMAP database, and nothing else, may be replaced.
    """
    check_place(output, StorageError)
    if output.exists():
        if not overwrite:
            raise StorageError(f"{output}: exists already; choose another name or overwrite it")
        with connect(output) as database:
            database.execute("BEGIN EXCLUSIVE")  # refused while somebody uses it
    half = output.with_name(f".{output.name}.half")
    remove_database(half)
    try:
        yield half
        with contextlib.closing(sqlite3.connect(half)) as database:
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # all into one file
        _remove_logs(output)
        half.replace(output)
    except OSError as error:
        raise StorageError(f"{output}: cannot be written ({in_words(error)})") from error
    finally:
        remove_database(half)


def remove_database(path: Path) -> None:
    path.unlink(missing_ok=True)
    _remove_logs(path)


def _remove_logs(path: Path) -> None:
    """SQLite would apply an old log to a new database."""
    for ending in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
