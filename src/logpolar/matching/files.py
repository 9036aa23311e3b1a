"""Match files: HDF5 in hloc's layout, written atomically, resumable.

Layout (in group names ``/`` becomes ``-``, as in hloc):

    /                                      attributes: format, version, settings (JSON: ratio, mutual, filter, features)
    /<image 0>/<image 1>/                  attributes: name0, name1: the images' names; common_scene, of verified
                                           pairs: whether the matches agree better than chance explains
    /<image 0>/<image 1>/matches0          (N0,) int32: row in image 1, or -1
    /<image 0>/<image 1>/matching_scores0  (N0,) float32: 1 - distance / 2, or 0

A feature file with such groups (``logpolar match --h5``) is a match file, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
from numpy.typing import NDArray

from logpolar.errors import StorageError
from logpolar.features.files import FeatureFile, FeatureWriter, image_names
from logpolar.matching.nearest import Matches
from logpolar.matching.pairs import Pair
from logpolar.storage.arrays import Array, find, has
from logpolar.storage.hdf5 import FileKind, Hdf5File, Hdf5Writer, read_header

SCHEMA = {"matches0": Array(("N",), "iu", (-1, 2**31 - 1)), "matching_scores0": Array(("N",), bounds=(-1e6, 1e6))}
"""The arrays of a pair."""

_Stored: TypeAlias = tuple[dict[str, NDArray[Any]], dict[str, Any]]
"""Arrays and attributes of a pair."""


class MatchFile(Hdf5File):
    """Reads a match file, or the matches in a feature file.

    >>> with MatchFile("matches.h5") as file:                 # doctest: +SKIP
    ...     matches = file.read(*file.pairs()[0])
    """

    kind = FileKind("logpolar-matches", 1, "match file")

    def _read_settings(self) -> dict[str, Any]:
        if self._file.attrs.get("format") == FeatureFile.kind.format and any(_pair_groups(self._file)):
            self._names = by_flat_name(image_names(self._file), self.path)
            return read_header(self._file, self.path, FeatureFile.kind)
        return super()._read_settings()

    def pairs(self) -> list[Pair]:
        """The pairs in the file, sorted."""
        with self._damage("the list of pairs"):
            return sorted(self._pair(group) for group in _pair_groups(self._file))

    def _pair(self, group: Any) -> Pair:
        if "name0" in group.attrs:
            first, second = (group.attrs[key] for key in ("name0", "name1"))
            if group.name != f"/{_group_name(first, second)}":
                raise ValueError(f"{group.name} is named '{first}' and '{second}'")
            return first, second
        _, *flat = group.name.split("/")  # hloc and logpolar 0.1 store no names
        for name in flat:
            if name not in self._names:
                raise StorageError(f"{self.path}: has matches of '{name}', which is not among the features")
        return self._names[flat[0]], self._names[flat[1]]

    def read(self, first: str, second: str) -> Matches:
        """The matches of a pair, in either order."""
        for swapped, name in ((False, _group_name(first, second)), (True, _group_name(second, first))):
            with self._damage(name):
                group = find(self._file, name)
            if isinstance(group, h5py.Group):
                found = self._arrays(name, SCHEMA, {})
                partner, score = found["matches0"], found["matching_scores0"]
                here = np.flatnonzero(partner >= 0)
                indices = np.stack([here, partner[here]], axis=1).astype(np.int32)
                matches = Matches(indices, (2 - 2 * score[here]).astype(np.float32))
                return _swap(matches) if swapped else matches
        raise StorageError(f"{self.path}: no matches of '{first}' and '{second}' in this file")

    def stored(self, pair: Pair) -> _Stored:
        """The arrays and attributes of a pair as they are in the file."""
        name = _group_name(*pair)
        arrays = self._arrays(name, SCHEMA, {})
        with self._damage(name):
            return arrays, dict(find(self._file, name).attrs)


class HlocMatchFile(MatchFile):
    """A match file written by hloc, which does not store image names: ``names`` are those of the feature file."""

    def __init__(self, path: str | Path, names: Iterable[str]) -> None:
        self._names = by_flat_name(names, Path(path))
        super().__init__(path)

    def _read_settings(self) -> dict[str, Any]:
        if not any(_pair_groups(self._file)):
            raise StorageError(f"{self.path}: neither a match file of logpolar nor one of hloc: no matches0 in it")
        return {"written_by": "hloc"}


class MatchWriter(Hdf5Writer):
    """Adds matches of pairs to a match file, one transaction a call; see ``Hdf5Writer``."""

    reader = MatchFile

    def __init__(self, path: str | Path, settings: Mapping[str, Any], overwrite: bool = False) -> None:
        self.finished: set[Pair] = set()
        super().__init__(path, settings, overwrite)

    def _resume(self, file: MatchFile) -> None:
        self.finished = set(file.pairs())

    def add(self, found: Mapping[Pair, tuple[int, Matches]]) -> None:
        """Add, by pair, the number of keypoints of the first image and the matches."""
        self._add(lambda file: _write_pairs(file, found))
        self.finished.update(found)

    def copy(self, source: MatchFile, pairs: Iterable[Pair]) -> None:
        """Add pairs of another file as they are there, in one transaction."""
        found = {pair: source.stored(pair) for pair in pairs}
        self._add(lambda file: _write_stored(file, found))
        self.finished.update(found)


class PairWriter(FeatureWriter):
    """Writes features and their matches into one file, which is a feature file and a match file."""

    def add_matches(
        self, first: str, second: str, count: int, matches: Matches, common_scene: bool | None = None
    ) -> None:
        """Add the matches of two images, the first of which has ``count`` keypoints, and the verdict, if any."""

        def write(file: Any) -> None:
            _write_pairs(file, {(first, second): (count, matches)})
            if common_scene is not None:
                file[_group_name(first, second)].attrs["common_scene"] = common_scene

        self._add(write)

    def add_all_matches(self, found: Mapping[Pair, tuple[int, Matches]]) -> None:
        """Add matches of many pairs in one transaction, see ``MatchWriter.add``."""
        self._add(lambda file: _write_pairs(file, found))


def check_matches(matches: Matches, first: int, second: int, what: str) -> None:
    """Raise unless the matches fit images with these numbers of keypoints; ``what`` names them in the error."""
    if len(matches) and (matches.indices >= (first, second)).any():
        raise StorageError(f"{what}: matched keypoints are missing from the features; they belong to another file")


def by_flat_name(names: Iterable[str], path: Path) -> dict[str, str]:
    """Image names by their group names; raises if two images share one."""
    found: dict[str, str] = {}
    for name in sorted(names):
        if found.setdefault(_flat_name(name), name) != name:
            both = f"'{found[_flat_name(name)]}' and '{name}'"
            raise StorageError(f"{path}: match files, as hloc's, cannot tell {both} apart; rename one")
    return found


def _write_pairs(file: Any, found: Mapping[Pair, tuple[int, Matches]]) -> None:
    for (first, second), (count, matches) in found.items():
        partner, score = np.full(count, -1, np.int32), np.zeros(count, np.float32)
        partner[matches.indices[:, 0]] = matches.indices[:, 1]
        score[matches.indices[:, 0]] = 1 - matches.distances / 2 if matches.confidence is None else matches.confidence
        name = _group_name(first, second)
        if name in file:
            del file[name]
        arrays = {"matches0": partner, "matching_scores0": score}
        _write_stored(file, {(first, second): (arrays, {"name0": first, "name1": second})})


def _write_stored(file: Any, found: Mapping[Pair, _Stored]) -> None:
    for pair, (arrays, attributes) in found.items():
        group = file.require_group(_group_name(*pair))
        for key, values in arrays.items():
            group.create_dataset(key, data=values)
        group.attrs.update(attributes)


def _pair_groups(file: Any) -> Iterator[Any]:
    """Groups, two deep, that hold matches."""
    for first in file:
        one = find(file, first)
        for second in one if isinstance(one, h5py.Group) else ():
            group = find(one, second)
            if isinstance(group, h5py.Group) and has(group, "matches0"):
                yield group


def _group_name(first: str, second: str) -> str:
    return f"{_flat_name(first)}/{_flat_name(second)}"


def _flat_name(image: str) -> str:
    """hloc's name of an image among matches."""
    return image.replace("/", "-")


def _swap(matches: Matches) -> Matches:
    """The matches from the second image to the first, ordered by the second's rows."""
    order = np.argsort(matches.indices[:, 1], kind="stable")
    return Matches(np.ascontiguousarray(matches.indices[order, ::-1]), matches.distances[order])
