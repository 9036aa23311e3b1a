"""Features and matches on disk: HDF5 in hloc's layout, safe against a crash at any moment.

Layout (names may contain ``/``, which makes nested groups):

    /                       attributes: format, version, settings (JSON: model, model_hash, detector, ...)
    /<image>/keypoints      (N, 2) float32, pixels, centre of the top-left pixel is (0, 0)
    /<image>/descriptors    (128, N) float32, one column a keypoint
    /<image>/scores         (N,) float32, the detector's response
    /<image>/sizes          (N,) float32, diameter in pixels
    /<image>/angles         (N,) float32, degrees, clockwise
    /<image>/image_size     (2,) int32: width, height
    /<image 0>/<image 1>/matches0          (N0,) int32: row in image 1, or -1      (``/`` in names becomes ``-``)
    /<image 0>/<image 1>/matching_scores0  (N0,) float32: 1 - distance / 2, or 0
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from logpolar.errors import StorageError
from logpolar.features.features import Features
from logpolar.keypoints import Keypoints
from logpolar.matching.nearest import Matches
from logpolar.storage.hdf5 import FileKind, Hdf5File, Hdf5Writer


class FeatureFile(Hdf5File):
    """Reads a feature file.

    >>> with FeatureFile("features.h5") as file:              # doctest: +SKIP
    ...     features = file.read("photo.jpg")
    """

    kind = FileKind("logpolar-features", 1, "feature file")

    def names(self) -> list[str]:
        """The images in the file, sorted."""
        found: list[str] = []

        def visit(name: str, item: Any) -> None:
            image, _, last = name.rpartition("/")
            if last == "keypoints" and isinstance(item, h5py.Dataset):
                found.append(image)

        self._file.visititems(visit)
        return sorted(found)

    def read(self, name: str) -> Features:
        group = self._group(name)
        keypoints = Keypoints(*(group[key][()] for key in ("keypoints", "sizes", "angles", "scores")))
        return Features(keypoints, np.ascontiguousarray(group["descriptors"][()].T), self.image_size(name))

    def count(self, name: str) -> int:
        """How many keypoints an image has."""
        return len(self._group(name)["keypoints"])

    def image_size(self, name: str) -> tuple[int, int]:
        """An image's width and height."""
        width, height = self._group(name)["image_size"][()].tolist()
        return int(width), int(height)

    def _group(self, name: str) -> Any:
        if f"{name}/keypoints" not in self._file:
            raise StorageError(f"{self.path}: no image '{name}' in this file")
        return self._file[name]

    def read_matches(self, first: str, second: str) -> Matches:
        name = pair_name(first, second)
        if f"{name}/matches0" not in self._file:
            raise StorageError(f"{self.path}: no matches of '{first}' and '{second}' in this file")
        return read_matches(self._file[name])


class FeatureWriter(Hdf5Writer):
    """Adds images to a feature file, one transaction each; see ``Hdf5Writer``."""

    reader = FeatureFile

    def __init__(self, path: str | Path, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        self.finished: set[str] = set()
        super().__init__(path, settings, overwrite)

    def _resume(self, file: FeatureFile) -> None:
        self.finished = set(file.names())

    def add(self, name: str, features: Features) -> None:
        """Add an image; it is in the file, for good, when this returns."""
        self._add(lambda file: _write_features(file, name, features))
        self.finished.add(name)

    def add_matches(self, first: str, second: str, count: int, matches: Matches) -> None:
        """Add the matches of two images, the first of which has ``count`` keypoints."""
        self._add(lambda file: write_matches(file, pair_name(first, second), count, matches))


def _write_features(file: Any, name: str, features: Features) -> None:
    if name in file and "keypoints" in file[name]:
        del file[name]
    group = file.require_group(name)
    keypoints = features.keypoints
    group.create_dataset("keypoints", data=keypoints.xy).attrs["uncertainty"] = 1.0
    group.create_dataset("descriptors", data=np.ascontiguousarray(features.descriptors.T))
    group.create_dataset("scores", data=keypoints.response)
    group.create_dataset("sizes", data=keypoints.size)
    group.create_dataset("angles", data=keypoints.angle)
    group.create_dataset("image_size", data=np.array(features.image_size, np.int32))


def write_matches(file: Any, name: str, count: int, matches: Matches) -> Any:
    """Put the matches of a pair into an open HDF5 file; the group that they are in."""
    partner, score = np.full(count, -1, np.int32), np.zeros(count, np.float32)
    partner[matches.indices[:, 0]] = matches.indices[:, 1]
    score[matches.indices[:, 0]] = 1 - matches.distances / 2
    if name in file:
        del file[name]
    group = file.require_group(name)
    group.create_dataset("matches0", data=partner)
    group.create_dataset("matching_scores0", data=score)
    return group


def read_matches(group: Any) -> Matches:
    """The matches of a pair from its group."""
    partner, score = group["matches0"][()], group["matching_scores0"][()]
    here = np.flatnonzero(partner >= 0)
    indices = np.stack([here, partner[here]], axis=1).astype(np.int32)
    return Matches(indices, (2 - 2 * score[here]).astype(np.float32))


def pair_name(first: str, second: str) -> str:
    """hloc's name of a pair."""
    return f"{flat_name(first)}/{flat_name(second)}"


def flat_name(image: str) -> str:
    """hloc's name of an image among matches."""
    return image.replace("/", "-")
