"""HDF5 files with a header that identifies them, written in transactions: a killed run never corrupts them."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import h5py
import numpy as np
from numpy.typing import NDArray

from logpolar.errors import StorageError, in_words
from logpolar.storage.arrays import Array, close, damage, open_file, opened, read_group
from logpolar.storage.atomic_io import check_place, flush

_MAX_DEPTH = 100
"""Deepest nesting of settings: deeper ones overflow the stack."""

Write: TypeAlias = Callable[[Any], None]
OpenFile = TypeVar("OpenFile", bound="Hdf5File")
OpenWriter = TypeVar("OpenWriter", bound="Hdf5Writer")


@dataclass(frozen=True)
class FileKind:
    """Identity of a file, stored in its header."""

    format: str
    version: int
    words: str  # what to call such a file in messages


class Hdf5File:
    """A file of one kind, open for reading."""

    kind: FileKind

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = open_file(self.path)
        try:
            with self._damage("its structure"):
                self.settings = self._read_settings()
        except BaseException:
            self.close()
            raise

    def __enter__(self: OpenFile) -> OpenFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        close(self._file)

    def _damage(self, what: str) -> contextlib.AbstractContextManager[None]:
        """Turns errors of reading ``what`` into a ``StorageError``."""
        return damage(self.path, self.kind.words, what)

    def _arrays(self, name: str, schema: Mapping[str, Array], lengths: dict[str, int]) -> dict[str, NDArray[Any]]:
        """The declared arrays of a group; see ``read_group``."""
        return read_group(self._file, self.path, self.kind.words, name, schema, lengths)

    def _read_settings(self) -> dict[str, Any]:
        """The settings in the header; refuses a file of another kind or version."""
        return read_header(self._file, self.path, self.kind)


def read_header(file: Any, path: Path, expected: FileKind) -> dict[str, Any]:
    """The settings in an open file's header; raises unless it is of the expected kind and version."""
    kind, version, settings = (file.attrs.get(key) for key in ("format", "version", "settings"))
    if not isinstance(kind, str) or kind != expected.format:
        raise StorageError(f"{path}: exists, but is not a logpolar {expected.words}")
    if not isinstance(version, int | np.integer) or version != expected.version:
        this = f"this logpolar reads version {expected.version}"
        raise StorageError(f"{path}: {expected.words} version {version}, but {this}")
    try:
        if max(accumulate((each in "[{") - (each in "]}") for each in settings), default=0) > _MAX_DEPTH:
            raise ValueError("settings nested too deep")
        return dict(json.loads(settings))
    except (TypeError, ValueError) as error:
        raise StorageError(f"{path}: the header of this {expected.words} is damaged") from error


class Hdf5Writer:
    """Adds to a file of the reader's kind, one transaction per call of ``_add``. Use it as a context manager.

    At any moment the path names a complete HDF5 file with everything added so far. There are two copies: an addition
    is written to the spare copy, which then replaces the file by an atomic rename; the former file becomes the spare,
    one addition behind, and catches up with the next. HDF5 readers are safe meanwhile (its locks keep the writer off
    files they have open); before copying the file with other tools, wait for the end of the run.
    """

    reader: type[Hdf5File]
    advice = "choose another output or overwrite it"  # on a file with other settings

    def __init__(self, path: str | Path, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        self.path = Path(path)
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))  # as it will be read back
        self._spare = self.path.with_name(self.path.name + ".spare")
        self._former = self.path.with_name(self.path.name + ".former")
        self._behind: list[Write] = []  # additions that the spare copy lacks
        self._lock = _Lock(self.path)
        try:
            self._drop_spare()
            if self.path.exists():
                with opened(self.path, self.reader.kind.words) as file:
                    read_header(file, self.path, self.reader.kind)  # a file of another kind is not ours to change
                if overwrite:
                    self.path.unlink()
                else:
                    self._check_existing()
        except BaseException:
            self._lock.release()
            raise
        atexit.register(self._close)  # for a process that is ended while this one waits for a library

    def __enter__(self: OpenWriter) -> OpenWriter:
        try:
            if not self.path.exists():
                self._add(self._start)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        atexit.unregister(self._close)
        self._drop_spare()
        self._lock.release()

    def _check_existing(self) -> None:
        """Resume from an existing file; refuses one with other settings."""
        with self.reader(self.path) as file:
            before, now = _flat(file.settings), _flat(self.settings)
            for key in before | now:
                if before.get(key) != now.get(key) and not _renamed(key, before, now):
                    difference = self._difference(key, before.get(key), now.get(key))
                    raise StorageError(f"{self.path}: was made {difference}; {self.advice}")
            self._resume(file)

    def _difference(self, key: str, before: Any, now: Any) -> str:
        """A changed setting in words, to follow "was made"."""
        return f"with {key} = {before}, not {now}"

    def _start(self, file: Any) -> None:
        """Initialise a new file."""

    def _resume(self, file: Any) -> None:
        """Note the content of an existing file, open with the reader."""

    def _add(self, write: Write) -> None:
        try:
            with self._open_spare() as file:
                for each in (*self._behind, write):
                    each(file)
            flush(self._spare)
            self._swap()
        except BaseException as error:
            self._spare.unlink(missing_ok=True)  # may hold half an addition; the next starts from a copy
            if isinstance(error, OSError):
                raise StorageError(f"{self.path}: cannot be written ({error})") from error
            raise
        self._behind = [write]

    def _open_spare(self) -> Any:
        if self._spare.exists():
            try:
                return h5py.File(self._spare, "a")
            except OSError:
                # A reader still has the former file open: leave it alone and start from a copy.
                self._spare.unlink()
        self._behind = []
        if self.path.exists():
            shutil.copyfile(self.path, self._spare)
            return h5py.File(self._spare, "a")
        file = h5py.File(self._spare, "w")
        kind = self.reader.kind
        file.attrs.update(format=kind.format, version=kind.version, settings=json.dumps(self.settings))
        return file

    def _swap(self) -> None:
        """Replace the file by the spare copy; with hard links, the former file becomes the spare."""
        kept = False
        with contextlib.suppress(OSError):
            self._former.hardlink_to(self.path)
            kept = True
        self._spare.replace(self.path)
        if kept:
            self._former.replace(self._spare)
        if os.name == "posix":
            flush(self.path.parent)  # the rename itself

    def _drop_spare(self) -> None:
        for path in (self._spare, self._former):
            path.unlink(missing_ok=True)


class _Lock:
    """Keeps other processes from writing the same file; released when the process ends, even if it is killed."""

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


def _renamed(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the key names a thing whose hash is next to it and has not changed."""
    content = f"{key}_hash"
    return content in before and before[content] == now.get(content)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return flat
