"""Matches of many images in one file: HDF5 in hloc's layout, resumable, safe against a crash at any moment.

Layout:

    /                                      attributes: format, version, settings (JSON: ratio, mutual, features)
    /<image 0>/<image 1>/                  attributes: name0, name1, the images' true names (``/`` becomes ``-`` above)
    /<image 0>/<image 1>/matches0          (N0,) int32: row in image 1, or -1
    /<image 0>/<image 1>/matching_scores0  (N0,) float32: 1 - distance / 2, or 0
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tqdm import tqdm

from logpolar.distributed import in_processes
from logpolar.errors import StorageError
from logpolar.features.files import flat_name, pair_name, read_matches, write_matches
from logpolar.features.hloc import is_foreign, open_features
from logpolar.matching.nearest import Matches, MatchingOptions, match_descriptors
from logpolar.matching.pairs import Pair, each_once
from logpolar.storage.hdf5 import FileKind, Hdf5File, Hdf5Writer

_SECONDS = 2.0
"""Matches are stored after so long: what a killed run loses. Each pair by itself would cost more than to match it."""

_KEPT_IMAGES = 64
"""Images whose features a process keeps: pairs of one image follow each other."""


class MatchFile(Hdf5File):
    """Reads a match file.

    >>> with MatchFile("matches.h5") as file:                 # doctest: +SKIP
    ...     matches = file.read(*file.pairs()[0])
    """

    kind = FileKind("logpolar-matches", 1, "match file")

    def pairs(self) -> list[Pair]:
        """The pairs in the file, sorted, by the images' true names."""
        return sorted((str(group.attrs["name0"]), str(group.attrs["name1"])) for group in _pair_groups(self._file))

    def read(self, first: str, second: str) -> Matches:
        """The matches of a pair, whichever of the two came first when they were made."""
        for turned, name in ((False, pair_name(first, second)), (True, pair_name(second, first))):
            if f"{name}/matches0" in self._file:
                matches = read_matches(self._file[name])
                return _turn(matches) if turned else matches
        raise StorageError(f"{self.path}: no matches of '{first}' and '{second}' in this file")


class HlocMatchFile(MatchFile):
    """A match file as hloc writes it, which does not tell the true names: ``names`` are the images it may be about."""

    def __init__(self, path: str | Path, names: Iterable[str]) -> None:
        self._names = _by_flat_name(names, Path(path))
        super().__init__(path)

    def _read_settings(self) -> dict[str, Any]:
        if next(_pair_groups(self._file), None) is None:
            raise StorageError(f"{self.path}: neither a match file of logpolar nor one of hloc: no matches0 in it")
        return {"written_by": "hloc"}

    def pairs(self) -> list[Pair]:
        found = []
        for group in _pair_groups(self._file):
            _, first, second = group.name.split("/")
            for name in (first, second):
                if name not in self._names:
                    raise StorageError(f"{self.path}: has matches of '{name}', which is not among the features")
            found.append((self._names[first], self._names[second]))
        return sorted(found)


def open_matches(path: str | Path, names: Iterable[str]) -> MatchFile:
    """A match file of ours or, where the header is missing, of hloc; ``names``: the images it may be about."""
    return HlocMatchFile(path, names) if is_foreign(path) else MatchFile(path)


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


@dataclass
class MatchReport:
    """What became of the pairs."""

    done: int = 0
    skipped: int = 0  # were in the file already
    matches: int = 0


def match_pairs(
    features: str | Path,
    output: str | Path,
    pairs: Iterable[Pair],
    options: MatchingOptions | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    progress: bool = False,
) -> MatchReport:
    """Match pairs of images of a feature file into a match file; pairs that are in it already, in
    either order, are left alone.

    After a crash the file is whole and lacks at most the matches of the last seconds; run it again to continue.
    """
    options, report = options or MatchingOptions(), MatchReport()
    with open_features(features) as file:
        settings = {**asdict(options), "features": file.settings}
    wanted = each_once(pairs)
    _by_flat_name({name for pair in wanted for name in pair}, Path(output))
    with MatchWriter(output, settings, overwrite) as writer:
        todo = [pair for pair in wanted if not {pair, pair[::-1]} & writer.finished]
        report.skipped = len(wanted) - len(todo)
        waiting: dict[Pair, tuple[int, Matches]] = {}
        last = time.monotonic()
        with tqdm(total=len(wanted), initial=report.skipped, unit="pair", disable=None if progress else True) as bar:
            try:
                for pair, found in _matched(Path(features), todo, options, jobs):
                    waiting[pair] = found
                    report.done += 1
                    report.matches += len(found[1])
                    bar.update()
                    if time.monotonic() - last > _SECONDS:
                        writer.add(waiting)
                        waiting, last = {}, time.monotonic()
            finally:
                if waiting:
                    writer.add(waiting)
    return report


def _matched(
    features: Path, pairs: list[Pair], options: MatchingOptions, jobs: int
) -> Iterator[tuple[Pair, tuple[int, Matches]]]:
    jobs = max(min(jobs, len(pairs)), 1)
    if jobs > 1:
        yield from in_processes(_work, pairs, jobs, _open_worker, (features, options))
        return
    with _Matcher(features, options) as matcher:
        for pair in pairs:
            yield pair, matcher(pair)


class _Matcher:
    """Matches pairs of one feature file."""

    def __init__(self, features: Path, options: MatchingOptions) -> None:
        self._file, self._options = open_features(features), options
        self._read = lru_cache(_KEPT_IMAGES)(self._file.read)

    def __enter__(self) -> _Matcher:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __call__(self, pair: Pair) -> tuple[int, Matches]:
        first, second = (self._read(name) for name in pair)
        return len(first), match_descriptors(first.descriptors, second.descriptors, self._options)


_worker_matcher: _Matcher


def _open_worker(features: Path, options: MatchingOptions) -> None:
    global _worker_matcher
    _worker_matcher = _Matcher(features, options)


def _work(pair: Pair) -> tuple[int, Matches]:
    return _worker_matcher(pair)


def check_matches(matches: Matches, first: int, second: int, what: str) -> None:
    """Raise unless two images with so many keypoints can have these matches; ``what`` is their name in the error."""
    if len(matches) and (matches.indices >= (first, second)).any():
        raise StorageError(f"{what}: matches of keypoints that the features do not have; they were made of others")


def _by_flat_name(names: Iterable[str], path: Path) -> dict[str, str]:
    """Names by hloc's names for them among matches; raises if two images share one."""
    found: dict[str, str] = {}
    for name in sorted(names):
        if found.setdefault(flat_name(name), name) != name:
            both = f"'{found[flat_name(name)]}' and '{name}'"
            raise StorageError(f"{path}: match files, as hloc's, cannot tell {both} apart; rename one")
    return found


def _write_pairs(file: Any, found: Mapping[Pair, tuple[int, Matches]]) -> None:
    for (first, second), (count, matches) in found.items():
        group = write_matches(file, pair_name(first, second), count, matches)
        group.attrs["name0"], group.attrs["name1"] = first, second


def _pair_groups(file: Any) -> Iterator[Any]:
    """Groups, two deep, that hold matches."""
    for one in file.values():
        for group in one.values() if isinstance(one, h5py.Group) else ():
            if isinstance(group, h5py.Group) and "matches0" in group:
                yield group


def _turn(matches: Matches) -> Matches:
    """The matches from the second image's side, ordered by its rows."""
    order = np.argsort(matches.indices[:, 1], kind="stable")
    return Matches(np.ascontiguousarray(matches.indices[order, ::-1]), matches.distances[order])
