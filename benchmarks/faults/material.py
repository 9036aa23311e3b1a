"""Small inputs of every kind, made by code from the shipped photo."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from common import large_photo
from faults.running import run

FEW = ("--max-keypoints", 300, "--max-size", 240)
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


_DETECTOR = """name = "tiny"
[[data]]
kind = "aligned"
files = ["pairs.txt"]
[network]
channels = [4, 4, 4]
blocks = [0, 0, 0]
window = 4
[crops]
pairs = 1
side = 64
[objectives]
keypoints = 12
[optimisation]
steps = 4
[run]
device = "cpu"
checkpoint_every = 1
validation_pairs = 1
tensorboard = false
"""

_MATCHER = """name = "tiny"
descriptor = "run/tiny.safetensors"
[data]
photos = ["photos/*.jpg"]
[views]
photo_views = 2
keypoints = 24
refresh = 0
[network]
width = 16
heads = 2
layers = 2
[batch]
pairs = 2
keypoints = 16
[optimisation]
steps = 6
warm_up = 2
[run]
device = "cpu"
jobs = 1
checkpoint_every = 1
"""

_TEXTS = {
    "poses.txt": "".join(f"{number}.jpg 1 0 0 0 {-0.15 * number} {-0.025 * number} 0\n" for number in range(8)),
    "control.txt": "WGS84\n9.1 48.5 400 20 30 0.jpg a\n9.1 48.5 400 10 25 1.jpg a\n",
    "cameras.txt": "1 PINHOLE 240 180 240 240 120 90\n",
    "detector.toml": _DETECTOR,
    "matcher.toml": _MATCHER,
    "pairs.txt": "".join(f"photos/{number}.jpg photos/{number + 1}.jpg\n" for number in range(7)),
}


@dataclass(frozen=True)
class Material:
    """Paths of the inputs in a folder."""

    folder: Path

    def __getattr__(self, name: str) -> Path:
        return self.folder / _NAMES[name]


_NAMES = {
    **{each: each for each in ("workspace", "photos", "submission", "model")},
    **{each: f"{each}.h5" for each in ("features", "matches", "views")},
    **{each: f"{each}.txt" for each in ("poses", "control", "cameras")},
    "database": "database.db",
    "config": "config.toml",
    "tiny": "run/tiny.safetensors",
    "detector_config": "detector.toml",
    "detector": "detector/tiny.safetensors",
    "matcher_config": "matcher.toml",
    "matcher": "matcher/tiny.safetensors",
    "heic": "photo.heic",
    "video": "video.avi",
    "mask": "mask.png",
}


def make(folder: Path, count: int = 8) -> Material:
    made = Material(folder)
    made.photos.mkdir(parents=True)
    picture = large_photo(1400, 900)
    for number in range(count):
        view = picture[10 * number : 10 * number + 300, 60 * number : 60 * number + 400]
        cv2.imwrite(str(made.photos / f"{number}.jpg"), cv2.resize(view, None, fx=0.6, fy=0.6))
    made.config.write_text(_CONFIG)
    for name, text in _TEXTS.items():
        (folder / name).write_text(text)
    _write_pictures(made)
    _write_workspace(made, count)
    for words in (
        ("extract", made.photos, "-o", made.features, *SMALL),
        ("match-features", made.features, "-o", made.matches, "-j", 1, "--ratio", 1),
        ("dataset", "homographies", made.photos, "-o", made.views, *VIEWS),
        ("colmap", "export", made.features, made.matches, "--images", made.photos, "-o", made.database),
        ("imc", "export", made.features, made.matches, "-o", made.submission, "--scene", "s"),
        ("train", made.config, "-o", made.tiny.parent),
        ("train-detector", made.detector_config, "-o", made.detector.parent),
        ("train-matcher", made.matcher_config, "-o", made.matcher.parent),
        ("sfm", made.photos, made.model, "-j", 1, "-m", made.tiny, *FEW, "--camera-params", made.cameras),
    ):
        ended = run(*words, seconds=600)
        if ended.code != 0:
            raise SystemExit(f"cannot make the inputs: {words[0]}: {ended.last_line}")
    return made


def _write_pictures(made: Material) -> None:
    from PIL import Image
    from pillow_heif import from_pillow

    first = cv2.imread(str(made.photos / "0.jpg"))
    exif = Image.Exif()
    position = exif.get_ifd(0x8825)
    position[1], position[2], position[3], position[4] = "N", (48.0, 30.0, 0.0), "E", (9.0, 6.0, 0.0)
    picture = Image.fromarray(first[..., ::-1])
    picture.info["exif"] = exif.tobytes()
    from_pillow(picture).save(made.heic, quality=80)
    cv2.imwrite(str(made.mask), np.full(first.shape[:2], 255, np.uint8))
    writer = cv2.VideoWriter(str(made.video), cv2.VideoWriter_fourcc(*"MJPG"), 10, first.shape[1::-1])
    for shift in range(12):
        writer.write(np.roll(first, shift, axis=1))
    writer.release()


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
