"""Writing correspondence files; their layout is described in ``files``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.correspondences import PAIR_CAUSES, Correspondences
from logpolar.datasets.files import PARTS, CorrespondenceFile
from logpolar.geometry.cameras import Camera
from logpolar.keypoints import Keypoints
from logpolar.storage.hdf5 import Hdf5Writer
from logpolar.types import FloatArray

IMAGE_CAUSES = ("no depth", "other views disagree", "depth edge")
"""Why a keypoint has no depth: the first that applies."""


@dataclass(frozen=True, eq=False)
class ImageRecord:
    """An image as it goes into the file."""

    name: str
    part: str
    size: tuple[int, int]  # width, height
    keypoints: Keypoints
    data: bytes = b""  # encoded; empty if ``path`` says where the image is
    path: str = ""  # relative to the file's folder
    depth: FloatArray | None = None  # (N,) of the keypoints
    depth_picture: bytes = b""
    rejects: Mapping[str, int] = field(default_factory=dict)
    camera: Camera | None = None  # of a scene's image


@dataclass(frozen=True, eq=False)
class PairRecord:
    """The correspondences of two images of the file, by name."""

    first: str
    second: str
    found: Correspondences
    rejects: Mapping[str, int]


class CorrespondenceWriter(Hdf5Writer):
    """Adds images and pairs to a correspondence file; see ``Hdf5Writer`` for what happens in a crash."""

    reader = CorrespondenceFile

    def __init__(self, path: str | Path, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        self.images: dict[str, int] = {}  # name -> number
        self.pairs: set[tuple[str, str]] = set()
        self.complete = False
        super().__init__(path, settings, overwrite)

    def _start(self, file: Any) -> None:
        _create_tables(file)

    def _difference(self, key: str, before: Any, now: Any) -> str:
        if key == "images_hash":
            return "of other images, or they have changed since"
        return super()._difference(key, before, now)

    def _resume(self, file: CorrespondenceFile) -> None:
        self.images = {entry.name: number for number, entry in enumerate(file.images)}
        self.pairs = {(file.images[a].name, file.images[b].name) for a, b in file.pair_images.tolist()}
        self.complete = file.complete

    def add(self, images: Sequence[ImageRecord], pairs: Sequence[PairRecord]) -> None:
        """Add images, and pairs of these or earlier ones; all of it is in the file, for good, when this returns."""
        numbers = self.images | {record.name: len(self.images) + row for row, record in enumerate(images)}

        def write(file: Any) -> None:
            _append_images(file, images)
            _append_pairs(file, pairs, numbers)

        self._add(write)
        self.images = numbers
        self.pairs.update((record.first, record.second) for record in pairs)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Declare the file complete; ``summary`` is for people: versions, what was left out; counts are added."""

        def write(file: Any) -> None:
            counts = {table: len(next(iter(file[table].values()))) for table in _COLUMNS}
            file["summary"][()] = json.dumps({"counts": counts, **summary})
            file.attrs["complete"] = True

        self._add(write)
        self.complete = True


_UNITS = {
    "keypoints/xy": 0.01,
    "keypoints/size": 0.01,
    "keypoints/angle": 0.01,
    "keypoints/response": 0.0001,
    "correspondences/warp": 0.001,
    "correspondences/log_scale_ratio": 0.001,
    "correspondences/angle_residual": 0.01,
}
"""Columns that are kept as whole multiples of a unit."""

_MOST_UNITS = 2**31 - 1

_TEXT = h5py.string_dtype()

_COLUMNS: dict[str, dict[str, tuple[Any, tuple[int, ...]]]] = {
    "images": {
        "name": (_TEXT, ()),
        "path": (_TEXT, ()),
        "part": (np.uint8, ()),
        "size": (np.int32, (2,)),
        "keypoints": (np.int64, (2,)),
        "data": (np.int64, (2,)),
        "depth": (np.int64, (2,)),
        "rejects": (np.int32, (len(IMAGE_CAUSES),)),
        "camera": (np.float64, (3, 7)),
    },
    "keypoints": {
        "xy": (np.int32, (2,)),
        "size": (np.int32, ()),
        "angle": (np.int32, ()),
        "response": (np.int32, ()),
        "depth": (np.float32, ()),
    },
    "pairs": {
        "images": (np.int32, (2,)),
        "correspondences": (np.int64, (2,)),
        "rejects": (np.int32, (len(PAIR_CAUSES),)),
    },
    "correspondences": {
        "keypoints": (np.int32, (2,)),
        "warp": (np.int32, (2, 2)),
        "log_scale_ratio": (np.int32, ()),
        "angle_residual": (np.int32, ()),
    },
}
_ABOUT = {
    "images/part": ", ".join(f"{number}: {part}" for number, part in enumerate(PARTS)),
    "images/size": "width, height in pixels",
    "images/path": "of an image that is not inside, relative to this file's folder",
    "images/keypoints": "first row and end in keypoints",
    "images/data": "first byte and end in bytes: the encoded image",
    "images/camera": "[matrix | rotation | translation], X camera = rotation X + translation; NaN: not known",
    "images/depth": "first byte and end in bytes: a picture of the depth; 0: unknown, otherwise nearer is brighter",
    "keypoints/xy": "pixels; the centre of the top-left pixel is (0, 0)",
    "keypoints/size": "diameter in pixels, 2 sigma",
    "keypoints/angle": "degrees, clockwise on the screen, from the x axis",
    "keypoints/depth": "along the camera's axis, in units of the reconstruction; NaN: unknown",
    "pairs/images": "rows of the first and the second image",
    "pairs/correspondences": "first row and end in correspondences",
    "correspondences/keypoints": "of the first and of the second image, counted from the image's first keypoint",
    "correspondences/warp": "d (second x, y) / d (first x, y)",
    "correspondences/log_scale_ratio": "ln(size in the second image / size that the warp predicts there)",
    "correspondences/angle_residual": "degrees: angle in the second image less the angle that the warp predicts",
}
"""What columns hold, for those who open a file without this library."""

