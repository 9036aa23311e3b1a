"""Checks and merges of collections, of features and of matches."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logpolar.distributed import batched
from logpolar.errors import LogpolarError, StorageError, in_words
from logpolar.features.collections import FeatureCollection, FeatureCollectionWriter
from logpolar.features.collections import shard_contents as feature_contents
from logpolar.features.files import FeatureFile, FeatureWriter
from logpolar.matching.collections import MatchCollection, MatchCollectionWriter
from logpolar.matching.collections import shard_contents as match_contents
from logpolar.matching.files import MatchFile, MatchWriter
from logpolar.storage.arrays import opened
from logpolar.storage.atomic_io import Lock
from logpolar.storage.collection_files import new_part
from logpolar.storage.collections import (
    MANIFEST,
    Item,
    Shard,
    fault,
    finished_part,
    manifest_kind,
    read_manifest,
    write_manifest,
)
from logpolar.storage.hdf5 import changed_setting, in_other_words

_AT_ONCE = 256
"""Images or pairs in a transaction when a collection becomes a file."""


@dataclass(frozen=True)
class Contents:
    """What a collection holds, in numbers."""

    unit: str
    what: str
    items: int
    amount: int
    shards: int
    size: int  # bytes
    settings: dict[str, Any]


def describe_collection(path: Path) -> Contents:
    """Counts of a collection; of an item in several shards the last one's amount counts as well."""
    of_features = _is_of_features(path)
    with FeatureCollection(path) if of_features else MatchCollection(path) as found:
        items = len(found.names() if isinstance(found, FeatureCollection) else found.pairs())
        unit, what = ("image", "keypoints") if of_features else ("pair", "matches")
        sizes = sum(shard.size for shard in found.shards)
        amount = sum(shard.amount for shard in found.shards)
        return Contents(unit, what, items, amount, len(found.shards), sizes, found.settings)


def check_collection(path: Path, drop: bool = False) -> tuple[list[tuple[Shard, str]], int]:
    """Bad shards with the reason, and the number of good ones; ``drop`` takes the bad ones out of the manifest."""
    kind, contents = (FeatureFile.kind, feature_contents) if _is_of_features(path) else (MatchFile.kind, match_contents)
    with Lock(path / MANIFEST):
        header, shards = read_manifest(path, kind)
        faults = [(shard, reason) for shard in shards if (reason := _fault(path, shard, contents))]
        if drop and faults:
            bad = {shard.file for shard, _ in faults}
            write_manifest(path, header, [shard for shard in shards if shard.file not in bad])
            for name in bad:
                (path / name).unlink(missing_ok=True)
    return faults, len(shards) - len(faults)


def _fault(path: Path, shard: Shard, contents: Any) -> str | None:
    if reason := fault(path, shard):
        return reason
    try:
        _, items, _ = contents(path / shard.file)
    except LogpolarError as error:
        return str(error)
    lacking = set(shard.items) - set(items)
    return f"lacks {len(lacking)} of the entries that the manifest lists" if lacking else None


def merge_sources(sources: Sequence[Path], output: Path) -> tuple[int, int]:
    """Merge files and collections of one kind and the same settings; counts of entries added, and of repeated ones."""
    kinds = {_is_of_features(source) for source in sources}
    if len(kinds) > 1:
        raise StorageError("features and matches cannot be merged into one; merge each by themselves")
    if any(output.exists() and source.samefile(output) for source in sources):
        raise StorageError(f"{output}: is one of the sources; choose another output")
    of_features = kinds.pop()
    settings = _settings(sources[0], of_features)
    for source in sources:
        key, before, now = changed_setting(settings, _settings(source, of_features))
        if key is not None:
            raise StorageError(f"{source}: was made {in_other_words(key, now, before)}, as {sources[0]} was")
    into = _merge_into_file if output.suffix in (".h5", ".hdf5") else _merge_into_collection
    return into(sources, output, of_features, settings)


def _is_of_features(path: Path) -> bool:
    if path.is_dir():
        kind: Any = manifest_kind(path)
    else:
        with opened(path) as file:
            kind = file.attrs.get("format")
    if kind not in (FeatureFile.kind.format, MatchFile.kind.format):
        raise StorageError(f"{path}: neither features nor matches of logpolar")
    return bool(kind == FeatureFile.kind.format)


def _merge_into_collection(
    sources: Sequence[Path], output: Path, of_features: bool, settings: Mapping[str, Any]
) -> tuple[int, int]:
    """Shards are linked or copied, not read."""
    added = skipped = 0
    with (FeatureCollectionWriter if of_features else MatchCollectionWriter)(output, settings) as writer:
        for source in sources:
            for path, items, amount in _shards(source, of_features):
                new = [item for item in items if item not in writer.finished]
                skipped += len(items) - len(new)
                added += len(new)
                if new:
                    part = new_part(output)
                    _link(path, part)
                    writer.add(finished_part(part, amount), new)
    return added, skipped


def _settings(source: Path, of_features: bool) -> dict[str, Any]:
    if source.is_dir():
        return read_manifest(source, (FeatureFile if of_features else MatchFile).kind)[0].settings
    with (FeatureFile if of_features else MatchFile)(source) as file:
        return file.settings


def _shards(source: Path, of_features: bool) -> Iterator[tuple[Path, Sequence[Item], int]]:
    """Files with their items and amounts; raises if one is not as the manifest says."""
    if not source.is_dir():
        _, items, amount = (feature_contents if of_features else match_contents)(source)
        yield source, items, amount
        return
    for shard in read_manifest(source, (FeatureFile if of_features else MatchFile).kind)[1]:
        if reason := fault(source, shard):
            raise StorageError(f"{source / shard.file}: {reason}; see `logpolar collection check {source}`")
        yield source / shard.file, shard.items, shard.amount


def _link(source: Path, target: Path) -> None:
    """Shards of collections never change, so that two may share one; files of others are copied."""
    try:
        if (source.parent / MANIFEST).exists():
            try:
                os.link(source, target)
                return
            except OSError:
                pass  # another disk, or a file system without links
        shutil.copyfile(source, target)
    except OSError as error:
        raise StorageError(f"{target}: cannot be written ({in_words(error)})") from error


def _merge_into_file(
    sources: Sequence[Path], output: Path, of_features: bool, settings: Mapping[str, Any]
) -> tuple[int, int]:
    added = skipped = 0
    with (FeatureWriter if of_features else MatchWriter)(output, settings) as writer:
        for source in sources:
            for path, items, _ in _shards(source, of_features):
                new = [item for item in items if item not in writer.finished]
                skipped += len(items) - len(new)
                added += len(new)
                for some in batched(new, _AT_ONCE):
                    _copy(writer, path, some)
    return added, skipped


def _copy(writer: FeatureWriter | MatchWriter, path: Path, items: Sequence[Any]) -> None:
    if isinstance(writer, MatchWriter):
        with MatchFile(path) as matches:
            writer.copy(matches, items)
    else:
        with FeatureFile(path) as features:
            writer.add_many({name: features.read(name) for name in items})
