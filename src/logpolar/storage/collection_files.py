"""Reading and writing collections: what shards of features and shards of matches have in common."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar
from uuid import uuid4

from logpolar.errors import LogpolarError, StorageError, in_words
from logpolar.storage.atomic_io import Lock, check_place
from logpolar.storage.collections import (
    MANIFEST,
    PARTS,
    Header,
    Item,
    ManifestAppender,
    Part,
    drop_parts,
    finished_part,
    is_collection,
    read_manifest,
    unlisted,
    write_manifest,
)
from logpolar.storage.hdf5 import FileKind, Hdf5File, changed_setting

File = TypeVar("File", bound=Hdf5File)
OpenReader = TypeVar("OpenReader", bound="CollectionReader[Any]")
OpenCollection = TypeVar("OpenCollection", bound="CollectionWriter")

_OPEN_SHARDS = 32
"""Shards that a reader keeps open."""


class CollectionReader(ABC, Generic[File]):
    """The shards of a collection behind one index; opened when first used, a few at a time."""

    kind: FileKind

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        header, self.shards = read_manifest(self.path, self.kind)
        self.settings = header.settings
        self._shard_of = {
            item: number for number, shard in reversed(list(enumerate(self.shards))) for item in shard.items
        }
        self._open: OrderedDict[int, File] = OrderedDict()

    @abstractmethod
    def _open_shard(self, path: Path) -> File:
        """The file of a shard."""

    def _file_of(self, item: Item) -> File:
        """The open shard of an item; ``KeyError`` if the collection lacks it."""
        number = self._shard_of[item]
        if number not in self._open:
            place = self.path / self.shards[number].file
            if not place.exists():
                raise StorageError(f"{place}: this shard is missing; {repair_hint(self.path)}")
            try:
                self._open[number] = self._open_shard(place)
            except StorageError as error:
                raise StorageError(f"{place}: this shard is damaged; {repair_hint(self.path)}") from error
            if len(self._open) > _OPEN_SHARDS:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(number)
        return self._open[number]

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def __enter__(self: OpenReader) -> OpenReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def repair_hint(path: Path) -> str:
    """What to do about a bad shard."""
    return f"`logpolar collection check {path} --drop` takes bad shards out, and the command that made it fills the gap"


Contents = Callable[[Path], tuple[dict[str, Any], list[Item], int]]
"""Settings, items and amount of a file that may become a shard; raises ``LogpolarError`` if it cannot."""


class CollectionWriter:
    """Adds shards to a collection, which may be new; one process does, whoever writes the shards.

    ``finished`` are the items that it holds. With ``overwrite`` the first new shard replaces all that were there.
    """

    def __init__(
        self,
        path: str | Path,
        kind: FileKind,
        settings: Mapping[str, Any],
        contents: Contents,
        difference: Callable[[str, Any, Any], str],
        overwrite: bool = False,
    ) -> None:
        self.path, self._kind, self._contents = Path(path), kind, contents
        self.settings: dict[str, Any] = json.loads(json.dumps(settings))  # as it will be read back
        self.finished: set[Item] = set()
        self._difference, self._made = difference, False
        self._make_folder()
        self._lock = Lock(self.path / MANIFEST)
        try:
            self._former = read_manifest(self.path, kind) if is_collection(self.path) else None
            if self._former and not overwrite:
                self._check_settings(self._former[0])
                self._shards = self._former[1]
                self.finished.update(item for shard in self._shards for item in shard.items)
            else:
                self._shards = []
                if self._former is None:
                    write_manifest(self.path, Header(kind.format, self.settings), [])
            self._overwriting = bool(overwrite and self._former)
            (self.path / PARTS).mkdir(exist_ok=True)
        except BaseException:
            self._lock.release()
            raise
        self._manifest = ManifestAppender(self.path)
        if not self._overwriting:
            self._pick_up()

    def _make_folder(self) -> None:
        if not self.path.exists():
            check_place(self.path, StorageError)
            try:
                self.path.mkdir()
            except OSError as error:
                raise StorageError(f"{self.path}: cannot be made ({in_words(error)})") from error
            self._made = True
        elif not self.path.is_dir():
            raise StorageError(f"{self.path}: is a file; a collection is a folder")
        elif not is_collection(self.path) and any(each.name != MANIFEST + ".lock" for each in self.path.iterdir()):
            raise StorageError(f"{self.path}: a folder with other files, not a collection; choose another output")

    def _check_settings(self, header: Header) -> None:
        key, before, now = changed_setting(header.settings, self.settings)
        if key is not None:
            words = self._difference(key, before, now)
            raise StorageError(f"{self.path}: was made {words}; choose another output or overwrite it")

    def _pick_up(self) -> None:
        """List what a killed run left behind, so that it is not done again."""
        for path in unlisted(self.path, self._shards):
            try:
                settings, items, amount = self._contents(path)
            except LogpolarError:
                continue  # cut off in the middle of its first image
            new = [item for item in items if item not in self.finished]
            if new and changed_setting(settings, self.settings)[0] is None:
                self.add(finished_part(path, amount), new)
        drop_parts(self.path)
        (self.path / PARTS).mkdir(exist_ok=True)

    def add(self, part: Part, items: Iterable[Item]) -> None:
        """List a finished part; on return it is safely in the collection."""
        if self._overwriting:  # now there is something to replace the former content by
            write_manifest(self.path, Header(self._kind.format, self.settings), [])
            self._manifest, self._overwriting = ManifestAppender(self.path), False
        shard = self._manifest.add(part, items)
        self._shards.append(shard)
        self.finished.update(shard.items)

    def discard(self) -> None:
        """Remove a collection that was made here and is empty, and in which nobody has begun a shard."""
        if self._made and not unlisted(self.path, self._shards) and not self._shards:
            drop_parts(self.path)
            (self.path / MANIFEST).unlink(missing_ok=True)

    def __enter__(self: OpenCollection) -> OpenCollection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for path in unlisted(self.path, self._shards):
                    path.unlink(missing_ok=True)
                drop_parts(self.path)
            else:
                self.discard()
        finally:
            self._lock.release()
        if self._made and not (self.path / MANIFEST).exists():
            self.path.rmdir()


def new_part(collection: Path) -> Path:
    """A name for a shard to be written by this process alone."""
    return collection / PARTS / f"{uuid4().hex}.h5"
