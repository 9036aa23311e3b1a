"""Collections: folders of HDF5 shards with a manifest, for more than one file can hold or one machine can write.

    COLLECTION/manifest.jsonl    first line: format, version, kind of the shards, settings; then a line for each shard
    COLLECTION/<hash>.h5         a shard, named by the start of its SHA-256; never changed
    COLLECTION/parts/            shards that are being written, each by one process

Workers write shards, one process adds them to the manifest. A line is appended and flushed when its shard is on the
disk, so at any moment the manifest lists complete shards only; a torn last line, of a killed run, does not count. What
lies in the folder without being listed is picked up by the next run.

A line lists the items of its shard: images by name or, in a collection of matches, pairs as rows of the line's names.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from logpolar.errors import StorageError, in_words
from logpolar.storage.atomic_io import flush, write_whole
from logpolar.storage.hdf5 import FileKind

MANIFEST, PARTS = "manifest.jsonl", "parts"
FORMAT, VERSION = "logpolar-collection", 1

Item: TypeAlias = str | tuple[str, str]
"""An image, or a pair of images."""

_NAME = re.compile(r"[0-9a-f]{16}\.h5")
_BLOCK = 2**22
_MOST_BYTES = 2**31
"""Largest line of a manifest: what a shard of millions of images would need."""


@dataclass(frozen=True)
class Shard:
    """A file of a collection: what the manifest says about it."""

    file: str
    sha256: str
    size: int  # bytes
    items: tuple[Item, ...]
    amount: int  # keypoints, or matches


@dataclass(frozen=True)
class Header:
    """The first line of a manifest."""

    kind: str  # ``FileKind.format`` of the shards
    settings: dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A shard that its writer has finished, before it is in the manifest."""

    path: Path
    sha256: str
    size: int
    amount: int


def is_collection(path: str | Path) -> bool:
    """Whether a path is a folder with a manifest."""
    return (Path(path) / MANIFEST).is_file()


def manifest_kind(path: str | Path) -> str:
    """The kind of shards of a collection, see ``Header``."""
    return _read_header(Path(path))[0].kind


def read_manifest(path: str | Path, kind: FileKind) -> tuple[Header, list[Shard]]:
    """Header and shards of a collection of one kind; a torn last line is left out."""
    path = Path(path)
    header, lines = _read_header(path)
    if header.kind != kind.format:
        raise StorageError(f"{path}: not a collection of {kind.words}s, but of {header.kind}")
    return header, list(_shards(path, lines))


def _read_header(path: Path) -> tuple[Header, Iterator[bytes]]:
    place = path / MANIFEST
    if not place.is_file():
        reason = "a folder, but not a collection: it has no manifest.jsonl" if path.is_dir() else "no such folder"
        if path.is_file():
            reason = "a file; collections are folders"
        raise StorageError(f"{path}: {reason}")
    lines = _lines(place)
    first = _parsed(place, next(lines, b""), 1)
    if first.get("format") != FORMAT:
        raise StorageError(f"{place}: not the manifest of a collection")
    if first.get("version") != VERSION:
        raise StorageError(
            f"{place}: a manifest of version {first.get('version')}, but this logpolar reads version {VERSION}; "
            f"install the logpolar that wrote it, or try {_salvage(path)}"
        )
    kind, settings = first.get("kind"), first.get("settings")
    if not isinstance(kind, str) or not isinstance(settings, dict):
        raise _damaged(place, 1)
    return Header(kind, settings), lines


def _lines(place: Path) -> Iterator[bytes]:
    """Complete lines."""
    try:
        with place.open("rb") as file:
            while (line := file.readline(_MOST_BYTES)).endswith(b"\n"):
                yield line
    except OSError as error:
        raise StorageError(f"{place}: {in_words(error)}") from error


def _parsed(place: Path, line: bytes, number: int) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _damaged(place, number) from error
    if not isinstance(found, dict):
        raise _damaged(place, number)
    return found


def _damaged(place: Path, line: int) -> StorageError:
    words = f"this manifest is damaged (line {line}); its shards may be sound: {_salvage(place.parent)}"
    return StorageError(f"{place}: {words}")


def _salvage(path: Path) -> str:
    return f"`logpolar collection merge {path}/*.h5 -o NEW`"


