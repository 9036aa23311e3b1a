"""Damaged and crafted inputs: commands end with a result or one line, in bounded time and memory."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from safetensors.numpy import load_file, save_file

from faults.material import FEW, SMALL, Material, damaged
from faults.running import Tally, run

Words = tuple[object, ...]
Change = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Reader:
    """A whole file, where a damaged copy of it goes, and commands that read that."""

    source: Path
    place: Path
    commands: list[Words]
    beside: Path | None = None  # a folder that is copied first, in which the place is


def readers(made: Material, work: Path) -> dict[str, Reader]:
    """By kind of file."""
    return {**_images(made, work), **_features(made, work), **_models(made, work), **_projects(made, work)}


def _images(made: Material, work: Path) -> dict[str, Reader]:
    out, place, masks = work / "out" / "f.h5", work / "place", work / "masks"
    photo = made.photos / "0.jpg"
    video, mask = work / "place.avi", masks / "0.jpg.png"
    extract = ("extract", place, "-o", out, *SMALL)
    return {
        "image": Reader(photo, place, [extract]),
        "HEIC": Reader(made.heic, place, [extract, ("match", place, photo, "--camera-a", "exif", *SMALL)]),
        "mask": Reader(made.mask, mask, [("extract", photo, "-o", out, "--masks", masks, *SMALL)]),
        "video": Reader(made.video, video, [("sfm", video, work / "out" / "m", "-j", 1, "-m", made.tiny, *FEW)]),
    }


def _features(made: Material, work: Path) -> dict[str, Reader]:
    out, place = work / "out", work / "place"
    return {
        "features": Reader(
            made.features,
            place,
            [
                ("match-features", place, "-o", out / "m.h5", "-j", 1),
                ("colmap", "export", place, made.matches, "--images", made.photos, "-o", out / "d.db"),
                ("extract", made.photos, "-o", place, *SMALL),
            ],
        ),
        "matches": Reader(
            made.matches,
            place,
            [
                ("imc", "export", made.features, place, "-o", out / "s", "--scene", "s"),
                ("match-features", made.features, "-o", place, "-j", 1, "--ratio", 1),
            ],
        ),
        "correspondences": Reader(made.views, place, [("dataset", "show", place)]),
    }


def _models(made: Material, work: Path) -> dict[str, Reader]:
    out, place = work / "out", work / "place"
    first, second = made.photos / "0.jpg", made.photos / "1.jpg"
    own = ("-m", made.tiny, *SMALL)
    return {
        "model": Reader(
            made.tiny, place, [("extract", first, "-o", out / "f.h5", "-m", place, *SMALL), ("models", place)]
        ),
        "detector": Reader(
            made.detector,
            place,
            [("extract", first, "-o", out / "f.h5", "--detector", place, *own), ("models", place)],
        ),
        "matcher": Reader(made.matcher, place, [("match", first, second, "--matcher", place, *own), ("models", place)]),
        "config": Reader(made.config, place, [("train", place, "-o", out / "run")]),
        "detector config": Reader(made.detector_config, place, [("train-detector", place, "-o", out / "run")]),
        "matcher config": Reader(made.matcher_config, place, [("train-matcher", place, "-o", out / "run")]),
    }


def _projects(made: Material, work: Path) -> dict[str, Reader]:
    """Databases, and what `sfm` reads and writes."""
    out, place, model = work / "out", work / "place", work / "model"
    sfm = ("sfm", made.photos, out / "model", "-j", 1, "-m", made.tiny, *FEW)
    looks = [("localize", model, made.photos / "0.jpg"), ("view", "model", model, "-o", out / "page.html")]
    sparse = {
        f"COLMAP {name}": Reader(
            made.model / "sparse" / "0" / f"{name}.bin", model / "sparse" / "0" / f"{name}.bin", looks, made.model
        )
        for name in ("images", "points3D", "cameras")
    }
    return {
        "database": Reader(
            made.database,
            place,
            [
                ("colmap", "redescribe", place, made.photos, "-o", out / "d.db", "-m", made.tiny, "-j", 1),
                ("colmap", "export", made.features, made.matches, "--cameras", place, "-o", out / "d.db"),
            ],
        ),
        **sparse,
        "report": Reader(made.model / "report.json", model / "report.json", looks, made.model),
        "poses": Reader(made.poses, place, [(*sfm, "--poses", place)]),
        "control points": Reader(made.control, place, [(*sfm, "--georegister", "enu", "--control", place)]),
        "calibration": Reader(made.cameras, place, [(*sfm, "--camera-params", place)]),
    }


def try_damaged(tally: Tally, made: Material, work: Path, count: int, random: np.random.Generator) -> None:
    for kind, reader in readers(made, work).items():
        data = reader.source.read_bytes()
        for number in range(count):
            _fresh(work, reader)
            reader.place.write_bytes(damaged(data, random))
            ended = run(*reader.commands[number % len(reader.commands)])
            tally.add(f"damaged {kind}", ended.problem(), ended.last_line)


def try_crafted(tally: Tally, made: Material, work: Path) -> None:
    for kind, what, make in _crafted(made):
        reader = readers(made, work)[kind]
        for words in reader.commands:
            _fresh(work, reader)
            make(reader.place)
            ended = run(*words)
            adds = words[words.index("-o") + 1] == reader.place if "-o" in words else False  # reads no old arrays
            problem = ended.problem() or "accepted" * (ended.code == 0 and what.startswith("!") and not adds)
            tally.add(f"crafted {kind}", problem, f"{what}: {ended.last_line}")


def _fresh(work: Path, reader: Reader) -> None:
    shutil.rmtree(work, ignore_errors=True)
    (work / "out").mkdir(parents=True)
    if reader.beside:
        shutil.copytree(reader.beside, work / reader.beside.name)
    reader.place.parent.mkdir(parents=True, exist_ok=True)
    reader.place.unlink(missing_ok=True)


def _crafted(made: Material) -> Iterator[tuple[str, str, object]]:
    """Kind, what, and a function that makes it at a path; those with ! must be refused."""
    for side in (40_000, 65_000):
        yield "image", f"!a PNG of {side} x {side}", lambda path, side=side: path.write_bytes(_png(side))
    for kind in _OF_FILES:
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
    for kind, what, text in _WRONG_TEXTS:
        yield kind, f"!{what}", lambda path, text=text: path.write_text(text)
    for what, key, value in (
        ("!a card nested 10 000 deep", "card", "[" * 10_000),
        ("!no graph", "graph", ""),
        ("!another hash", "hash", "0" * 64),
    ):
        for kind, source in (("model", made.tiny), ("detector", made.detector), ("matcher", made.matcher)):
            yield (
                kind,
                what,
                lambda path, source=source, key=key, value=value: _with_metadata(source, path, key, value),
            )
    for kind, source in (("detector", made.detector), ("matcher", made.matcher)):
        for what, change in {
            "fewer": lambda values: values[..., :1],
            "integer": lambda values: values.astype(int),
        }.items():
            yield (
                kind,
                f"{what} weights",
                lambda path, source=source, change=change: _with_weights(source, path, change),
            )
    for kind in ("COLMAP images", "COLMAP points3D"):
        none = "!none" if kind == "COLMAP images" else "none"  # a page shows cameras without points
        yield kind, none, lambda path: path.write_bytes(bytes(8))
        yield kind, "!2^60 entries", lambda path: path.write_bytes((2**60).to_bytes(8, "little") + bytes(100))
    for what, text in {"nested": "a = " + "[" * 10_000, "digits": f"[batch]\npairs = {'9' * 400}"}.items():
        yield "config", f"!{what}", lambda path, text=text: path.write_text(text)


_OF_FILES = (
    *("image", "mask", "features", "matches", "correspondences", "model", "detector", "matcher", "database", "config"),
    *("detector config", "matcher config", "poses", "control points", "calibration"),
)

_WRONG_TEXTS = (
    ("poses", "numbers that are not finite", "0.jpg 1 0 0 0 nan 0 0\n1.jpg 1 0 0 0 1e400 0 0\n"),
    ("poses", "a quaternion of length 0", "0.jpg 0 0 0 0 1 0 0\n"),
    ("control points", "a system that names a file", "+proj=vgridshift +grids=/etc/passwd\n1 2 3 4 5 0.jpg a\n"),
    ("control points", "numbers that are not finite", "WGS84\n9 nan 400 20 30 0.jpg a\n"),
    ("calibration", "a size that is not finite", "1 PINHOLE inf 180 240 240 120 90\n"),
    ("calibration", "no size", "1 PINHOLE 240\n"),
    ("video", "a playlist of another file", "ffconcat version 1.0\nfile /etc/passwd\n"),
    ("detector config", "nested", "a = " + "[" * 10_000),
    ("matcher config", "digits", f"[batch]\npairs = {'9' * 400}"),
)


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


def _with_weights(source: Path, path: Path, change: Change) -> None:
    data = source.read_bytes()
    metadata = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    weights = load_file(source)
    largest = max(weights, key=lambda name: weights[name].size)
    save_file({**weights, largest: np.ascontiguousarray(change(weights[largest]))}, path, {**metadata, "hash": ""})
