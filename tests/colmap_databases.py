"""COLMAP databases made and read by plain SQL, as documented in COLMAP's database format, without pycolmap."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from pathlib import Path

import numpy as np

MAX_IMAGES = 2147483647
SIMPLE_PINHOLE = 0

_PRIORS = ", ".join(f"prior_{name} REAL" for name in ("qw", "qx", "qy", "qz", "tx", "ty", "tz"))
_BLOB = "rows INTEGER NOT NULL, cols INTEGER NOT NULL, data BLOB"
_IMAGE = "image_id INTEGER PRIMARY KEY NOT NULL"
_PAIR = "pair_id INTEGER PRIMARY KEY NOT NULL"

_CASCADE = "FOREIGN KEY(image_id) REFERENCES images(image_id) ON DELETE CASCADE"

_EVERY = (
    "CREATE TABLE cameras (camera_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, model INTEGER NOT NULL, "
    "width INTEGER NOT NULL, height INTEGER NOT NULL, params BLOB, prior_focal_length INTEGER NOT NULL)",
    f"CREATE TABLE keypoints ({_IMAGE}, {_BLOB}, {_CASCADE})",
    f"CREATE TABLE descriptors ({_IMAGE}, {_BLOB}, {_CASCADE})",
    f"CREATE TABLE matches ({_PAIR}, {_BLOB})",
    f"CREATE TABLE two_view_geometries ({_PAIR}, {_BLOB}, config INTEGER NOT NULL, F BLOB, E BLOB, H BLOB, qvec BLOB, "
    "tvec BLOB)",
    "CREATE UNIQUE INDEX index_name ON images(name)",
)
_NAMED = "image_id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, name TEXT NOT NULL UNIQUE, camera_id INTEGER NOT NULL"
_REFERENCE = "FOREIGN KEY(camera_id) REFERENCES cameras(camera_id)"

SCHEMES = {
    # COLMAP 3.8 and before: the pose prior stands in the images' table.
    "3.8": (f"CREATE TABLE images ({_NAMED}, {_PRIORS}, {_REFERENCE})", *_EVERY),
    # 3.11: in a table of its own; rigs and frames came with 3.12.
    "3.11": (
        f"CREATE TABLE images ({_NAMED}, {_REFERENCE})",
        *_EVERY,
        f"CREATE TABLE pose_priors ({_IMAGE}, position BLOB, coordinate_system INTEGER NOT NULL, "
        f"position_covariance BLOB, {_CASCADE})",
    ),
}


def write_database(path: Path, scheme: str, images: dict[str, np.ndarray | None], size=(160, 120), pairs=()) -> Path:
    """Images with their keypoints (rows as COLMAP's, None: no entry), one camera; numbers begin at 5.

    ``scheme``: "3.8" or "3.11", by SQL; "now": that of the installed pycolmap.
    """
    if scheme == "now":
        import pycolmap

        pycolmap.Database.open(str(path)).close()
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for statement in SCHEMES.get(scheme, ()):
            database.execute(statement)
        if scheme in SCHEMES:
            database.execute("PRAGMA user_version = 3900")
        focal, centre = 1.1 * size[0], (size[0] / 2, size[1] / 2)
        camera = (3, SIMPLE_PINHOLE, *size, np.array([focal, *centre]).tobytes(), 1)
        database.execute("INSERT INTO cameras VALUES (?, ?, ?, ?, ?, ?)", camera)
        for number, (name, rows) in enumerate(images.items(), 5):
            database.execute("INSERT INTO images(image_id, name, camera_id) VALUES (?, ?, 3)", (number, name))
            if rows is not None:
                blob = (number, *rows.shape, np.asarray(rows, "<f4").tobytes())
                database.execute("INSERT INTO keypoints VALUES (?, ?, ?, ?)", blob)
        for first, second in pairs:
            database.execute("INSERT INTO matches VALUES (?, 0, 2, NULL)", (pair_number(first, second),))
    return path


def pair_number(first: int, second: int) -> int:
    return MAX_IMAGES * min(first, second) + max(first, second)


def query(path: Path, sql: str) -> list[tuple]:
    with contextlib.closing(sqlite3.connect(path)) as database:
        return database.execute(sql).fetchall()


def image_numbers(path: Path) -> dict[str, int]:
    return dict(query(path, "SELECT name, image_id FROM images"))


def arrays(path: Path, table: str, kind: str) -> dict[int, np.ndarray]:
    """The arrays of a table by image or pair; ``cols`` of descriptors counts bytes."""
    key = "image_id" if table in ("keypoints", "descriptors") else "pair_id"
    found = {}
    for number, rows, data in query(path, f"SELECT {key}, rows, data FROM {table}"):
        found[number] = np.frombuffer(data or b"", kind).reshape(rows, -1) if rows else np.zeros((0, 2), kind)
    return found


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
