"""Correspondence files: HDF5, one a scene, read at random by pair in constant time.

Layout: four tables of columns of equal length, and the bytes of the images.

    /                 attributes: format, version, settings (JSON), complete
    /summary          JSON: counts, versions, what was left out
    /images           name, path, part (train, validation, test), size (I, 2: width, height), rejects (I, causes),
                      keypoints (I, 2: first row and end in /keypoints), data, depth (I, 2: first and end in /bytes),
                      camera (I, 3, 7: [matrix | rotation | translation], NaN without one)
    /keypoints        xy (K, 2), size, angle, response, depth (NaN: unknown)
    /pairs            images (P, 2), correspondences (P, 2: first row and end), rejects (P, causes)
    /correspondences  keypoints (C, 2: rows within those of the images), warp (C, 2, 2), log_scale_ratio,
                      angle_residual
    /bytes            encoded images (JPEG, PNG) and depth pictures (PNG; 0: unknown, otherwise nearer is brighter)

An image that is not inside has an empty range in ``data`` and its path, relative to the file's folder, in ``path``.
``rejects`` has the attribute ``causes``. Columns of whole numbers with the attribute ``scale_factor`` are to be
multiplied by it (positions are kept to 1/100 px), as the CF conventions have it; ``about`` says what a column holds.
All columns of numbers, and the bytes, have checksums. A file that is still being made, or whose making was stopped,
says ``complete = False``.
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

from logpolar.cameras import Camera, Matrix
from logpolar.datasets.correspondences import Correspondences, ImagePair
from logpolar.errors import ImageError, StorageError
from logpolar.hdf5 import FileKind, Hdf5File
from logpolar.images import decode_gray, read_gray, shrink, to_bytes
from logpolar.keypoints import FloatArray, Keypoints

Bytes = NDArray[np.uint8]

_DAMAGE = (KeyError, TypeError, ValueError, IndexError, AttributeError, OSError, RuntimeError)
"""What h5py and the rest make of a file whose parts are missing, of another kind, or unreadable."""

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class ImageEntry:
    """What the file's table says of an image."""

    name: str
    part: str
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
        try:
            self._read_tables()
        except StorageError:
            self.close()
            raise
        self._image = lru_cache(maxsize=4)(self._read_image)  # a run of pairs of one image decodes it once

    def _read_tables(self) -> None:
        """What is small: the tables of images and pairs."""
        try:
            self.complete = bool(self._file.attrs["complete"])
            self.summary: dict[str, Any] = json.loads(self._file["summary"].asstr()[()])
            names = self._file["images/name"].asstr()[()].tolist()
            self._causes = [self._file[table]["rejects"].attrs["causes"].tolist() for table in ("images", "pairs")]
        except _DAMAGE as error:
            raise self._damaged("the list of images") from error
        parts, sizes = self.column("images", "part").tolist(), self.column("images", "size").tolist()
        ranges = ("images/keypoints", "images/data", "images/depth", "pairs/correspondences")
        self._ranges = {name: self.column(*name.split("/")) for name in ranges}
        self._cameras: Matrix = self.column("images", "camera")
        self.pair_images: NDArray[np.int32] = self.column("pairs", "images")
        try:
            entries = zip(names, parts, sizes, strict=True)
            self.images = [ImageEntry(name, PARTS[part], (size[0], size[1])) for name, part, size in entries]
        except _DAMAGE as error:
            raise self._damaged("the list of images") from error
        self._check_tables()

    def _check_tables(self) -> None:
        """What the tables say of each other must be possible."""
        images, pairs = len(self.images), len(self.pair_images)
        ends = {"images/keypoints": "keypoints/size", "images/data": "bytes", "images/depth": "bytes"}
        for name, target in {**ends, "pairs/correspondences": "correspondences/keypoints"}.items():
            ranges, count = self._ranges[name], pairs if name.startswith("pairs") else images
            length = self._length(target)
            possible = ranges.shape == (count, 2) and (np.diff(ranges, axis=1) >= 0).all()
            if not possible or (count and not 0 <= ranges.min() <= ranges.max() <= length):
                raise self._damaged(name)
        if self.pair_images.shape != (pairs, 2) or not ((self.pair_images >= 0) & (self.pair_images < images)).all():
            raise self._damaged("pairs/images")
        if self._cameras.shape != (images, 3, 7):
            raise self._damaged("images/camera")
        if not isinstance(self.summary, dict):
            raise self._damaged("summary")

    def _length(self, name: str) -> int:
        try:
            return len(self._file[name])
        except _DAMAGE as error:
            raise self._damaged(name) from error

    def _damaged(self, what: str) -> StorageError:
        return StorageError(f"{self.path}: this correspondence file is damaged ({what})")

    def __len__(self) -> int:
        return len(self.pair_images)

    def pairs(self, part: str | None = None) -> list[int]:
        """Numbers of the pairs of a part (train, validation, test), or of all."""
        if part not in (None, *PARTS):
            raise ValueError(f"a part is one of {', '.join(PARTS)}, not {part}")
        return [n for n, (first, _) in enumerate(self.pair_images) if part in (None, self.images[first].part)]

    @property
    def correspondence_rows(self) -> NDArray[np.int64]:
        """(P, 2): first row and end of each pair among all correspondences."""
        return self._ranges["pairs/correspondences"]

    def groups(self) -> list[str]:
        """Of each pair a name; those with the same, in other files too, may show the same things: all of a scene, those
        of one photo, or those of one fixed camera."""
        source = str(self.settings.get("images_hash", self.path.resolve()))
        if self.settings.get("source") not in ("homographies", "aligned"):
            return [source] * len(self)
        names = [entry.name.rsplit("#", 1)[0] for entry in self.images]
        group = connected([(names[first], names[second]) for first, second in self.pair_images.tolist()])
        return [f"{source}/{group[names[first]]}" for first, _ in self.pair_images.tolist()]

    def read(self, pair: int) -> ImagePair:
        """The two images, their keypoints, and what corresponds."""
        first, second = self.pair_images[pair].tolist()
        here, there = self.read_keypoints(first), self.read_keypoints(second)
        found = self.read_correspondences(pair, (here, there))
        return ImagePair(self.read_image(first), self.read_image(second), here, there, found)

    def read_correspondences(self, pair: int, keypoints: tuple[Keypoints, Keypoints] | None = None) -> Correspondences:
        """Correspondences of a pair; ``keypoints`` of both images, if they were read already."""
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
        """The camera of a scene's image, in the pixels of the file's image; None of a view of a photo."""
        table = self._cameras[image]
        return Camera.from_table(*self.images[image].size, table.copy()) if np.isfinite(table).all() else None

    def read_image(self, image: int) -> Bytes:
        """The 8 bit gray image that the keypoints were found in."""
        return np.array(self._image(image))

    def _read_image(self, image: int) -> Bytes:
        data, entry = self._read_bytes("images/data", image), self.images[image]
        pixels = self._decode(data, image) if len(data) else self._read_file(image)
        if pixels.shape != entry.size[::-1]:
            now = f"{pixels.shape[1]} x {pixels.shape[0]}, not {entry.size[0]} x {entry.size[1]}"
            raise StorageError(f"{self.path}: the image '{entry.name}' has {now} pixels; was it changed?")
        return pixels

    def _read_file(self, image: int) -> Bytes:
        """An image that is not inside."""
        try:
            path = self.path.resolve().parent / self._file["images/path"].asstr()[image]
        except _DAMAGE as error:
            raise self._damaged("the paths of images") from error
        return to_bytes(shrink(read_gray(path), max(self.images[image].size)))

    def read_depth_picture(self, image: int) -> Bytes | None:
        """A small picture of the depth that was used, nearer is brighter, 0 is unknown; None without depth."""
        data = self._read_bytes("images/depth", image)
        return self._decode(data, image) if len(data) else None

    def rejects(self) -> dict[str, int]:
        """How many keypoints were left without a correspondence, by cause, in the order of the checks.

        The causes of an image count each of its keypoints once, those of a pair each keypoint of its first image.
        """
        totals = [self.column(table, "rejects").sum(axis=0).tolist() for table in ("images", "pairs")]
        try:
            return {
                c: n
                for causes, counts in zip(self._causes, totals, strict=True)
                for c, n in zip(causes, counts, strict=True)
            }
        except ValueError as error:
            raise self._damaged("the rejects") from error

    def counts(self) -> dict[str, int]:
        """Images, keypoints, pairs, pairs with a correspondence, and correspondences in the file."""
        per_pair = np.diff(self._ranges["pairs/correspondences"], axis=1)
        return {
            "images": len(self.images),
            "keypoints": len(self.column("keypoints", "size")),
            "pairs": len(self),
            "pairs_with_correspondences": int((per_pair > 0).sum()),
            "correspondences": int(per_pair.sum()),
        }

    def column(self, table: str, name: str) -> NDArray[Any]:
        """A whole column, for statistics over all correspondences or keypoints."""
        return self._read(f"{table}/{name}", slice(None))

    def _rows(self, range_name: str, number: int, table: str, names: Sequence[str]) -> list[NDArray[Any]]:
        start, end = self._ranges[range_name][number].tolist()
        return [self._read(f"{table}/{name}", slice(start, end)) for name in names]

    def _read(self, name: str, rows: slice) -> NDArray[Any]:
        """Rows of a column; multiples of a unit come out as float32."""
        try:
            column = self._file[name]
            values = np.asarray(column[rows])
            factor = column.attrs.get("scale_factor")
            return values if factor is None else (values * float(factor)).astype(np.float32)
        except _DAMAGE as error:
            raise self._damaged(name) from error

    def _read_bytes(self, range_name: str, image: int) -> Bytes:
        start, end = self._ranges[range_name][image].tolist()
        return self._read("bytes", slice(start, end))

    def _decode(self, data: Bytes, image: int) -> Bytes:
        try:
            return decode_gray(data)
        except ImageError as error:
            raise self._damaged(f"the image '{self.images[image].name}'") from error


def connected(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Of each name that occurs in a pair, the first name of all those that pairs connect it with."""
    root: dict[str, str] = {}

    def find(name: str) -> str:
        while root.setdefault(name, name) != name:
            name = root[name]
        return name

    for first, second in pairs:
        here, there = find(first), find(second)
        root[there] = here
    return {name: find(name) for name in list(root)}


def file_names(files: Sequence[Path]) -> list[str]:
    """What files are called in tables: their names, with that of the folder where two would be called the same."""
    count = Counter(path.stem for path in dict.fromkeys(files))
    return [path.stem if count[path.stem] == 1 else f"{path.parent.name}/{path.stem}" for path in files]
