"""Collections of matches: shards in a folder, read like one match file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from logpolar.errors import StorageError
from logpolar.features.hloc import is_foreign
from logpolar.matching.files import HlocMatchFile, MatchFile
from logpolar.matching.nearest import Matches
from logpolar.matching.pairs import Pair
from logpolar.storage.collection_files import CollectionReader, CollectionWriter
from logpolar.storage.collections import Item
from logpolar.storage.hdf5 import in_other_words


class MatchSource(Protocol):
    """Matches of many pairs: a file of ours, one of hloc, or a collection."""

    path: Path
    settings: dict[str, Any]

    def __enter__(self) -> MatchSource: ...
    def __exit__(self, *error: Any) -> None: ...
    def close(self) -> None: ...
    def pairs(self) -> list[Pair]: ...
    def read(self, first: str, second: str) -> Matches: ...


def open_matches(path: str | Path, names: Iterable[str] = ()) -> MatchSource:
    """Open a match file or a collection of ours or, without our header, a match file of hloc.

    ``names``: the images of the feature file, which hloc's match files do not store.
    """
    if Path(path).is_dir():
        return MatchCollection(path)
    return HlocMatchFile(path, names) if is_foreign(path) else MatchFile(path)


class MatchCollection(CollectionReader[MatchFile]):
    """Reads a collection like a ``MatchFile``."""

    kind = MatchFile.kind

    def pairs(self) -> list[Pair]:
        """The pairs in the collection, sorted."""
        return sorted(pair for pair in self._shard_of if isinstance(pair, tuple))

    def read(self, first: str, second: str) -> Matches:
        """The matches of a pair, in either order."""
        for pair in ((first, second), (second, first)):
            if pair in self._shard_of:
                return self._file_of(pair).read(first, second)
        raise StorageError(f"{self.path}: no matches of '{first}' and '{second}' in this collection")

    def _open_shard(self, path: Path) -> MatchFile:
        return MatchFile(path)


class MatchCollectionWriter(CollectionWriter):
    """Lists shards of matches."""

    def __init__(self, path: str | Path, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        super().__init__(path, MatchFile.kind, settings, shard_contents, in_other_words, overwrite)


def shard_contents(path: Path) -> tuple[dict[str, Any], list[Item], int]:
    """Settings, pairs and number of matches of a file that may become a shard."""
    with MatchFile(path) as file:
        pairs = file.pairs()
        return file.settings, list(pairs), sum(len(file.read(*pair)) for pair in pairs)
