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

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

import h5py
import numpy as np

from logpolar.errors import StorageError, in_words
from logpolar.extraction import Features
from logpolar.keypoints import Keypoints
from logpolar.matching import Matches
from logpolar.outputs import check_place

_FORMAT, _VERSION = "logpolar-features", 1

Write: TypeAlias = Callable[[Any], None]


class FeatureFile:
    """Reads a feature file.

    >>> with FeatureFile("features.h5") as file:              # doctest: +SKIP
    ...     features = file.read("photo.jpg")
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = _open(self.path)
        try:
            self.settings = _read_settings(self._file, self.path)
        except StorageError:
            self._file.close()
            raise

    def __enter__(self) -> FeatureFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()

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
        if f"{name}/keypoints" not in self._file:
            raise StorageError(f"{self.path}: no image '{name}' in this file")
        group = self._file[name]
        keypoints = Keypoints(*(group[key][()] for key in ("keypoints", "sizes", "angles", "scores")))
        width, height = group["image_size"][()].tolist()
        return Features(keypoints, np.ascontiguousarray(group["descriptors"][()].T), (width, height))

    def read_matches(self, first: str, second: str) -> Matches:
        name = _pair_name(first, second)
        if f"{name}/matches0" not in self._file:
            raise StorageError(f"{self.path}: no matches of '{first}' and '{second}' in this file")
        partner, score = self._file[name]["matches0"][()], self._file[name]["matching_scores0"][()]
        here = np.flatnonzero(partner >= 0)
        indices = np.stack([here, partner[here]], axis=1).astype(np.int32)
        return Matches(indices, (2 - 2 * score[here]).astype(np.float32))


class FeatureWriter:
    """Adds images to a feature file, one transaction each. Use it as a context manager.

    Whatever happens, the path names a complete HDF5 file with every image that was added. There are two copies. An
    addition is written to the spare copy, which then takes the file's place by an atomic rename; the former file
    becomes the spare, one addition behind, and catches up with the next. Readers that use HDF5 are safe meanwhile (its
    locks keep the writer off what they have open); to copy the file with other tools, wait for the end of the run.
    """

    def __init__(self, path: str | Path, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        self.path = Path(path)
        self.settings = dict(settings)
        self._spare = self.path.with_name(self.path.name + ".spare")
        self._former = self.path.with_name(self.path.name + ".former")
        self._behind: list[Write] = []  # what the file has and the spare copy lacks
        self._lock = _Lock(self.path)
        try:
            self._drop_spare()
            if overwrite and self.path.exists():
                FeatureFile(self.path).close()  # raises for anything but a feature file: that is not ours to delete
                self.path.unlink()
            self.finished = self._check_existing()
        except BaseException:
            self._lock.release()
            raise

    def __enter__(self) -> FeatureWriter:
        try:
            if not self.path.exists():
                self._add(lambda file: None)
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop_spare()
        self._lock.release()

    def add(self, name: str, features: Features) -> None:
        """Add an image; it is in the file, for good, when this returns."""
        self._add(lambda file: _write_features(file, name, features))
        self.finished.add(name)

    def add_matches(self, first: str, second: str, count: int, matches: Matches) -> None:
        """Add the matches of two images, the first of which has ``count`` keypoints."""
        self._add(lambda file: _write_matches(file, _pair_name(first, second), count, matches))

    def _check_existing(self) -> set[str]:
        """Names in the file so far; refuses a file that was made with other settings."""
        if not self.path.exists():
            return set()
        with FeatureFile(self.path) as file:
            before, now = _flat(file.settings), _flat(self.settings)
            for key in before | now:
                if before.get(key) != now.get(key):
                    raise StorageError(
                        f"{self.path}: was made with {key} = {before.get(key)}, not {now.get(key)}; "
                        "choose another output or overwrite it"
                    )
            return set(file.names())

    def _add(self, write: Write) -> None:
        try:
            with self._open_spare() as file:
                for each in (*self._behind, write):
                    each(file)
            _flush(self._spare)
            self._swap()
        except OSError as error:
            raise StorageError(f"{self.path}: cannot be written ({error})") from error
        self._behind = [write]

    def _open_spare(self) -> Any:
        if self._spare.exists():
            try:
                return h5py.File(self._spare, "a")
            except OSError:
                # Somebody still reads what was the file a moment ago: leave it to them and start from a copy.
                self._spare.unlink()
        self._behind = []
        if self.path.exists():
            shutil.copyfile(self.path, self._spare)
            return h5py.File(self._spare, "a")
        file = h5py.File(self._spare, "w")
        file.attrs.update(format=_FORMAT, version=_VERSION, settings=json.dumps(self.settings))
        return file

    def _swap(self) -> None:
        """Put the spare copy in the file's place and, where the file system has hard links, keep the former file."""
        kept = False
        with contextlib.suppress(OSError):
            self._former.hardlink_to(self.path)
            kept = True
        self._spare.replace(self.path)
        if kept:
            self._former.replace(self._spare)
        if os.name == "posix":
            _flush(self.path.parent)  # the rename itself

    def _drop_spare(self) -> None:
        for path in (self._spare, self._former):
            path.unlink(missing_ok=True)


class _Lock:
    """Keeps a second process from writing the same file; released when the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        check_place(path, StorageError)
        try:
            self._file = self._path.open("w")
        except OSError as error:
            raise StorageError(f"{path}: cannot be written ({in_words(error)})") from error
        try:
            import fcntl

            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                raise OSError("the lock was released and taken again in between")
        except ImportError:  # Windows has no flock; it refuses to replace an open file instead
            pass
        except OSError as error:
            self._file.close()
            raise StorageError(f"{path}: another process is writing this file") from error

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        self._file.close()


def _open(path: Path) -> Any:
    try:
        return h5py.File(path, "r")
    except FileNotFoundError as error:
        raise StorageError(f"{path}: no such file") from error
    except OSError as error:
        raise StorageError(f"{path}: not an HDF5 file, or a damaged one; delete it or choose another") from error


def _read_settings(file: Any, path: Path) -> dict[str, Any]:
    """The settings in a feature file's header; refuses any other file."""
    kind, version, settings = (file.attrs.get(key) for key in ("format", "version", "settings"))
    if not isinstance(kind, str) or kind != _FORMAT:
        raise StorageError(f"{path}: exists, but is not a logpolar feature file")
    if version != _VERSION:
        raise StorageError(f"{path}: feature file version {version}, but this logpolar reads version {_VERSION}")
    try:
        return dict(json.loads(settings))
    except (TypeError, ValueError) as error:
        raise StorageError(f"{path}: the header of this feature file is damaged") from error


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


def _write_matches(file: Any, name: str, count: int, matches: Matches) -> None:
    partner, score = np.full(count, -1, np.int32), np.zeros(count, np.float32)
    partner[matches.indices[:, 0]] = matches.indices[:, 1]
    score[matches.indices[:, 0]] = 1 - matches.distances / 2
    if name in file:
        del file[name]
    group = file.require_group(name)
    group.create_dataset("matches0", data=partner)
    group.create_dataset("matching_scores0", data=score)


def _pair_name(first: str, second: str) -> str:
    """hloc's name of a pair."""
    return f"{first.replace('/', '-')}/{second.replace('/', '-')}"


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return flat


def _flush(path: Path) -> None:
    """Hand what a file or a folder holds to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
