"""What all benchmarks share: the machine, the versions, where results go."""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from logpolar.images import to_gray
from logpolar.keypoints import Keypoints
from logpolar.models.runtimes.processor import CAP, prepare_openvino

RESULTS = Path(__file__).parent / "results"


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def machine(*packages: str) -> dict[str, Any]:
    if "openvino" in packages:
        prepare_openvino("int8")  # also for the processes that are started after this
    return {
        "processor": processor(),
        "instruction_set": os.environ.get(CAP, "highest"),  # that oneDNN may use
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": {package: metadata.version(package) for package in packages},
    }


def save(name: str, result: dict[str, Any]) -> None:
    about = machine("logpolar", "numpy", "opencv-python-headless", "onnxruntime", "h5py")
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": about, **result}, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    print(f"wrote {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")


def save_section(name: str, section: str, result: dict[str, Any]) -> None:
    """One section of a result file that several runs fill, with the machine it was measured on."""
    path = RESULTS / f"{name}.json"
    document = json.loads(path.read_text()) if path.exists() else {}
    about = machine("logpolar", "numpy", "opencv-python-headless", "onnxruntime", "h5py")
    document[section] = {"machine": about, **result}
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps({section: result}, indent=2))


def large_photo(width: int, height: int) -> np.ndarray:
    """A detailed 8 bit picture of any size: the shipped photo mirrored side by side, with fine noise."""
    from logpolar.viewing.demo import demo_pair

    gray = to_gray(demo_pair().first)
    tile = np.block([[gray, gray[:, ::-1]], [gray[::-1], gray[::-1, ::-1]]])
    rows, columns = -(-height // tile.shape[0]), -(-width // tile.shape[1])
    picture = np.tile(tile, (rows, columns))[:height, :width]
    noise = np.random.default_rng(0).normal(0, 0.02, picture.shape)
    return np.rint(np.clip(picture + noise, 0, 1) * 255).astype(np.uint8)


def random_keypoints(count: int, width: int, height: int) -> Keypoints:
    """All over the image, with sizes like SIFT's: median 4 px, 1 % above 16 px."""
    random = np.random.default_rng(0)
    return Keypoints.from_points(
        random.uniform((0, 0), (width, height), (count, 2)),
        np.exp(random.normal(1.4, 0.6, count)),
        random.uniform(0, 360, count),
    )
