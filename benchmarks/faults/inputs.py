"""Damaged and crafted inputs: commands end with a result or one line, in bounded time and memory."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
from safetensors.numpy import load_file, save_file

from faults.material import SMALL, Material, damaged
from faults.running import Tally, run

Words = tuple[object, ...]


def readers(made: Material, work: Path) -> dict[str, tuple[Path, list[Words]]]:
    """By kind of file: a whole one, and commands that read PLACE, a copy of it."""
    out, place = work / "out", work / "place"
    photo = sorted(made.photos.iterdir())[0]
    return {
        "image": (photo, [("extract", place, "-o", out / "f.h5", *SMALL)]),
        "features": (
            made.features,
            [
                ("match-features", place, "-o", out / "m.h5", "-j", 1),
                ("colmap", "export", place, made.matches, "--images", made.photos, "-o", out / "d.db"),
                ("extract", made.photos, "-o", place, *SMALL),
            ],
        ),
        "matches": (
            made.matches,
            [
                ("imc", "export", made.features, place, "-o", out / "s", "--scene", "s"),
                ("match-features", made.features, "-o", place, "-j", 1, "--ratio", 1),
            ],
        ),
        "correspondences": (made.views, [("dataset", "show", place)]),
        "database": (
            made.database,
            [
                ("colmap", "redescribe", place, made.photos, "-o", out / "d.db", "-m", made.model, "-j", 1),
                ("colmap", "export", made.features, made.matches, "--cameras", place, "-o", out / "d.db"),
            ],
        ),
        "model": (made.model, [("extract", photo, "-o", out / "f.h5", "-m", place, *SMALL), ("models", place)]),
        "config": (made.config, [("train", place, "-o", out / "run")]),
    }


def try_damaged(tally: Tally, made: Material, work: Path, count: int, random: np.random.Generator) -> None:
    for kind, (source, commands) in readers(made, work).items():
        data = source.read_bytes()
        for number in range(count):
            _fresh(work)
            (work / "place").write_bytes(damaged(data, random))
            ended = run(*commands[number % len(commands)])
            tally.add(f"damaged {kind}", ended.problem(), ended.last_line)


def try_crafted(tally: Tally, made: Material, work: Path) -> None:
    for kind, what, make in _crafted(made):
        for words in readers(made, work)[kind][1]:
            _fresh(work)
            make(work / "place")
            ended = run(*words)
            adds = words[words.index("-o") + 1] == work / "place" if "-o" in words else False  # reads no old arrays
            problem = ended.problem() or "accepted" * (ended.code == 0 and what.startswith("!") and not adds)
            tally.add(f"crafted {kind}", problem, f"{what}: {ended.last_line}")


def _fresh(work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    (work / "out").mkdir(parents=True)


def _crafted(made: Material) -> Iterator[tuple[str, str, object]]:
    """Kind, what, and a function that makes it at a path; those with ! must be refused."""
    for side in (40_000, 65_000):
        yield "image", f"!a PNG of {side} x {side}", lambda path, side=side: path.write_bytes(_png(side))
    for kind in ("image", "features", "matches", "correspondences", "database", "config"):
        yield kind, "!a pipe", os.mkfifo
        yield kind, "!a device", lambda path: path.symlink_to("/dev/zero")
    for what, change in {
        "!16 GB of zeros": lambda file, name: _replace(file, f"{name}/descriptors", (2**25, 128)),
        "!NaN sizes": lambda file, name: file[f"{name}/sizes"].write_direct(np.full(len(file[name]["sizes"]), np.nan)),
        "!a link to a pipe": lambda file, name: _link(file, name),
        "!settings nested 10 000 deep": lambda file, name: file.attrs.__setitem__("settings", "[" * 10_000),
        "!a version that is an array": lambda file, name: file.attrs.__setitem__("version", np.arange(5)),
    }.items():
        yield "features", what, lambda path, change=change: _in_copy(made.features, path, change)
    for statement in (
        "UPDATE images SET camera_id = 77",
        "UPDATE images SET name = '../../../x' WHERE name = '0.jpg'",
        "UPDATE keypoints SET rows = 1000000000",
        "UPDATE cameras SET params = x'00'",
        "CREATE TRIGGER t BEFORE DELETE ON matches BEGIN SELECT (WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL "
        "SELECT x + 1 FROM c) SELECT COUNT(*) FROM c); END",
    ):
        yield (
            "database",
            f"!{statement[:40]}",
            lambda path, statement=statement: _by_sql(made.database, path, statement),
        )
    for what, key, value in (
        ("!a card nested 10 000 deep", "card", "[" * 10_000),
        ("!no graph", "graph", ""),
        ("!another hash", "hash", "0" * 64),
    ):
        yield "model", what, lambda path, key=key, value=value: _with_metadata(made.model, path, key, value)
    for what, text in {"nested": "a = " + "[" * 10_000, "digits": f"[batch]\npairs = {'9' * 400}"}.items():
        yield "config", f"!{what}", lambda path, text=text: path.write_text(text)


def _png(side: int) -> bytes:
    """Black, a few kilobytes."""
    out = b"\x89PNG\r\n\x1a\n"
    rows = zlib.compressobj(9)
    data = b"".join(rows.compress(bytes(1 + side)) for _ in range(side)) + rows.flush()
    for kind, body in ((b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)), (b"IDAT", data), (b"IEND", b"")):
        out += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    return out


def _in_copy(source: Path, path: Path, change: object) -> None:
    shutil.copy(source, path)
    with h5py.File(path, "r+") as file:
        change(file, next(iter(file)))


def _replace(file: h5py.File, key: str, shape: tuple[int, ...]) -> None:
    del file[key]
    file.create_dataset(key, shape, np.float32, chunks=(2**16, 128), compression="gzip")[:1] = 0


def _link(file: h5py.File, name: str) -> None:
    del file[f"{name}/descriptors"]
    file[f"{name}/descriptors"] = h5py.ExternalLink("/dev/zero", "/a")


def _by_sql(source: Path, path: Path, statement: str) -> None:
    shutil.copy(source, path)
    with sqlite3.connect(path) as tables:
        tables.execute(statement)


def _with_metadata(source: Path, path: Path, key: str, value: str) -> None:
    data = source.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    save_file(load_file(source), path, {**header["__metadata__"], key: value})
