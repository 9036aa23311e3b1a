"""`logpolar dataset` in tests: how it is run, with what, and files made by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from click.testing import CliRunner

from logpolar.cli import main
from logpolar.datasets.correspondences import Correspondences
from logpolar.datasets.writing import CorrespondenceWriter, ImageRecord, PairRecord
from logpolar.images import encode_gray
from logpolar.keypoints import Keypoints

PATIENCE = 60  # seconds after which a test that waits for another process gives up
IMAGES = [f"view{number}.png" for number in range(4)]
SCENE = ["--min-overlap", 0.1, "--validation", 0, "--max-keypoints", 300]
PHOTOS = ["--views", 2, "--min-side", 90, "--max-keypoints", 200, "--validation", 0.4]
COMMANDS = {"colmap": ("one", SCENE), "homographies": ("photos", PHOTOS)}
NOTHING_FOUND = "no correspondences to show"


def run(command: str, *arguments: object):
    """In this process alone, unless told otherwise."""
    jobs = [] if command == "show" or "--jobs" in arguments else ["--jobs", "1"]
    return CliRunner().invoke(main, ["dataset", command, *map(str, arguments), *jobs])


def names_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.h5*"))


def make_empty(path: Path, finish: bool = True) -> Path:
    """A file with two images and a pair that has no correspondences."""
    return make_file(path, [], finish)


def make_file(path: Path, factors: list[float], finish: bool = True) -> Path:
    """A file with a pair of images whose correspondences disagree in scale by these factors."""
    rows = np.arange(len(factors), dtype=np.int32)
    points = Keypoints.from_points(np.stack([20 * rows + 10, 20 * rows + 10], axis=1))
    data = encode_gray(np.full((64, 64), 90, np.uint8), 100)
    warp = np.tile(np.eye(2, dtype=np.float32), (len(rows), 1, 1))
    ratio = np.log(np.array(factors, np.float32))
    indices = np.stack([rows, rows], axis=1)
    found = Correspondences(points, points, indices, warp, ratio, np.zeros(len(rows), np.float32))
    with CorrespondenceWriter(path, {"source": "tests"}) as writer:
        images = [ImageRecord(name, "train", (64, 64), points, data) for name in "ab"]
        writer.add(images, [PairRecord("a", "b", found, {"occluded": 7})])
        if finish:
            writer.finish({"left_out": {"c.png": "c.png: not an image"}})
    return path
