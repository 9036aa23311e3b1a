"""Correspondence files: HDF5, one a scene, read at random by pair in constant time.

Layout: four tables of columns of equal length, and the bytes of the images.

    /                 attributes: format, version, settings (JSON), complete, summary (JSON: counts, versions, ...)
    /images           name, part (train, validation, test), size (I, 2: width, height), rejects (I, causes),
                      keypoints (I, 2: first row and end in /keypoints), data, depth (I, 2: first and end in /bytes)
    /keypoints        xy (K, 2), size, angle, response, depth (NaN: unknown)
    /pairs            images (P, 2), correspondences (P, 2: first row and end), rejects (P, causes)
    /correspondences  keypoints (C, 2: rows within those of the images), warp (C, 2, 2), log_scale_ratio,
                      angle_residual
    /bytes            encoded images (JPEG, PNG) and depth pictures (PNG; 0: unknown, otherwise nearer is brighter)

An image that is not inside has an empty range in ``data`` and its path, relative to the file's folder, in ``path``.
``rejects`` has the attribute ``causes``. Columns are rounded (positions to 1/100 px) and packed by HDF5's scale-offset
filter. A file that is still being made, or whose making was stopped, says ``complete = False``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.correspondences import Correspondences, ImagePair
from logpolar.errors import ImageError, StorageError
from logpolar.hdf5 import FileKind, Hdf5File
from logpolar.images import decode_gray, read_gray, shrink, to_bytes
from logpolar.keypoints import FloatArray, Keypoints

Bytes = NDArray[np.uint8]

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

    kind = FileKind("logpolar-correspondences", 1, "correspondence file")

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        try:
            self.complete = bool(self._file.attrs["complete"])
            self.summary: dict[str, Any] = json.loads(self._file.attrs["summary"])
            images, pairs = self._file["images"], self._file["pairs"]
            self.images = [
                ImageEntry(name, PARTS[part], (width, height))
                for name, part, (width, height) in zip(
                    images["name"].asstr()[()].tolist(),
                    images["part"][()].tolist(),
                    images["size"][()].tolist(),
                    strict=True,
                )
            ]
            self.pair_images: NDArray[np.int32] = pairs["images"][()]
            self._ranges = {
                "keypoints": images["keypoints"][()],
                "data": images["data"][()],
                "depth": images["depth"][()],
                "correspondences": pairs["correspondences"][()],
            }
        except (KeyError, TypeError, ValueError, IndexError, OSError) as error:
            self.close()
            raise StorageError(f"{path}: this correspondence file is damaged ({error})") from error
        self.read_image = lru_cache(maxsize=4)(self._read_image)  # a run of pairs of one image decodes it once

    def __len__(self) -> int:
        return len(self.pair_images)

    def pairs(self, part: str | None = None) -> list[int]:
        """Numbers of the pairs of a part (train, validation, test), or of all."""
        if part not in (None, *PARTS):
            raise ValueError(f"a part is one of {', '.join(PARTS)}, not {part}")
        return [n for n, (first, _) in enumerate(self.pair_images) if part in (None, self.images[first].part)]

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
        columns = self._rows("correspondences", "correspondences", pair)
        indices = columns["keypoints"].astype(np.int32)
        try:
            return Correspondences(
                here[indices[:, 0]],
                there[indices[:, 1]],
                indices,
                columns["warp"].astype(np.float32),
                columns["log_scale_ratio"].astype(np.float32),
                columns["angle_residual"].astype(np.float32),
            )
        except IndexError as error:
            raise StorageError(f"{self.path}: pair {pair} names keypoints that are not in the file") from error

    def read_keypoints(self, image: int) -> Keypoints:
        columns = self._rows("keypoints", "keypoints", image)
        return Keypoints(columns["xy"], columns["size"], columns["angle"], columns["response"])

    def read_depths(self, image: int) -> FloatArray:
        """Depths of an image's keypoints; NaN where unknown."""
        return np.asarray(self._rows("keypoints", "keypoints", image)["depth"], np.float32)

    def _read_image(self, image: int) -> Bytes:
        """The 8 bit gray image that the keypoints were found in."""
        data = self._read_bytes("data", image)
        if len(data) == 0:
            path = self.path.parent / self._file["images"]["path"].asstr()[image]
            return to_bytes(shrink(read_gray(path), max(self.images[image].size)))
        return self._decode(data, image)

    def read_depth_picture(self, image: int) -> Bytes | None:
        """A small picture of the depth that was used, nearer is brighter, 0 is unknown; None without depth."""
        data = self._read_bytes("depth", image)
        return self._decode(data, image) if len(data) else None

    def rejects(self) -> dict[str, int]:
        """How many keypoints were left without a correspondence, by cause, in the order of the checks.

        The causes of an image count each of its keypoints once, those of a pair each keypoint of its first image.
        """
        counts: dict[str, int] = {}
        for table in ("images", "pairs"):
            column = self._file[table]["rejects"]
            counts |= dict(zip(column.attrs["causes"].tolist(), column[()].sum(axis=0).tolist(), strict=True))
        return counts

    def counts(self) -> dict[str, int]:
        """Images, keypoints, pairs, pairs with a correspondence, and correspondences in the file."""
        per_pair = np.diff(self._ranges["correspondences"], axis=1)
        return {
            "images": len(self.images),
            "keypoints": len(self._file["keypoints"]["size"]),
            "pairs": len(self),
            "pairs_with_correspondences": int((per_pair > 0).sum()),
            "correspondences": int(per_pair.sum()),
        }

    def column(self, table: str, name: str) -> NDArray[Any]:
        """A whole column, for statistics over all correspondences or keypoints."""
        return np.asarray(self._file[table][name][()])

    def _rows(self, table: str, range_name: str, number: int) -> dict[str, NDArray[Any]]:
        start, end = self._ranges[range_name][number].tolist()
        try:
            return {name: column[start:end] for name, column in self._file[table].items()}
        except OSError as error:
            raise StorageError(f"{self.path}: the table of {table} is damaged") from error

    def _read_bytes(self, range_name: str, image: int) -> Bytes:
        start, end = self._ranges[range_name][image].tolist()
        try:
            return np.asarray(self._file["bytes"][start:end], np.uint8)
        except OSError as error:
            raise StorageError(f"{self.path}: the image '{self.images[image].name}' is damaged") from error

    def _decode(self, data: Bytes, image: int) -> Bytes:
        try:
            return decode_gray(data)
        except ImageError as error:
            raise StorageError(f"{self.path}: the image '{self.images[image].name}' cannot be decoded") from error
