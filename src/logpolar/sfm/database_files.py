"""COLMAP databases as files: validation, consistent copies, atomic writing, digests and counts by SQL."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from logpolar.errors import StorageError, first_line, in_words
from logpolar.sfm.binary_models import CAMERA_PARAMETERS
from logpolar.storage.atomic_io import Lock, check_space, flush
from logpolar.storage.inputs import check_regular

_TABLES = {"cameras", "images", "keypoints", "descriptors", "matches", "two_view_geometries"}
"""In every version of COLMAP."""

_PATIENCE = 1.0
"""Seconds to wait for another program's lock."""

_NO_PLACE = ("disk I/O error", "disk is full", "unable to open", "readonly")
"""What SQLite says of a full or read-only disk: to read a database, too, it may have to write beside it."""


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
            for value in itertools.chain.from_iterable(database.execute(query)):
                # A blob may have hundreds of megabytes, and four times as many characters as text.
                data = value if isinstance(value, bytes) else repr(value).encode()
                digest.update(f"{type(value).__name__} {len(data)} ".encode())
                digest.update(data)
    return digest.hexdigest()


def copy_database(source: Path, target: Path) -> None:
    """A consistent copy, even of a database that another program has open; refuses anything else."""
    check_space(target, 2 * source.stat().st_size)
    with connect(source) as database, contextlib.closing(sqlite3.connect(target)) as copy:
        _check_content(database, source)
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
    check_regular(path)
    # Not read-only: SQLite would then leave the files of its log behind.
    address = path.resolve().as_uri() + "?mode=rw"
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True, timeout=_PATIENCE)) as database:
            _check(database, path)
            yield database
    except sqlite3.Error as error:
        if "locked" in str(error):
            raise StorageError(f"{path}: another program has locked this database; close it first") from error
        if any(words in str(error) for words in _NO_PLACE):
            raise StorageError(f"{path}: SQLite needs space in its folder to read it ({error})") from error
        raise StorageError(f"{path}: not a COLMAP database, or a damaged one ({error})") from error
    except (UnicodeDecodeError, OverflowError) as error:
        raise StorageError(f"{path}: this COLMAP database is damaged ({first_line(error)})") from error


def _check(database: sqlite3.Connection, path: Path) -> None:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables >= _TABLES:
        missing = ", ".join(sorted(_TABLES - tables))
        raise StorageError(f"{path}: not a COLMAP database: it has no tables {missing}")


_PARAMETERS = " ".join(f"WHEN {model} THEN {8 * count}" for model, count in enumerate(CAMERA_PARAMETERS))


def _no_array(size: int, columns: str) -> str:
    """SQL of rows whose blob is not an array of values of so many bytes with these numbers of columns."""
    counts = "typeof(rows) != 'integer' OR typeof(cols) != 'integer' OR rows NOT BETWEEN 0 AND 10000000"
    data = f"COALESCE(length(data), 0) != {size} * rows * cols OR typeof(data) NOT IN ('blob', 'null')"
    return f"{counts} OR (rows > 0 AND cols NOT IN ({columns})) OR {data}"


_DAMAGED = {
    "cameras": "typeof(width) != 'integer' OR typeof(height) != 'integer' OR typeof(model) != 'integer' OR model < 0 "
    "OR width NOT BETWEEN 1 AND 1000000 OR height NOT BETWEEN 1 AND 1000000 OR typeof(params) != 'blob' "
    f"OR length(params) != CASE model {_PARAMETERS} ELSE length(params) END",
    "images": "typeof(name) != 'text' OR instr(name, char(0)) OR length(CAST(name AS BLOB)) > 4096 "
    "OR image_id NOT BETWEEN 1 AND 2147483646 OR camera_id NOT IN (SELECT camera_id FROM cameras)",
    "keypoints": _no_array(4, "2, 4, 6"),
    "descriptors": _no_array(1, "128, 512, cols"),
    "matches": _no_array(4, "2"),
    "two_view_geometries": _no_array(4, "2"),
}
"""Conditions of rows, by table, that COLMAP would crash on, or misread."""


def _check_content(database: sqlite3.Connection, path: Path) -> None:
    """Raise unless the tables hold what COLMAP writes into them, and nothing acts by itself."""
    (sound,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if sound != "ok":
        raise StorageError(f"{path}: this COLMAP database is damaged ({' '.join(str(sound).split())})")
    for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type IN ('trigger', 'view')"):
        raise StorageError(f"{path}: has a trigger or view, '{name[:80]}', which COLMAP has not made")
    for table, condition in _DAMAGED.items():
        try:
            (count,) = database.execute(f"SELECT COUNT(*) FROM {table} WHERE {condition}").fetchone()
        except sqlite3.OperationalError as error:
            if "no such column" in str(error):
                reason = f"its table {table} has {str(error).replace('such ', '')}"
                raise StorageError(f"{path}: {reason}; the database may be of a newer COLMAP, or damaged") from error
            raise
        if count:
            raise StorageError(f"{path}: this COLMAP database is damaged ({count} rows of {table})")
    for table in ("matches", "two_view_geometries"):
        query = f"SELECT COUNT(*) FROM {table} WHERE typeof(pair_id) != 'integer' OR pair_id < 0"
        if database.execute(query).fetchone()[0]:
            raise StorageError(f"{path}: this COLMAP database is damaged (numbers of pairs in {table})")


@contextlib.contextmanager
def written_atomically(output: Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary path to write a database to; it replaces ``output`` on success and is removed otherwise.

    With ``overwrite`` an existing COLMAP database, and nothing else, may be replaced.
    """
    with Lock(output):
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
            flush(half)
            _remove_logs(output)
            half.replace(output)
        except OSError as error:
            raise StorageError(f"{output}: cannot be written ({in_words(error)})") from error
        except sqlite3.Error as error:
            raise StorageError(f"{output}: cannot be written ({error})") from error
        finally:
            remove_database(half)


def remove_database(path: Path) -> None:
    path.unlink(missing_ok=True)
    _remove_logs(path)


def _remove_logs(path: Path) -> None:
    """SQLite would apply an old log to a new database."""
    for ending in ("-wal", "-shm", "-journal"):
        path.with_name(path.name + ending).unlink(missing_ok=True)
