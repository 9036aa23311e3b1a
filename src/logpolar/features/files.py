"""Feature files: HDF5 in hloc's layout, written atomically.

Layout (names may contain ``/``, which makes nested groups):

    /                       attributes: format, version, settings (JSON: model, model_hash, detector, ...)
    /<image>/keypoints      (N, 2) float32, pixels, centre of the top-left pixel is (0, 0)
    /<image>/descriptors    (128, N) float32, one column a keypoint
    /<image>/scores         (N,) float32, the detector's response
    /<image>/sizes          (N,) float32, diameter in pixels
    /<image>/angles         (N,) float32, degrees, clockwise
    /<image>/image_size     (2,) int32: width, height

The same file may hold matches, see ``logpolar.matching.files``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from logpolar.errors import StorageError
from logpolar.features.features import Features
from logpolar.images import fitted_size
from logpolar.keypoints import MAX_SIZE, Keypoints
from logpolar.storage.arrays import Array, find
from logpolar.storage.hdf5 import FileKind, Hdf5File, Hdf5Writer, in_other_words

HLOC_SCHEMA = {
    "keypoints": Array(("N", 2)),
    "descriptors": Array(("D", "N"), bounds=(-1e6, 1e6)),
    "scores": Array(("N",), bounds=None, optional=True),
    "scales": Array(("N",), bounds=(0, MAX_SIZE), optional=True),
    "oris": Array(("N",), optional=True),
    "image_size": Array((2,), bounds=(1, 2**31 - 1)),
}
"""The arrays of an image in a file of hloc."""

SCHEMA = {
    **{key: HLOC_SCHEMA[key] for key in ("keypoints", "descriptors", "image_size")},
    "scores": Array(("N",), bounds=None),
    "sizes": Array(("N",), bounds=(0, MAX_SIZE)),
    "angles": Array(("N",)),
}
"""The arrays of an image in a file of ours."""

_MAX_DEPTH = 100
"""Most folders in an image's name; HDF5 takes minutes for thousands."""


class FeatureFile(Hdf5File):
    """Reads a feature file.

    >>> with FeatureFile("features.h5") as file:              # doctest: +SKIP
    ...     features = file.read("photo.jpg")
    """

    kind = FileKind("logpolar-features", 1, "feature file")

    schema = SCHEMA

    def __init__(self, path: str | Path) -> None:
        self._lengths: dict[str, int] = {}  # D, once known: all images share it
        super().__init__(path)

    def names(self) -> list[str]:
        """The images in the file, sorted."""
        with self._damage("the list of images"):
            return image_names(self._file)

    def read(self, name: str) -> Features:
        found = self._read_image(name, *self.schema)
        width, height = found["image_size"].tolist()
        descriptors = np.ascontiguousarray(found["descriptors"].T, np.float32)
        size = int(width), int(height)
        return Features(self._keypoints(found), descriptors, size, self._scale(size))

    def _scale(self, size: tuple[int, int]) -> float:
        """``Features.scale`` of an image, from the limits of size in the settings."""
        limits = (self.settings.get(key) for key in ("max_size", "min_size"))
        fitted = fitted_size(size, *(limit if isinstance(limit, int) and limit > 0 else None for limit in limits))
        return max(fitted[0] / size[0], fitted[1] / size[1])

    def _keypoints(self, found: Mapping[str, NDArray[Any]]) -> Keypoints:
        return Keypoints(*(found[key] for key in ("keypoints", "sizes", "angles", "scores")))

    def count(self, name: str) -> int:
        """How many keypoints an image has."""
        return len(self._read_image(name, "keypoints")["keypoints"])

    def image_size(self, name: str) -> tuple[int, int]:
        """An image's width and height."""
        width, height = self._read_image(name, "image_size")["image_size"].tolist()
        return int(width), int(height)

    def _read_image(self, name: str, *keys: str) -> dict[str, NDArray[Any]]:
        with self._damage(f"{name}/keypoints"):
            if find(self._file, f"{name}/keypoints") is None:
                raise StorageError(f"{self.path}: no image '{name}' in this file")
        lengths = dict(self._lengths)
        found = self._arrays(name, {key: self.schema[key] for key in keys}, lengths)
        self._lengths = {"D": lengths["D"]} if "D" in lengths else {}
        return found


def image_names(file: Any) -> list[str]:
    """Groups of an open HDF5 file that hold keypoints, sorted."""
    found: list[str] = []

    def visit(name: str, item: Any) -> None:
        if name.count("/") > _MAX_DEPTH:
            raise ValueError(f"groups nested more than {_MAX_DEPTH} deep")
        image, _, last = name.rpartition("/")
        if last == "keypoints" and isinstance(item, h5py.Dataset):
            found.append(image)

    file.visititems(visit)
    return sorted(found)


class FeatureWriter(Hdf5Writer):
    """Adds images to a feature file, one transaction each; see ``Hdf5Writer``."""

    reader = FeatureFile

    def __init__(self, path: str | Path, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        self.finished: set[str] = set()
        super().__init__(path, settings, overwrite)

    def _difference(self, key: str, before: Any, now: Any) -> str:
        return difference(key, before, now)

    def _resume(self, file: FeatureFile) -> None:
        self.finished = set(file.names())

    def add(self, name: str, features: Features) -> None:
        """Add an image; on return it is safely in the file."""
        self.add_many({name: features})

    def add_many(self, found: Mapping[str, Features]) -> None:
        """Add images in one transaction."""

        def write(file: Any) -> None:
            for name, features in found.items():
                _write_features(file, name, features)

        self._add(write)
        self.finished.update(found)


def difference(key: str, before: Any, now: Any) -> str:
    """A changed setting of features in words, to follow "was made"."""
    if key == "model_hash":
        from logpolar.models import load_model, shipped_models  # reading features loads no models

        for name in shipped_models():
            if load_model(name).digest == before:
                return f"with the model now called {name}, whose descriptors do not match those of this one"
    return in_other_words(key, before, now)


def _group_of(file: Any, name: str) -> Any:
    """The group of an image, without arrays. A folder may be called as another image, but not as an array of it."""
    above = [parent.as_posix() for parent in PurePosixPath(name).parents if parent.name]
    if any(isinstance(file.get(parent), h5py.Dataset) for parent in above):
        raise StorageError(f"'{name}' lies in a folder called as an array of another image; rename the folder")
    group = file.require_group(name)
    for key in SCHEMA:
        if isinstance(group.get(key), h5py.Group):
            raise StorageError(f"the folder '{name}/{key}' is called as an array of the image '{name}'; rename one")
        if key in group:
            del group[key]  # and nothing else: there may be other images
    return group


def _write_features(file: Any, name: str, features: Features) -> None:
    group = _group_of(file, name)
    keypoints = features.keypoints
    group.create_dataset("keypoints", data=keypoints.xy).attrs["uncertainty"] = 1.0
    group["descriptors"] = np.ascontiguousarray(features.descriptors.T)
    group["scores"], group["sizes"], group["angles"] = keypoints.response, keypoints.size, keypoints.angle
    group["image_size"] = np.array(features.image_size, np.int32)
