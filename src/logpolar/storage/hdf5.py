"""HDF5 files with a header that identifies them, written in transactions: a killed run never corrupts them."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from logpolar.errors import StorageError, in_words
from logpolar.storage.arrays import Array, close, damage, open_file, opened, read_group
from logpolar.storage.atomic_io import Lock, check_place, flush
from logpolar.storage.hdf5_output import writing
from logpolar.storage.inputs import parse_json

Write: TypeAlias = Callable[[Any], None]
OpenFile = TypeVar("OpenFile", bound="Hdf5File")
OpenWriter = TypeVar("OpenWriter", bound="Hdf5Writer")
Key = TypeVar("Key")
Value = TypeVar("Value")

LUMP_SECONDS = 2.0
"""Time between writes of ``in_lumps``."""


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
        return dict(parse_json(settings))
    except (TypeError, ValueError) as error:
        raise StorageError(f"{path}: the header of this {expected.words} is damaged") from error


class Hdf5Writer:
    """Adds to a file of the reader's kind, one transaction per call of ``_add``. Use it as a context manager.

    At any moment the path names a complete HDF5 file with everything added so far. There are two copies: an addition
    is written to the spare copy, which then replaces the file by an atomic rename; the former file becomes the spare,
    one addition behind, and catches up with the next. HDF5 readers are safe meanwhile (its locks keep the writer off
    files they have open); before copying the file with other tools, wait for the end of the run.

    With ``overwrite`` all of this happens beside an existing file, which is replaced when the block ends without error.
    """

    reader: type[Hdf5File]
    advice = "choose another output or overwrite it"  # on a file with other settings

    def __init__(self, path: str | Path, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        self.path = Path(path)
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))  # as it will be read back
        check_place(self.path, StorageError)
        self._current = self.path  # the file that grows
        self._spare, self._former, self._new = (
            self.path.with_name(self.path.name + ending) for ending in (".spare", ".former", ".new")
        )
        self._behind: list[Write] = []  # additions that the spare copy lacks
        self._resumed = False
        self._is_new = False  # made by this writer, and without additions
        self._lock = Lock(self.path)
        try:
            self._drop_temporary()
            if self.path.exists():
                with opened(self.path, self.reader.kind.words) as file:
                    read_header(file, self.path, self.reader.kind)  # a file of another kind is not ours to change
                if overwrite:
                    self._current = self._new
                else:
                    self._check_existing()
        except BaseException:
            self._lock.release()
            raise
        atexit.register(self._close)  # for a process that is ended while this one waits for a library

    def __enter__(self: OpenWriter) -> OpenWriter:
        try:
            if not self._current.exists():
                self._add(self._start)
                self._is_new = True
        except BaseException:
            self._close()
            raise
        return self

    def discard(self) -> None:
        """Remove the file, which would be empty; one that was to be overwritten stays."""
        self._current.unlink()
        self._current, self._is_new = self.path, False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self._current != self.path:
                self._current.replace(self.path)
                _flush_folder(self.path)
            elif kind is not None and self._is_new:
                self._current.unlink(missing_ok=True)  # it would refuse the next run, if that has other settings
        finally:
            self._close()

    def _close(self) -> None:
        atexit.unregister(self._close)
        self._drop_temporary()
        self._lock.release()

    def _check_existing(self) -> None:
        """Resume from an existing file; refuses one with other settings."""
        with self.reader(self.path) as file:
            key, before, now = changed_setting(file.settings, self.settings)
            if key is not None:
                raise StorageError(f"{self.path}: was made {self._difference(key, before, now)}; {self.advice}")
            self._resume(file)
        self._resumed = True

    def _difference(self, key: str, before: Any, now: Any) -> str:
        """A changed setting in words, to follow "was made"."""
        return in_other_words(key, before, now)

    def _start(self, file: Any) -> None:
        """Initialise a new file."""

    def _resume(self, file: Any) -> None:
        """Note the content of an existing file, open with the reader."""

    def _add(self, write: Write) -> None:
        try:
            with self._open_spare() as file, self._earlier_damage():
                for each in (*self._behind, write):
                    each(file)
            flush(self._spare)
            self._is_new = False  # whatever happens from here on: the file may have the addition
            self._swap()
        except BaseException as error:
            self._spare.unlink(missing_ok=True)  # may hold half an addition; the next starts from a copy
            if isinstance(error, OSError):
                raise StorageError(f"{self.path}: cannot be written ({in_words(error)})") from error
            raise
        self._behind = [write]

    def _earlier_damage(self) -> contextlib.AbstractContextManager[None]:
        """An earlier file may be damaged where nothing has been read, but something is to be written."""
        return damage(self.path, self.reader.kind.words, "its structure") if self._resumed else contextlib.nullcontext()

    @contextlib.contextmanager
    def _open_spare(self) -> Iterator[Any]:
        with contextlib.ExitStack() as stack:
            if self._spare.exists():
                try:
                    file = stack.enter_context(writing(self._spare, "a"))
                except BlockingIOError:
                    # A reader still has the former file open: leave it alone and start from a copy.
                    self._spare.unlink()
            if not self._spare.exists():
                self._behind = []
                exists = self._current.exists()
                if exists:
                    shutil.copyfile(self._current, self._spare)
                file = stack.enter_context(writing(self._spare, "a" if exists else "w"))
                if not exists:
                    kind = self.reader.kind
                    file.attrs.update(format=kind.format, version=kind.version, settings=json.dumps(self.settings))
            yield file

    def _swap(self) -> None:
        """Replace the file by the spare copy; with hard links, the former file becomes the spare."""
        kept = False
        with contextlib.suppress(OSError):
            self._former.hardlink_to(self._current)
            kept = True
        self._spare.replace(self._current)
        if kept:
            self._former.replace(self._spare)
        _flush_folder(self._current)

    def _drop_temporary(self) -> None:
        for path in (self._spare, self._former, self._new):
            path.unlink(missing_ok=True)


def _flush_folder(path: Path) -> None:
    """Flush the rename of a file itself."""
    if os.name == "posix":
        flush(path.parent)


def changed_setting(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str | None, Any, Any]:
    """The first setting that differs, by its dotted name, and both values; (None, None, None) if none does."""
    before, now = _flat(before), _flat(now)
    for key in before | now:
        if before.get(key) != now.get(key) and not _renamed(key, before, now):
            return key, before.get(key), now.get(key)
    return None, None, None


def in_other_words(key: str, before: Any, now: Any) -> str:
    """A changed setting, to follow "was made"."""
    return f"with {key} = {before}, not {now}"


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


def in_lumps(
    found: Iterable[dict[Key, Value]], write: Callable[[dict[Key, Value]], object]
) -> Iterator[dict[Key, Value]]:
    """The same items, written some at a time: each by itself would take longer than to make it.

    What is found in ``LUMP_SECONDS`` is what a killed run loses; an error, or an end, writes what is there.
    """
    waiting, last = dict[Key, Value](), time.monotonic()
    try:
        for each in found:
            waiting |= each
            yield each
            if time.monotonic() - last > LUMP_SECONDS:
                write(waiting)
                waiting, last = {}, time.monotonic()
    finally:
        if waiting:
            write(waiting)
