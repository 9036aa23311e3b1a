"""Small inputs of every kind, made by code from the shipped photo."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from common import large_photo
from faults.running import run

SMALL = ("--max-keypoints", 60, "--max-size", 200)
VIEWS = ("--views", 2, "--max-size", 160, "--min-side", 64, "--max-keypoints", 120, "--max-count", 30, "--jobs", 1)

_CONFIG = """recipe = "default"
name = "tiny"
[[data]]
files = ["views.h5"]
[sampling]
rows = 8
columns = 8
[network]
channels = [8, 8, 16, 16]
strides = [1, 2, 2, 1]
[batch]
pairs = 2
per_pair = 8
[optimisation]
steps = 16
warm_up = 2
[run]
device = "cpu"
checkpoint_every = 2
validate_every = 8
tensorboard = false
"""


@dataclass(frozen=True)
class Material:
    """Paths of the inputs in a folder."""

    folder: Path

    def __getattr__(self, name: str) -> Path:
        return self.folder / _NAMES[name]


_NAMES = {
    **{
        "workspace": "workspace",
        "photos": "photos",
        "features": "features.h5",
        "matches": "matches.h5",
        "views": "views.h5",
    },
    **{"database": "database.db", "submission": "submission", "config": "config.toml", "model": "run/tiny.safetensors"},
}


def make(folder: Path, count: int = 8) -> Material:
    made = Material(folder)
    made.photos.mkdir(parents=True)
    picture = large_photo(1400, 900)
    for number in range(count):
        view = picture[10 * number : 10 * number + 300, 60 * number : 60 * number + 400]
        cv2.imwrite(str(made.photos / f"{number}.jpg"), cv2.resize(view, None, fx=0.6, fy=0.6))
    made.config.write_text(_CONFIG)
    _write_workspace(made, count)
    for words in (
        ("extract", made.photos, "-o", made.features, *SMALL),
        ("match-features", made.features, "-o", made.matches, "-j", 1, "--ratio", 1),
        ("dataset", "homographies", made.photos, "-o", made.views, *VIEWS),
        ("colmap", "export", made.features, made.matches, "--images", made.photos, "-o", made.database),
        ("imc", "export", made.features, made.matches, "-o", made.submission, "--scene", "s"),
        ("train", made.config, "-o", made.model.parent),
    ):
        ended = run(*words, seconds=600)
        if ended.code != 0:
            raise SystemExit(f"cannot make the inputs: {words[0]}: {ended.last_line}")
    return made


def _write_workspace(made: Material, count: int) -> None:
    """A COLMAP workspace of the photos: a plane at depth 1, and cameras that moved parallel to it."""
    sparse, depth = made.workspace / "sparse", made.workspace / "stereo" / "depth_maps"
    sparse.mkdir(parents=True)
    depth.mkdir(parents=True)
    shutil.copytree(made.photos, made.workspace / "images")
    (sparse / "cameras.txt").write_text("1 PINHOLE 240 180 240 240 120 90\n")
    grid = np.stack(np.meshgrid(np.arange(0, 500, 12), np.arange(0, 224, 12)), axis=-1).reshape(-1, 2)
    tracks: dict[int, list[str]] = {}
    lines = []
    for number in range(count):
        places = grid - (36 * number, 6 * number)
        seen = np.flatnonzero(((places >= 0) & (places < (240, 180))).all(axis=1)).tolist()
        for row, point in enumerate(seen):
            tracks.setdefault(point, []).append(f"{number + 1} {row}")
        lines.append(f"{number + 1} 1 0 0 0 {-36 * number / 240} {-6 * number / 240} 0 1 {number}.jpg")
        lines.append(" ".join(f"{places[point][0]} {places[point][1]} {point + 1}" for point in seen))
        (depth / f"{number}.jpg.geometric.bin").write_bytes(b"240&180&1&" + np.ones((180, 240), "<f4").tobytes())
    (sparse / "images.txt").write_text("\n".join(lines) + "\n")
    points = []
    for point, track in tracks.items():
        x, y = (grid[point] - (120, 90)) / 240
        points.append(f"{point + 1} {x} {y} 1 9 9 9 0.5 {' '.join(track)}\n")
    (sparse / "points3D.txt").write_text("".join(points))


def damaged(data: bytes, random: np.random.Generator) -> bytes:
    """A copy with some bytes flipped, replaced, removed, inserted or zeroed, or cut short."""
    out = bytearray(data)
    kind, place = random.integers(6), int(random.integers(len(out)))
    length = int(random.choice([1, 4, 16, 256]))
    if kind == 0:
        for _ in range(length):
            out[int(random.integers(len(out)))] ^= 1 << int(random.integers(8))
    elif kind == 1:
        out[place : place + 8] = bytes([255 if random.random() < 0.5 else 127]) * len(out[place : place + 8])
    elif kind == 2:
        del out[place:]
    elif kind == 3:
        del out[place : place + length]
    elif kind == 4:
        out[place:place] = random.bytes(length)
    else:
        out[place : place + length] = bytes(len(out[place : place + length]))
    return bytes(out)
