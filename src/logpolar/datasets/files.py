"""Correspondence files: HDF5, one per scene, with random access by pair in constant time.

Layout: four tables of columns of equal length, and the bytes of the images. ``columns.COLUMNS`` declares the columns;
their attribute ``about`` says what they hold.

    /                 attributes: format, version, settings (JSON), complete
    /summary          JSON: counts, versions, images left out with the reason
    /images           name, path, part (the split), size, keypoints, data, depth, rejects, camera
    /keypoints        xy, size, angle, response, depth
    /pairs            images, correspondences, rejects
    /correspondences  keypoints, warp, log_scale_ratio, angle_residual
    /bytes            encoded images (JPEG, PNG) and depth pictures (PNG)

An image that is not embedded has an empty range in ``data`` and its path, relative to the file's folder, in ``path``.
``rejects`` has the attribute ``causes``. Integer columns with the attribute ``scale_factor`` are to be multiplied by it
(positions are kept to 1/100 px), as in the CF conventions. All numeric columns and the bytes have checksums. An
unfinished file has ``complete = False``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.columns import COLUMNS, SPLITS
from logpolar.datasets.correspondences import Correspondences, ImagePair
from logpolar.errors import StorageError
from logpolar.geometry.cameras import Camera, Matrix
from logpolar.images import decode_gray, read_downscaled, to_bytes
from logpolar.keypoints import Keypoints
from logpolar.storage.arrays import Array, check, find, read
from logpolar.storage.hdf5 import FileKind, Hdf5File
from logpolar.types import FloatArray

Bytes = NDArray[np.uint8]

_DECLARED = {
    **{name: column.declared for name, column in COLUMNS.items()},
    "bytes": Array(("N",), "u"),
    "summary": Array((), "T", None),
}


@dataclass(frozen=True)
class ImageEntry:
    """Row of the table of images."""

    name: str
    split: str
    size: tuple[int, int]  # width, height


class CorrespondenceFile(Hdf5File):
    """Reads a correspondence file; ``len`` is the number of image pairs.

    >>> with CorrespondenceFile("scene.h5") as file:                                     # doctest: +SKIP
    ...     for number in file.pairs("train"):
    ...         pair = file.read(number)
    """

    kind = FileKind("logpolar-correspondences", 2, "correspondence file")

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._lengths: dict[str, dict[str, int]] = {}  # of each table
        self._columns: dict[str, Any] = {}  # checked
        try:
            self._read_tables()
        except BaseException:
            self.close()
            raise
        self._image = lru_cache(maxsize=4)(self._read_image)  # a run of pairs of one image decodes it once

    def _read_tables(self) -> None:
        """Read the small tables: images and pairs."""
        with self._damage("the list of images"):
            self.complete = bool(self._file.attrs["complete"])
            self.summary = dict(json.loads(str(read(self._column("summary"), _DECLARED["summary"]))))
            if not all(isinstance(self.summary.get(key, {}), dict) for key in ("left_out", "image_pairs_rejected")):
                raise TypeError("the summary's counts are not tables")
            self._causes = [self._column(f"{table}/rejects").attrs["causes"].tolist() for table in ("images", "pairs")]
        names, splits = self.column("images", "name").tolist(), self.column("images", "part").tolist()
        sizes = self.column("images", "size").tolist()
        ranges = ("images/keypoints", "images/data", "images/depth", "pairs/correspondences")
        self._ranges = {name: self.column(*name.split("/")) for name in ranges}
        self._cameras: Matrix = self.column("images", "camera")
        self.pair_images: NDArray[np.int32] = self.column("pairs", "images")
        entries = zip(names, splits, sizes, strict=True)
        self.images = [ImageEntry(name, SPLITS[split], (size[0], size[1])) for name, split, size in entries]
        self._check_tables()

    def _check_tables(self) -> None:
        """Raise unless ranges and indices are within the tables they refer to."""
        ends = {"images/keypoints": "keypoints/size", "images/data": "bytes", "images/depth": "bytes"}
        for name, target in {**ends, "pairs/correspondences": "correspondences/keypoints"}.items():
            ranges = self._ranges[name]
            with self._damage(target):
                length = len(self._column(target))
            if len(ranges) and not ((np.diff(ranges) >= 0).all() and 0 <= ranges.min() <= ranges.max() <= length):
                raise self._damaged(name)
        if not ((self.pair_images >= 0) & (self.pair_images < len(self.images))).all():
            raise self._damaged("pairs/images")

    def _damaged(self, what: str) -> StorageError:
        return StorageError(f"{self.path}: this correspondence file is damaged ({what})")

    def __len__(self) -> int:
        return len(self.pair_images)

    def pairs(self, split: str | None = None) -> list[int]:
        """Numbers of the pairs of a split (train, validation, test), or of all."""
        if split not in (None, *SPLITS):
            raise ValueError(f"a split is one of {', '.join(SPLITS)}, not {split}")
        return [n for n, (first, _) in enumerate(self.pair_images) if split in (None, self.images[first].split)]

    @property
    def correspondence_rows(self) -> NDArray[np.int64]:
        """(P, 2): start and end of each pair's correspondences."""
        return self._ranges["pairs/correspondences"]

    def groups(self) -> list[str]:
        """Group of each pair. Pairs of a group, in other files too, may show the same scene, photo or camera's view."""
        source = str(self.settings.get("images_hash", self.path.resolve()))
        if self.settings.get("source") not in ("homographies", "aligned"):
            return [source] * len(self)
        names = [entry.name.rsplit("#", 1)[0] for entry in self.images]
        pairs = [(names[first], names[second]) for first, second in self.pair_images.tolist()]
        component = connected_components(pairs)
        return [f"{source}/{component[first]}" for first, _ in pairs]

    def read(self, pair: int) -> ImagePair:
        """The two images, their keypoints and correspondences."""
        first, second = self.pair_images[pair].tolist()
        here, there = self.read_keypoints(first), self.read_keypoints(second)
        found = self.read_correspondences(pair, (here, there))
        return ImagePair(self.read_image(first), self.read_image(second), here, there, found)

    def read_correspondences(self, pair: int, keypoints: tuple[Keypoints, Keypoints] | None = None) -> Correspondences:
        """Correspondences of a pair; ``keypoints`` of both images, if already read."""
        first, second = self.pair_images[pair].tolist()
        here, there = keypoints or (self.read_keypoints(first), self.read_keypoints(second))
        names = ("keypoints", "warp", "log_scale_ratio", "angle_residual")
        indices, warp, ratio, residual = self._rows("pairs/correspondences", pair, "correspondences", names)
        if not ((indices >= 0) & (indices < (len(here), len(there)))).all():
            raise self._damaged(f"pair {pair} names keypoints that are not there")
        return Correspondences(here[indices[:, 0]], there[indices[:, 1]], indices, warp, ratio, residual)

    def read_keypoints(self, image: int) -> Keypoints:
        return Keypoints(*self._rows("images/keypoints", image, "keypoints", ("xy", "size", "angle", "response")))

    def read_depths(self, image: int) -> FloatArray:
        """Depths of an image's keypoints; NaN where unknown."""
        return self._rows("images/keypoints", image, "keypoints", ("depth",))[0]

    def read_camera(self, image: int) -> Camera | None:
        """The camera of a scene's image, for the pixels of the stored image; None for views of photos."""
        table = self._cameras[image]
        return Camera.from_table(*self.images[image].size, table.copy()) if np.isfinite(table).all() else None

    def read_image(self, image: int) -> Bytes:
        """The 8-bit gray image that keypoints were detected in."""
        return np.array(self._image(image))

    def _read_image(self, image: int) -> Bytes:
        data, entry = self._read_bytes("images/data", image), self.images[image]
        pixels = self._decode(data, image) if len(data) else self._read_file(image)
        if pixels.shape != entry.size[::-1]:
            now = f"{pixels.shape[1]} x {pixels.shape[0]}, not {entry.size[0]} x {entry.size[1]}"
            raise StorageError(f"{self.path}: the image '{entry.name}' has {now} pixels; was it changed?")
        return pixels

    def _read_file(self, image: int) -> Bytes:
        """Read an image that is not embedded."""
        with self._damage("the paths of images"):
            path = self.path.resolve().parent / str(self._read("images/path", slice(image, image + 1))[0])
        return to_bytes(read_downscaled(path, max(self.images[image].size))[0])

    def read_depth_picture(self, image: int) -> Bytes | None:
        """A small picture of the depth used: nearer is brighter, 0 is unknown; None without depth."""
        data = self._read_bytes("images/depth", image)
        return self._decode(data, image) if len(data) else None

    def rejects(self) -> dict[str, int]:
        """Number of keypoints without a correspondence by cause, in the order of the checks.

        Causes of images count each keypoint once, those of pairs each keypoint of the first image.
        """
        columns = [self.column(table, "rejects") for table in ("images", "pairs")]
        with self._damage("the rejects"):
            totals = np.concatenate([column.sum(axis=0) for column in columns])
            return dict(zip([*self._causes[0], *self._causes[1]], totals.tolist(), strict=True))

    def counts(self) -> dict[str, int]:
        """Numbers of images, keypoints, pairs, pairs with correspondences, and correspondences."""
        per_pair = np.diff(self._ranges["pairs/correspondences"], axis=1)
        return {
            "images": len(self.images),
            "keypoints": len(self.column("keypoints", "size")),
            "pairs": len(self),
            "pairs_with_correspondences": int((per_pair > 0).sum()),
            "correspondences": int(per_pair.sum()),
        }

    def column(self, table: str, name: str) -> NDArray[Any]:
        """A whole column, for statistics."""
        return self._read(f"{table}/{name}", slice(None))

    def _rows(self, range_name: str, number: int, table: str, names: Sequence[str]) -> list[NDArray[Any]]:
        start, end = self._ranges[range_name][number].tolist()
        return [self._read(f"{table}/{name}", slice(start, end)) for name in names]

    def _column(self, name: str) -> Any:
        """A column, open; checked on first use."""
        if name not in self._columns:
            column = find(self._file, name)
            check(column, _DECLARED[name], self._lengths.setdefault(name.rpartition("/")[0], {}))
            self._columns[name] = column
        return self._columns[name]

    def _read(self, name: str, rows: slice) -> NDArray[Any]:
        """Rows of a column; those with a scale factor as float32."""
        with self._damage(name):
            column = self._column(name)
            values, factor = read(column, _DECLARED[name], rows), float(column.attrs.get("scale_factor", 0))
            if not 0 <= factor < 1:
                raise ValueError(f"has the scale factor {factor}")
            return (values * factor).astype(np.float32) if factor else values

    def _read_bytes(self, range_name: str, image: int) -> Bytes:
        start, end = self._ranges[range_name][image].tolist()
        return self._read("bytes", slice(start, end))

    def _decode(self, data: Bytes, image: int) -> Bytes:
        with self._damage(f"the image '{self.images[image].name}'"):
            return decode_gray(data)


def connected_components(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names that occur in pairs, each with the representative of its connected component."""
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            name = parent[name]
        return name

    for first, second in pairs:
        here, there = root(first), root(second)
        parent[there] = here
    return {name: root(name) for name in list(parent)}


def file_names(files: Sequence[Path]) -> list[str]:
    """Names of files for tables: their stems, prefixed by the folder where two are equal."""
    count = Counter(path.stem for path in dict.fromkeys(files))
    return [path.stem if count[path.stem] == 1 else f"{path.parent.name}/{path.stem}" for path in files]
