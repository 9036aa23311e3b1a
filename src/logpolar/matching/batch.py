"""Match many pairs into a match file or a collection: in parallel, resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias

from logpolar.distributed import Workers, batched, on_batches, on_workers, show_progress
from logpolar.features.collections import open_features
from logpolar.features.features import Features
from logpolar.matching.collections import MatchCollectionWriter
from logpolar.matching.files import MatchWriter, by_flat_name
from logpolar.matching.groups import KEPT_IMAGES, in_tiles
from logpolar.matching.learned import check_features
from logpolar.matching.many import match_many
from logpolar.matching.nearest import Matches, match_features
from logpolar.matching.options import MatchingOptions
from logpolar.matching.pairs import Pair, each_once
from logpolar.storage.collection_files import new_part
from logpolar.storage.collections import Item, Part, finished_part
from logpolar.storage.hdf5 import in_lumps

_Found: TypeAlias = tuple[int, Matches]
"""The number of keypoints of a pair's first image, and the matches."""


@dataclass
class MatchReport:
    """Counts of a run of ``match_pairs``."""

    done: int = 0
    skipped: int = 0  # already in the file
    matches: int = 0


@dataclass(frozen=True)
class _InShard:
    """A pair that its worker has stored in a shard, with others."""

    matches: int
    part: Part
    pairs: int


def match_pairs(
    features: str | Path,
    output: str | Path,
    pairs: Iterable[Pair],
    options: MatchingOptions | None = None,
    workers: Workers | int = 1,
    overwrite: bool = False,
    progress: bool = False,
    device: str = "cpu",
    shard_size: int | None = None,
) -> MatchReport:
    """Match pairs of images of a feature file into a match file; pairs already in it, in either order, are skipped.

    Features and matches may be collections as well: with ``shard_size`` the output is one of shards with so many pairs,
    which the workers themselves write. A killed run never corrupts the file and loses the matches of the last seconds
    at most; run it again to continue. ``workers``, a number of processes of this machine or a cluster, match on the
    CPU; on another ``device`` there is one process.
    """
    options, report = options or MatchingOptions(), MatchReport()
    workers = Workers(workers) if isinstance(workers, int) else workers
    if device != "cpu":
        from logpolar.matching.torch_nearest import find_device

        find_device(device)  # raises before a file is made
    with open_features(features) as file:
        check_features(options, file.settings)
        settings = {**asdict(options), "features": file.settings}
    wanted = each_once(pairs)
    by_flat_name({name for pair in wanted for name in pair}, Path(output))
    with (MatchCollectionWriter if shard_size else MatchWriter)(output, settings, overwrite) as writer:
        todo = in_tiles([pair for pair in wanted if not _is_in(pair, writer.finished)])
        report.skipped = len(wanted) - len(todo)
        workers = workers.at_most(len(todo)) if device == "cpu" else Workers()
        source = Path(features), options, device
        with show_progress(len(wanted), "matches", "pair", progress, report.skipped) as bar:
            if isinstance(writer, MatchWriter):
                results = _into_file(writer, _matched(*source, todo, workers))
            else:
                results = _into_shards(writer, batched(todo, shard_size or 1), source, workers)
            for matches in results:
                report.done += 1
                report.matches += matches
                bar.update()
    return report


def _is_in(pair: Pair, finished: set[Pair] | set[Item]) -> bool:
    return pair in finished or pair[::-1] in finished


def _into_file(writer: MatchWriter, found: Iterable[tuple[Pair, _Found]]) -> Iterator[int]:
    """Stores pairs; yields the number of matches of each."""
    for stored in in_lumps(({pair: result} for pair, result in found), writer.add):
        ((_, matches),) = stored.values()
        yield len(matches)


def _into_shards(
    writer: MatchCollectionWriter,
    batches: Iterable[Sequence[Pair]],
    source: tuple[Path, MatchingOptions, str],
    workers: Workers,
) -> Iterator[int]:
    """Lists shards that workers wrote; yields the number of matches of each pair."""
    work = partial(_match_shard, folder=writer.path, settings=writer.settings)
    waiting: list[Pair] = []
    for pair, stored in on_batches(work, batches, workers, _open_worker, source):
        waiting.append(pair)
        if len(waiting) == stored.pairs:
            writer.add(stored.part, waiting)
            waiting = []
        yield stored.matches


def _matched(
    features: Path, options: MatchingOptions, device: str, pairs: list[Pair], workers: Workers
) -> Iterator[tuple[Pair, _Found]]:
    """Pairs with what was found."""
    if workers.is_here:
        yield from _open_worker(features, options, device).match(pairs)
    else:
        yield from on_workers(_work, pairs, workers, _open_worker, (features, options, device))


@dataclass(frozen=True)
class _Worker:
    """Matches pairs, in their order but on a device."""

    read: Callable[[str], Features]
    options: MatchingOptions
    device: str

    def match(self, pairs: Sequence[Pair]) -> Iterator[tuple[Pair, _Found]]:
        counts: dict[str, int] = {}

        def counted(name: str) -> Features:
            found = self.read(name)
            counts[name] = len(found)
            return found

        for pair, matches in match_many(counted, pairs, self.options, self.device):
            yield pair, (counts[pair[0]], matches)


def _open_worker(features: Path, options: MatchingOptions, device: str) -> _Worker:
    return _Worker(lru_cache(KEPT_IMAGES)(open_features(features).read), options, device)


def _work(worker: _Worker, pair: Pair) -> _Found:
    first, second = (worker.read(name) for name in pair)
    return len(first), match_features(first, second, worker.options)


def _match_shard(worker: _Worker, pairs: Sequence[Pair], folder: Path, settings: dict[str, Any]) -> list[_InShard]:
    """In a worker: write the matches of a batch into a shard."""
    path, counts = new_part(folder), dict[Pair, int]()

    def counted() -> Iterator[tuple[Pair, _Found]]:
        for pair, found in worker.match(pairs):
            counts[pair] = len(found[1])
            yield pair, found

    with MatchWriter(path, settings) as writer:
        for _ in _into_file(writer, counted()):
            pass
    part = finished_part(path, sum(counts.values()))
    return [_InShard(counts[pair], part, len(pairs)) for pair in pairs]
