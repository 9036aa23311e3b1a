"""Compare what two source trees compute on the same inputs: descriptors, matches, stored files, evaluation results.

    python benchmarks/equality.py record /path/to/old/src old.json
    python benchmarks/equality.py record src new.json
    python benchmarks/equality.py compare old.json new.json

Inputs are made with OpenCV from the shipped photo and a synthetic scene (``tests/synthetic_world.py``), or from photos
given by ``--photos``. The tree under test is used through its command line and its public names only, so that trees of
different layouts can be compared; an option that was renamed is looked up in ``--help``. Times, versions and command
lines are left out. ``compare`` exits with code 1 where anything differs.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np

Found = dict[str, Any]

RENAMED = {
    "--part": "--split",
    "--shrink": "--downscale",
    "--turn": "--rotate",
    "--turns": "--rotations",
    "--max-turn": "--max-rotation",
}
"""Options by their old names, which are tried first, and their new ones."""

VOLATILE = re.compile(r"version|seconds|time|date|command|machine|digest|hash|peak|memory|software", re.IGNORECASE)
"""Keys and attributes that may differ between two runs of the same code, or name the code itself."""

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": ""}
"""One thread, so that sums have one order."""

SHOWN = 8
"""Differences printed for each section."""

TRAINING = """
recipe = "default"
name = "equality"
[[data]]
files = ["homographies.h5"]
[sampling]
rows = 16
columns = 16
[batch]
pairs = 4
per_pair = 16
[optimisation]
steps = 20
warm_up = 5
[run]
device = "cpu"
precision = "float32"
validate_every = 10
tensorboard = false
"""

STEPS = {
    "extract": "extract photos -o features.h5 --max-keypoints 300",
    "extract-int8": "extract photos -o int8.h5 -m logpolar-96-small-int8 --max-keypoints 200 --max-size 300",
    "match": "match photos/a.png photos/b.png --h5 pair.h5 --max-keypoints 500 --geometry homography",
    "match-features": "match-features features.h5 -o matches.h5 -j 1",
    "match-retrieval": "match-features features.h5 -o near.h5 -j 1 --pairing retrieval --neighbours 1",
    "colmap": "colmap export features.h5 matches.h5 --images photos -o database.db",
    "imc": "imc export features.h5 matches.h5 -o submission --scene reichstag",
    "imc-check": "imc check submission",
    "homographies": "dataset homographies photos -o homographies.h5 --views 3 --max-keypoints 500 --min-side 90 -j 1",
    "scene": "dataset colmap scene -o scene.h5 --min-overlap 0.1 --max-keypoints 800 --test -j 1",
    "altered": "dataset colmap scene -o altered.h5 --min-overlap 0.1 --shrink 1.5 --turn 30 --max-keypoints 400 -j 1",
    "patches": "eval patches scene.h5 altered.h5 -d rootsift -d logpolar-96 -d paper-cartesian-12 -o patches",
    "retrieval": "eval retrieval scene.h5 altered.h5 -d rootsift -d logpolar-96-small-int8 -o retrieval",
    "hpatches": "eval hpatches hpatches -d sift -d logpolar-96-small -o hpatches-paper --turns 0,60 --keypoints 400",
    "hpatches-full": "eval hpatches hpatches -d logpolar-96-int8 -o hpatches-full --mode full --keypoints 400",
    "poses": "eval phototourism scene -d rootsift -d logpolar-96 -o poses --keypoints 400 --no-multi-view -j 1",
    "sfm": "sfm scene/images model --max-keypoints 800 --camera-mode single -j 1",
    "train": "train training.toml -o run",
    "export": "export logpolar-96-small -o network.onnx",
    "export-end-to-end": "export logpolar-96 -o end-to-end.onnx --end-to-end",
}
"""Commands in their order: later ones read what earlier ones wrote."""


COLLECTIONS = {"eval", "dataset", "colmap", "imc"}
"""Commands that consist of others."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run everything with the logpolar of a source tree")
    recording.add_argument("source", type=Path, help="folder that holds the package logpolar")
    recording.add_argument("output", type=Path)
    recording.add_argument(
        "--photos", type=Path, help="folder of photos to use instead of the shipped one and its warps"
    )
    recording.add_argument("--photo", type=Path, help="photo to use instead of the shipped one")
    recording.add_argument("--keep", type=Path, help="folder to work in and keep, instead of a temporary one")
    comparing = commands.add_parser("compare", help="print what differs between two records")
    comparing.add_argument("first", type=Path)
    comparing.add_argument("second", type=Path)
    comparing.add_argument("--tolerance", type=float, default=0.0, help="largest absolute difference to ignore")
    calling = commands.add_parser("api", help="used by record, in a process of its own")
    calling.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "record":
        with tempfile.TemporaryDirectory() as temporary:
            record(arguments, (arguments.keep or Path(temporary)).resolve())
        return 0
    if arguments.command == "api":
        (arguments.folder / "api.json").write_text(json.dumps(call_api(arguments.folder)))
        return 0
    return compare(*(json.loads(path.read_text()) for path in (arguments.first, arguments.second)), arguments.tolerance)


