"""Descriptors on disk: computed once, scored many times.

A cache is one HDF5 file for one method on one set of images, written atomically image by image:

    /                      attributes: format, version, settings (JSON: protocol, descriptor, data, keypoints)
    /images/<name>         descriptors (N, D) float32, with the attributes digest and keypoints (N)

``<name>`` is percent-encoded, since a slash would create groups. The digest covers the image's pixels and the
keypoints: an image that has changed since is an error.

Values stay float32, so that scores with and without a cache are equal. float16 would take half the space and change
RootSIFT's rank-1 on 20 image pairs of a scene from 0.40217 to 0.40278, its FPR95 from 0.43788 to 0.43806.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.files import CorrespondenceFile
from logpolar.errors import LogpolarError, StorageError, in_words
from logpolar.images import to_gray
from logpolar.keypoints import Keypoints
from logpolar.models.describers import Describer
from logpolar.storage.arrays import Array, check, find, read
from logpolar.storage.hdf5 import FileKind, Hdf5File, Hdf5Writer
from logpolar.types import FloatArray

if TYPE_CHECKING:
    from logpolar.evaluation.descriptors.registry import Method

_DESCRIPTORS = Array(("N", "D"), "f", bounds=None)


class CacheFile(Hdf5File):
    """Reads a cache."""

    kind = FileKind("logpolar-descriptors", 1, "descriptor cache")

    def names(self) -> set[str]:
        """The encoded names of images in the file."""
        with self._damage("images"):
            names = set(find(self._file, "images") or ())
            if not all(isinstance(name, str) for name in names):  # h5py gives bytes for what is not UTF-8
                raise ValueError("has names that are not text")
            return names

    def read(self, name: str) -> tuple[str, FloatArray]:
        """The digest and the descriptors (N, D) of an image."""
        with self._damage(f"images/{name}"):
            stored = find(self._file, f"images/{name}")
            check(stored, _DESCRIPTORS, {"N": int(stored.attrs["keypoints"])})
            return str(stored.attrs["digest"]), np.asarray(read(stored, _DESCRIPTORS), np.float32)


class _CacheWriter(Hdf5Writer):
    reader = CacheFile
    advice = "delete it or choose another folder for caches"

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.names: set[str] = set()
        super().__init__(path, settings)

    def _resume(self, file: Any) -> None:
        self.names = file.names()

    def add(self, name: str, digest: str, descriptors: FloatArray) -> None:
        """Add an image, atomically."""

        def write(file: Any) -> None:
            # Empty datasets have no chunks to checksum.
            stored = file.create_dataset(f"images/{name}", data=descriptors, fletcher32=descriptors.size > 0 or None)
            stored.attrs.update(digest=digest, keypoints=len(descriptors))

        self._add(write)
        self.names.add(name)


class Uncached:
    """Describes named views, 8 bit and gray."""

    def __init__(self, describer: Describer) -> None:
        self._describer = describer

    def describe(self, key: str, view: NDArray[np.uint8], keypoints: Keypoints) -> FloatArray:
        """Descriptors (N, D) of the keypoints of the image called ``key``."""
        return self._describer.describe(to_gray(view), keypoints)


class DescriptorCache(Uncached):
    """Describes each named view once in the life of a cache file. Use it as a context manager.

    ``data``: distinguishes the images from others of the same names. ``keypoints``: the settings that determine which
    keypoints are described. A file made for anything else is refused, never overwritten. Without a folder nothing is
    cached.

    >>> with DescriptorCache(folder, method, "hpatches", data, {"keypoints": 3000}) as cache:  # doctest: +SKIP
    ...     descriptors = cache.describe("v_wall/1", view, keypoints)
    """

    def __init__(
        self, folder: Path | None, method: Method, protocol: str, data: Mapping[str, Any], keypoints: Mapping[str, Any]
    ) -> None:
        assert method.describer is not None  # methods without weights never describe
        super().__init__(method.describer)
        self._settings = {
            "protocol": protocol,
            "descriptor": method.identity,
            "data": dict(data),
            "keypoints": dict(keypoints),
        }
        self.path = folder / cache_name(protocol, method.name, self._settings) if folder is not None else None
        self._stack = ExitStack()
        self._writer: _CacheWriter | None = None

    def __enter__(self) -> DescriptorCache:
        if self.path is not None:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise LogpolarError(f"{self.path.parent}: {in_words(error)}") from error
            self._writer = self._stack.enter_context(_CacheWriter(self.path, self._settings))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        self._writer = None

    def describe(self, key: str, view: NDArray[np.uint8], keypoints: Keypoints) -> FloatArray:
        if self._writer is None:
            return super().describe(key, view, keypoints)
        name, digest = quote(key, safe=""), image_digest(view, keypoints)
        if name in self._writer.names:
            return self._read(key, name, digest)
        descriptors = np.asarray(super().describe(key, view, keypoints), np.float32)
        self._writer.add(name, digest, descriptors)
        return descriptors

    def _read(self, key: str, name: str, digest: str) -> FloatArray:
        assert self.path is not None
        with CacheFile(self.path) as file:  # closed again: the writer cannot write to a file that is open for reading
            stored, descriptors = file.read(name)
        if stored != digest:
            raise StorageError(f"{self.path}: image '{key}' or its keypoints have changed since; delete this file")
        return descriptors


def cache_name(protocol: str, descriptor: str, settings: Mapping[str, Any]) -> str:
    """Protocol, method and a hash of all settings, so that different settings have different files."""
    content = json.dumps(settings, sort_keys=True).encode()
    words = re.sub(r"[^\w.=-]+", "-", descriptor).strip("-.")[:60]
    return f"{protocol}-{words or 'descriptor'}-{hashlib.sha256(content).hexdigest()[:12]}.h5"


def image_digest(view: NDArray[np.uint8], keypoints: Keypoints) -> str:
    """Digest of the pixels, the shape, and positions, sizes and angles of the keypoints."""
    digest = hashlib.sha256(repr((view.shape, len(keypoints))).encode())
    digest.update(np.ascontiguousarray(view).data)
    digest.update(np.ascontiguousarray(keypoints.table).data)
    return digest.hexdigest()[:32]


def scene_identity(file: CorrespondenceFile) -> dict[str, str]:
    """Identity of a correspondence file, from its settings, counts and tables, without reading all of it."""
    digest = hashlib.sha256(json.dumps([file.settings, file.counts()], sort_keys=True).encode())
    digest.update(repr([(entry.name, entry.split, entry.size) for entry in file.images]).encode())
    for table, name in (("images", "keypoints"), ("images", "data"), ("pairs", "images"), ("pairs", "correspondences")):
        digest.update(np.ascontiguousarray(file.column(table, name)).astype(np.int64).tobytes())
    return {"scene": digest.hexdigest()[:32]}


def listing_identity(folder: Path, paths: list[Path]) -> dict[str, str]:
    """Identity of files in a folder: their names and sizes."""
    listing = sorted((path.relative_to(folder).as_posix(), path.stat().st_size) for path in paths)
    return {"files": hashlib.sha256(json.dumps(listing).encode()).hexdigest()[:32]}
