"""Collections of features: shards in a folder, read like one feature file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from logpolar.errors import StorageError
from logpolar.features.features import Features
from logpolar.features.files import FeatureFile, difference
from logpolar.features.hloc import HlocFeatureFile, is_foreign
from logpolar.storage.collection_files import CollectionReader, CollectionWriter
from logpolar.storage.collections import Item


class FeatureSource(Protocol):
    """Features of many images: a file of ours, one of hloc, or a collection."""

    path: Path
    settings: dict[str, Any]

    def __enter__(self) -> FeatureSource: ...
    def __exit__(self, *error: Any) -> None: ...
    def close(self) -> None: ...
    def names(self) -> list[str]: ...
    def read(self, name: str) -> Features: ...
    def count(self, name: str) -> int: ...
    def image_size(self, name: str) -> tuple[int, int]: ...


def open_features(path: str | Path) -> FeatureSource:
    """Open a feature file or a collection of ours or, without our header, a feature file of hloc.

    >>> with logpolar.open_features("features/") as features:      # doctest: +SKIP
    ...     print(features.names(), len(features.read("photo.jpg")))
    """
    if Path(path).is_dir():
        return FeatureCollection(path)
    return HlocFeatureFile(path) if is_foreign(path) else FeatureFile(path)


class FeatureCollection(CollectionReader[FeatureFile]):
    """Reads a collection like a ``FeatureFile``."""

    kind = FeatureFile.kind

    def names(self) -> list[str]:
        """The images in the collection, sorted."""
        return sorted(map(str, self._shard_of))

    def read(self, name: str) -> Features:
        return self._file(name).read(name)

    def count(self, name: str) -> int:
        """How many keypoints an image has."""
        return self._file(name).count(name)

    def image_size(self, name: str) -> tuple[int, int]:
        """An image's width and height."""
        return self._file(name).image_size(name)

    def _file(self, name: str) -> FeatureFile:
        if name not in self._shard_of:
            raise StorageError(f"{self.path}: no image '{name}' in this collection")
        return self._file_of(name)

    def _open_shard(self, path: Path) -> FeatureFile:
        return FeatureFile(path)


class FeatureCollectionWriter(CollectionWriter):
    """Lists shards of features."""

    def __init__(self, path: str | Path, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        super().__init__(path, FeatureFile.kind, settings, shard_contents, difference, overwrite)


def shard_contents(path: Path) -> tuple[dict[str, Any], list[Item], int]:
    """Settings, images and number of keypoints of a file that may become a shard."""
    with FeatureFile(path) as file:
        names = file.names()
        return file.settings, list(names), sum(map(file.count, names))
