"""Writer of correspondence files; ``files`` describes their layout."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.columns import COLUMNS, IMAGE_CAUSES, SPLITS, TEXT
from logpolar.datasets.correspondences import PAIR_CAUSES, Correspondences
from logpolar.datasets.files import CorrespondenceFile
from logpolar.geometry.cameras import Camera
from logpolar.keypoints import Keypoints
from logpolar.storage.hdf5 import Hdf5Writer
from logpolar.types import FloatArray


@dataclass(frozen=True, eq=False)
class ImageRecord:
    """An image to be written."""

    name: str
    split: str
    size: tuple[int, int]  # width, height
    keypoints: Keypoints
    data: bytes = b""  # encoded; empty if the image stays at ``path``
    path: str = ""  # relative to the file's folder
    depth: FloatArray | None = None  # (N,) of the keypoints
    depth_picture: bytes = b""
    rejects: Mapping[str, int] = field(default_factory=dict)
    camera: Camera | None = None  # of a scene's image


@dataclass(frozen=True, eq=False)
class PairRecord:
    """Correspondences of two images, by name."""

    first: str
    second: str
    found: Correspondences
    rejects: Mapping[str, int]


class CorrespondenceWriter(Hdf5Writer):
    """Adds images and pairs to a correspondence file; crash-safe, see ``Hdf5Writer``."""

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
            return "from other images, or they have changed since"
        return super()._difference(key, before, now)

    def _resume(self, file: CorrespondenceFile) -> None:
        self.images = {entry.name: number for number, entry in enumerate(file.images)}
        self.pairs = {(file.images[a].name, file.images[b].name) for a, b in file.pair_images.tolist()}
        self.complete = file.complete

    def add(self, images: Sequence[ImageRecord], pairs: Sequence[PairRecord]) -> None:
        """Add images, and pairs of these or earlier ones, in one durable transaction."""
        numbers = self.images | {record.name: len(self.images) + row for row, record in enumerate(images)}

        def write(file: Any) -> None:
            _append_images(file, images)
            _append_pairs(file, pairs, numbers)

        self._add(write)
        self.images = numbers
        self.pairs.update((record.first, record.second) for record in pairs)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Declare the file complete; ``summary`` (versions, left out images) is for people, counts are added."""

        def write(file: Any) -> None:
            counts = {table: len(next(iter(file[table].values()))) for table in _CHUNK_ROWS}
            file["summary"][()] = json.dumps({"counts": counts, **summary})
            file.attrs["complete"] = True

        self._add(write)
        self.complete = True


_MOST_UNITS = 2**31 - 1
_CHUNK_ROWS = {"images": 256, "keypoints": 4096, "pairs": 256, "correspondences": 2048}


def _create_tables(file: Any) -> None:
    file.attrs["complete"] = False
    file.create_dataset("summary", data="{}", dtype=TEXT)
    file.create_dataset("bytes", (0,), np.uint8, maxshape=(None,), chunks=(1 << 16,), fletcher32=True)
    for name, column in COLUMNS.items():
        rows, shape = _CHUNK_ROWS[name.split("/")[0]], column.shape
        checked = {} if column.kind is TEXT else {"compression": "gzip", "shuffle": True, "fletcher32": True}
        made = file.create_dataset(
            name, (0, *shape), column.kind, chunks=(rows, *shape), maxshape=(None, *shape), **checked
        )
        if column.about:
            made.attrs["about"] = column.about
        if column.unit:
            made.attrs["scale_factor"] = column.unit
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


def _append_rows(file: Any, table: str, **columns: Sequence[Any] | NDArray[Any]) -> tuple[int, int]:
    return [_append(file[table][name], values) for name, values in columns.items()][-1]


def _spans(start: int, lengths: Iterable[int]) -> NDArray[np.int64]:
    """Start and end (N, 2) of pieces that follow one another."""
    ends = start + np.cumsum(list(lengths))
    return np.stack([np.array([start, *ends[:-1]]), ends], axis=1)


def _append_images(file: Any, records: Sequence[ImageRecord]) -> None:
    if not records:
        return
    points = [record.keypoints for record in records]
    angle = np.concatenate([each.angle for each in points]).astype(np.float64)
    depth = [
        np.full(len(record.keypoints), np.nan, np.float32) if record.depth is None else record.depth
        for record in records
    ]
    first_row, _ = _append_rows(
        file,
        "keypoints",
        xy=np.concatenate([each.xy for each in points]),
        size=np.concatenate([each.size for each in points]),
        angle=np.round(angle, 2) % 360,  # 359.999 rounds to 360, which is 0
        response=np.concatenate([each.response for each in points]),
        depth=np.concatenate(depth),
    )
    pieces = [piece for record in records for piece in (record.data, record.depth_picture)]
    first_byte, _ = _append(file["bytes"], np.frombuffer(b"".join(pieces), np.uint8))
    spans = _spans(first_byte, map(len, pieces))
    _append_rows(
        file,
        "images",
        name=[record.name for record in records],
        path=[record.path for record in records],
        part=[SPLITS.index(record.split) for record in records],
        size=[record.size for record in records],
        keypoints=_spans(first_row, map(len, points)),
        data=spans[::2],
        depth=spans[1::2],
        rejects=[[record.rejects.get(cause, 0) for cause in IMAGE_CAUSES] for record in records],
        camera=[np.full((3, 7), np.nan) if record.camera is None else record.camera.table for record in records],
    )


def _append_pairs(file: Any, records: Sequence[PairRecord], numbers: Mapping[str, int]) -> None:
    if not records:
        return
    found = [record.found for record in records]
    start, _ = _append_rows(
        file,
        "correspondences",
        keypoints=np.concatenate([each.indices for each in found]),
        warp=np.concatenate([each.warp for each in found]),
        log_scale_ratio=np.concatenate([each.log_scale_ratio for each in found]),
        angle_residual=np.concatenate([each.angle_residual for each in found]),
    )
    _append_rows(
        file,
        "pairs",
        images=np.array([(numbers[record.first], numbers[record.second]) for record in records]),
        correspondences=_spans(start, map(len, found)),
        rejects=np.array([[record.rejects.get(cause, 0) for cause in PAIR_CAUSES] for record in records]),
    )