# Inputs


def record(arguments: argparse.Namespace, folder: Path) -> None:
    source = arguments.source.resolve()
    make_inputs(source, folder, arguments.photo, arguments.photos)
    found: Found = {f"inputs/{path.relative_to(folder)}": digest(path) for path in inputs_in(folder)}
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(source), "LOGPOLAR_CACHE": str(folder / "cache")}

    def python(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    answer = python(str(Path(__file__).resolve()), "api", str(folder))
    found |= json.loads((folder / "api.json").read_text()) if answer.returncode == 0 else failure("api", answer)
    for name, line in STEPS.items():
        words = line.split()
        options = python("-m", "logpolar", *words[: 2 if words[0] in COLLECTIONS else 1], "--help").stdout
        answer = python("-m", "logpolar", *(known(word, options) for word in words))
        found[f"exit code/{name}"] = answer.returncode
        if answer.returncode != 0:
            found |= failure(name, answer)
        print(f"{name}: {answer.returncode}", flush=True)
    found |= {key: value for key, value in read_outputs(folder) if not (VOLATILE.search(key) or is_hash(value))}
    arguments.output.write_text(json.dumps(found, indent=0, sort_keys=True))
    print(f"wrote {len(found)} values to {arguments.output}")


def known(word: str, options: str) -> str:
    if word in RENAMED and not re.search(rf"{word}(?![\w-])", options):
        return RENAMED[word]
    return word


def failure(name: str, answer: subprocess.CompletedProcess[str]) -> Found:
    return {f"{name}/failed": (answer.stderr.strip().splitlines() or ["no message"])[-1]}


def make_inputs(source: Path, folder: Path, photo: Path | None, photos: Path | None) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    from synthetic_world import standard_world, write_workspace

    shipped = photo or next(source.rglob("astronaut.jpg"), None)
    if shipped is None:
        sys.exit(f"{source} ships no astronaut.jpg: name a photo with --photo")
    image = cv2.imread(str(shipped))
    for name in ("photos", "hpatches/v_one", "hpatches/i_one"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if photos is None:
        cv2.imwrite(str(folder / "photos/a.png"), image)
        cv2.imwrite(str(folder / "photos/b.png"), warp(image, view(35, 0.5, 0.0002)))
        cv2.imwrite(str(folder / "photos/c.png"), cv2.convertScaleAbs(warp(image, view(-15, 0.8, -0.0003)), alpha=0.7))
    else:
        for path, name in zip(sorted(photos.iterdir()), "abcdef", strict=False):
            cv2.imwrite(str(folder / f"photos/{name}.png"), cv2.imread(str(path)))
    for number in range(1, 7):
        matrices = {"v_one": view(8 * (number - 1), 1 - 0.08 * (number - 1), 0.0001 * (number - 1)), "i_one": np.eye(3)}
        for name, matrix in matrices.items():
            light = 1 if name == "v_one" else 1 - 0.12 * (number - 1)
            picture = cv2.convertScaleAbs(warp(image, matrix), alpha=light)
            cv2.imwrite(str(folder / f"hpatches/{name}/{number}.png"), picture)
            if number > 1:
                np.savetxt(folder / f"hpatches/{name}/H_1_{number}", matrix)
    write_workspace(standard_world(0, 6, 320, 240), folder / "scene", binary=True)
    (folder / "training.toml").write_text(TRAINING)


def view(degrees: float, zoom: float, tilt: float) -> np.ndarray:
    matrix = np.vstack([cv2.getRotationMatrix2D((256, 256), degrees, zoom), [0, 0, 1]])
    return np.array([[1, 0, 0], [0, 1, 0], [tilt, 0, 1]]) @ matrix


def warp(image: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    height, width = image.shape[:2]
    return cv2.warpPerspective(image, matrix, (width, height), flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REFLECT)


def is_hash(value: Any) -> bool:
    """Whether it names a file's bytes, which hold versions and times."""
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{32,64}", value) is not None


def inputs_in(folder: Path) -> list[Path]:
    return sorted(
        path for name in ("photos", "hpatches", "scene") for path in (folder / name).rglob("*") if path.is_file()
    )


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# The public names of the package


def call_api(folder: Path) -> Found:
    import logpolar

    found: Found = {}
    first, second = folder / "photos/a.png", folder / "photos/b.png"
    detector = logpolar.SiftDetector(max_keypoints=300)
    gray = cv2.imread(str(first), cv2.IMREAD_GRAYSCALE).astype(np.float32) / 255
    keypoints = detector(gray)
    for name in ("xy", "size", "angle", "response"):
        found[f"keypoints/{name}"] = pack(getattr(keypoints, name))
    for pattern in (logpolar.LogPolar(), logpolar.Cartesian()):
        patches = logpolar.sample_patches(gray, keypoints[:50], pattern)
        found[f"patches/{type(pattern).__name__}"] = pack(patches)
    for model in logpolar.shipped_models():
        for runtime in ("onnxruntime", "openvino", "torch"):
            found |= describe(f"descriptors/{model}/{runtime}", model, runtime, detector, first)
    found |= estimate(logpolar.Extractor(detector=logpolar.SiftDetector(max_keypoints=800)), first, second)
    return found


def describe(name: str, model: str, runtime: Any, detector: Any, image: Path) -> Found:
    import logpolar

    try:
        extractor = logpolar.Extractor(model, detector, runtime=runtime, threads=1)
        return {name: pack(extractor.extract(image).descriptors)}
    except (ImportError, ValueError, logpolar.LogpolarError) as error:
        return {name: f"refused with {type(error).__name__}"}


def estimate(extractor: Any, first: Path, second: Path) -> Found:
    import logpolar

    features = [extractor.extract(path) for path in (first, second)]
    matches = logpolar.match_descriptors(features[0].descriptors, features[1].descriptors)
    a, b = (each.keypoints.xy[matches.indices[:, side]] for side, each in enumerate(features))
    camera = np.array([[500.0, 0, 256], [0, 500, 256], [0, 0, 1]])
    geometries = {
        "homography": logpolar.estimate_homography(a, b, threshold=3.0),
        "fundamental": logpolar.estimate_fundamental(a, b, threshold=3.0),
        "essential": logpolar.estimate_pose(a, b, camera, camera, threshold=1.0),
    }
    found = {"matches/indices": pack(matches.indices), "matches/distances": pack(matches.distances)}
    for name, geometry in geometries.items():
        found[f"geometry/{name}/inliers"] = pack(geometry.inliers)
        found[f"geometry/{name}/matrix"] = None if geometry.matrix is None else pack(geometry.matrix)
    return found


# What the commands wrote


def read_outputs(folder: Path) -> Iterator[tuple[str, Any]]:
    """Values by file and place in it; what a reader does not know (pictures, tables in Markdown) is left out."""
    readers: dict[str, Callable[[Path], Iterator[tuple[str, Any]]]] = {
        ".h5": read_hdf5,
        ".json": read_json,
        ".db": read_database,
        ".safetensors": read_weights,
        ".onnx": run_graph,
    }
    skipped = {*inputs_in(folder), folder / "api.json"}
    for path in sorted(folder.rglob("*")):
        if path.suffix in readers and path not in skipped and "cache" not in path.parts:
            for name, value in readers[path.suffix](path):
                text = value.replace(str(folder), "") if isinstance(value, str) else value
                yield f"{path.relative_to(folder)}/{name}", text


def read_hdf5(path: Path) -> Iterator[tuple[str, Any]]:
    with h5py.File(path) as file:
        places: list[tuple[str, Any]] = [("", file)]
        file.visititems(lambda name, item: places.append((name, item)))
        for name, item in places:
            if isinstance(item, h5py.Dataset):
                yield from from_json(name, value_of(item[()]))
            for key, value in item.attrs.items():
                yield from from_json(f"{name}@{key}", value_of(value))


def value_of(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return [each.decode() if isinstance(each, bytes) else str(each) for each in value.ravel()]
    return pack(value) if isinstance(value, np.ndarray) else value.item() if isinstance(value, np.generic) else value


def from_json(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A text that is JSON, key by key."""
    try:
        yield from flatten(name, json.loads(value) if isinstance(value, str) else value)
    except ValueError:
        yield name, value


def flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and "zlib" not in value:
        for key, inner in value.items():
            yield from flatten(f"{name}/{key}", inner)
    else:
        yield name, value


def read_json(path: Path) -> Iterator[tuple[str, Any]]:
    content = json.loads(path.read_text())
    yield from flatten("", dict(enumerate(content)) if isinstance(content, list) else content)


def read_database(path: Path) -> Iterator[tuple[str, Any]]:
    connection = sqlite3.connect(path)
    tables = [
        name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    ]
    for table in tables:
        rows = connection.execute(f"SELECT * FROM {table}").fetchall()
        plain = [
            [hashlib.sha256(each).hexdigest() if isinstance(each, bytes) else each for each in row] for row in rows
        ]
        yield table, sorted(plain, key=str)
    connection.close()


def read_weights(path: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            yield name, pack(file.get_tensor(name))
        for key, value in file.metadata().items():
            if key != "graph":  # its writer names versions; run_graph looks at what graphs compute
                yield from from_json(key, value)


def run_graph(path: Path) -> Iterator[tuple[str, Any]]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    ranges = {"image": (0, 1), "patches": (0, 1), "xy": (20, 200), "size": (2, 20), "angle": (0, 360)}
    inputs = {}
    for each in session.get_inputs():
        shape = [side if isinstance(side, int) else 240 if each.name == "image" else 40 for side in each.shape]
        inputs[each.name] = random.uniform(*ranges.get(each.name, (0, 1)), shape).astype(np.float32)
    for output, value in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        yield output.name, pack(value)


# Comparison


def pack(array: Any) -> Found:
    array = np.ascontiguousarray(array)
    data = base64.b64encode(zlib.compress(array.tobytes())).decode()
    return {"dtype": str(array.dtype), "shape": list(array.shape), "zlib": data}


def unpack(value: Found) -> np.ndarray:
    data = zlib.decompress(base64.b64decode(value["zlib"]))
    return np.frombuffer(data, value["dtype"]).reshape(value["shape"])


def compare(first: Found, second: Found, tolerance: float) -> int:
    differences = defaultdict(list)
    for name in sorted({*first, *second}):
        if name not in first or name not in second:
            text = f"only in the {'first' if name in first else 'second'}"
        else:
            text = difference(first[name], second[name], tolerance)
        if text:
            differences[name.split("/")[0]].append(f"{name}: {text}")
    for section, lines in differences.items():
        print(f"{section}: {len(lines)} differences")
        for line in lines[:SHOWN]:
            print(f"  {line}")
    count = sum(map(len, differences.values()))
    print(f"{count} of {len({*first, *second})} values differ")
    return int(count > 0)


def difference(one: Any, other: Any, tolerance: float) -> str:
    """In words, empty where there is none."""
    if one == other:
        return ""
    if isinstance(one, dict) and isinstance(other, dict):
        if (one["dtype"], one["shape"]) != (other["dtype"], other["shape"]):
            return f"{one['dtype']} {one['shape']} against {other['dtype']} {other['shape']}"
        ours, theirs = unpack(one), unpack(other)
        if not np.issubdtype(ours.dtype, np.number):
            return f"{np.count_nonzero(ours != theirs)} of {ours.size} entries differ"
        apart = np.nan_to_num(np.abs(ours.astype(float) - theirs.astype(float)))
        return f"up to {apart.max():.2g}, {np.mean(apart > 0):.1%} of entries" if apart.max() > tolerance else ""
    numbers = all(isinstance(each, int | float) for each in (one, other))
    if numbers and abs(one - other) <= tolerance:
        return ""
    return f"{short(one)} against {short(other)}"


def short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else text[:77] + "..."


if __name__ == "__main__":
    sys.exit(main())