def _shards(path: Path, lines: Iterable[bytes]) -> Iterator[Shard]:
    for number, line in enumerate(lines, 2):
        found = _parsed(path / MANIFEST, line, number)
        try:
            shard = Shard(found["file"], found["sha256"], int(found["bytes"]), _items(found), int(found["amount"]))
            sound = _NAME.fullmatch(shard.file) and shard.sha256.startswith(shard.file[:16])
        except (LookupError, TypeError, ValueError, AttributeError):
            sound = None
        if not sound:
            raise _damaged(path / MANIFEST, number)
        yield shard


def _items(line: Mapping[str, Any]) -> tuple[Item, ...]:
    names = line["names"]
    if not isinstance(names, list) or not all(map(str.__instancecheck__, names)):
        raise TypeError
    if "pairs" not in line:
        return tuple(names)
    rows = line["pairs"]
    if rows and min(rows) < 0:
        raise ValueError
    return tuple(zip((names[row] for row in rows[::2]), (names[row] for row in rows[1::2]), strict=True))


def _line(shard: Shard) -> bytes:
    content: dict[str, Any] = {"file": shard.file, "sha256": shard.sha256, "bytes": shard.size, "amount": shard.amount}
    if shard.items and isinstance(shard.items[0], tuple):
        numbers: dict[str, int] = {}
        rows = [numbers.setdefault(name, len(numbers)) for pair in shard.items for name in pair]
        content |= {"names": list(numbers), "pairs": rows}
    else:
        content["names"] = list(shard.items)
    return (json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n").encode()


def _header_line(header: Header) -> bytes:
    return (json.dumps({"format": FORMAT, "version": VERSION, **header.__dict__}) + "\n").encode()


def write_manifest(path: Path, header: Header, shards: Iterable[Shard]) -> None:
    """Write a manifest anew, atomically."""
    write_whole(path / MANIFEST, b"".join([_header_line(header), *map(_line, shards)]))
    flush(path)


class ManifestAppender:
    """Adds shards to a manifest, which only one process at a time may do: see ``Lock``."""

    def __init__(self, path: Path) -> None:
        self._path, place = path, path / MANIFEST
        self._end = sum(map(len, _lines(place)))  # a torn line is overwritten

    def add(self, part: Part, items: Iterable[Item]) -> Shard:
        """Move a finished part into its place and list it; on return both are on the disk."""
        name = f"{part.sha256[:16]}.h5"
        shard = Shard(name, part.sha256, part.size, tuple(items), part.amount)
        line = _line(shard)
        try:
            part.path.replace(self._path / name)
            flush(self._path)
            with (self._path / MANIFEST).open("r+b") as file:
                file.truncate(self._end)
                file.seek(self._end)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"{self._path}: cannot be written ({in_words(error)})") from error
        self._end += len(line)
        return shard


def finished_part(path: Path, amount: int) -> Part:
    """The part that a file, which is not written to any more, has become."""
    return Part(path, digest(path), path.stat().st_size, amount)


def digest(path: Path) -> str:
    """SHA-256 of a file."""
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
    except OSError as error:
        raise StorageError(f"{path}: {in_words(error)}") from error
    return found.hexdigest()


def unlisted(path: Path, shards: Iterable[Shard]) -> list[Path]:
    """Files of an interrupted run that may hold finished work: parts, and shards that the manifest does not list."""
    listed = {shard.file for shard in shards}
    loose = [each for each in path.glob("*.h5") if _NAME.fullmatch(each.name) and each.name not in listed]
    return sorted(loose) + sorted((path / PARTS).glob("*.h5"))


def drop_parts(path: Path) -> None:
    """Remove what is left of parts when nothing in them is needed any more."""
    shutil.rmtree(path / PARTS, ignore_errors=True)


def fault(path: Path, shard: Shard) -> str | None:
    """What is wrong with a shard's file, if anything: missing, cut off or changed."""
    place = path / shard.file
    if not place.is_file():
        return "missing"
    if place.stat().st_size != shard.size:
        return f"has {place.stat().st_size} bytes, not {shard.size}"
    return None if digest(place) == shard.sha256 else "its content has changed: the hash differs"