_CHUNK_ROWS = {"images": 256, "keypoints": 4096, "pairs": 256, "correspondences": 2048}


def _create_tables(file: Any) -> None:
    file.attrs["complete"] = False
    file.create_dataset("summary", data="{}", dtype=h5py.string_dtype())
    file.create_dataset("bytes", (0,), np.uint8, maxshape=(None,), chunks=(1 << 16,), fletcher32=True)
    for table, columns in _COLUMNS.items():
        for name, (kind, shape) in columns.items():
            options: dict[str, Any] = {"chunks": (_CHUNK_ROWS[table], *shape), "maxshape": (None, *shape)}
            if kind is not _TEXT:
                options |= {"compression": "gzip", "shuffle": True, "fletcher32": True}
            column = file.create_dataset(f"{table}/{name}", (0, *shape), kind, **options)
            if f"{table}/{name}" in _ABOUT:
                column.attrs["about"] = _ABOUT[f"{table}/{name}"]
            if f"{table}/{name}" in _UNITS:
                column.attrs["scale_factor"] = _UNITS[f"{table}/{name}"]
    file["images/rejects"].attrs["causes"] = list(IMAGE_CAUSES)
    file["pairs/rejects"].attrs["causes"] = list(PAIR_CAUSES)


def _append(column: Any, values: Any) -> tuple[int, int]:
    """Add rows to a column; where they start and end."""
    start, end = len(column), len(column) + len(values)
    column.resize(end, axis=0)
    if "scale_factor" in column.attrs:
        units = np.rint(np.asarray(values, np.float64) / column.attrs["scale_factor"])
        values = np.clip(units, -_MOST_UNITS, _MOST_UNITS).astype(np.int32)
    column[start:end] = values
    return start, end


def _append_rows(file: Any, table: str, rows: Mapping[str, Sequence[Any] | NDArray[Any]]) -> tuple[int, int]:
    place = (0, 0)
    for name, values in rows.items():
        place = _append(file[table][name], values)
    return place


def _append_images(file: Any, records: Sequence[ImageRecord]) -> None:
    for record in records:
        points = record.keypoints
        depth = np.full(len(points), np.nan, np.float32) if record.depth is None else record.depth
        angle = np.round(points.angle.astype(np.float64), 2) % 360  # 359.999 rounds to a full turn, which is 0
        names = ("xy", "size", "angle", "response", "depth")
        values = (points.xy, points.size, angle, points.response, depth)
        keypoints = _append_rows(file, "keypoints", dict(zip(names, values, strict=True)))
        data, picture = (
            _append(file["bytes"], np.frombuffer(each, np.uint8)) for each in (record.data, record.depth_picture)
        )
        row: dict[str, Sequence[Any]] = {
            "name": [record.name],
            "path": [record.path],
            "part": [PARTS.index(record.part)],
            "size": [record.size],
            "keypoints": [keypoints],
            "data": [data],
            "depth": [picture],
            "rejects": [[record.rejects.get(cause, 0) for cause in IMAGE_CAUSES]],
            "camera": [np.full((3, 7), np.nan) if record.camera is None else record.camera.table],
        }
        _append_rows(file, "images", row)


def _append_pairs(file: Any, records: Sequence[PairRecord], numbers: Mapping[str, int]) -> None:
    if not records:
        return
    found = [record.found for record in records]
    rows = {
        "keypoints": np.concatenate([each.indices for each in found]),
        "warp": np.concatenate([each.warp for each in found]),
        "log_scale_ratio": np.concatenate([each.log_scale_ratio for each in found]),
        "angle_residual": np.concatenate([each.angle_residual for each in found]),
    }
    start, _ = _append_rows(file, "correspondences", rows)
    ends = start + np.cumsum([len(each) for each in found])
    row = {
        "images": np.array([(numbers[record.first], numbers[record.second]) for record in records]),
        "correspondences": np.stack([np.array([start, *ends[:-1]]), ends], axis=1),
        "rejects": np.array([[record.rejects.get(cause, 0) for cause in PAIR_CAUSES] for record in records]),
    }
    _append_rows(file, "pairs", row)
