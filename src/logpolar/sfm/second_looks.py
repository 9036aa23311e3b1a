"""Second looks at the pairs of a reconstruction: what ``geometry.second_look`` adds to their matches.

OUTPUT/looks.h5   what each pair gained, a feature file: keypoint k of "A B 1" matches keypoint k of "A B 2" (names are
                  quoted as in URLs); empty for pairs that gained nothing. Resumable, as all files of a run.
OUTPUT/merged.h5  features and matches of both looks, which the database is made of. Written anew from the other files.

New keypoints that lie within a pixel of each other, or of one of the first look, become one: so that what different
pairs found at the same place makes one track.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from logpolar.distributed import Workers, on_workers, show_progress
from logpolar.features.batch import OpenExtractor
from logpolar.features.collections import open_features
from logpolar.features.extractor import Extractor
from logpolar.features.features import Features
from logpolar.features.files import FeatureFile, FeatureWriter
from logpolar.features.regions import Region
from logpolar.geometry.options import DEFAULT_REGION_SIZE, EstimationOptions
from logpolar.geometry.radius_search import close_pairs, keep_apart
from logpolar.geometry.second_look import MatchedImages, look_again
from logpolar.geometry.verification import VerifiedMatches, estimate_geometry
from logpolar.images.masks import read_mask, unmasked
from logpolar.keypoints import Keypoints
from logpolar.matching.files import MatchFile, PairWriter
from logpolar.matching.nearest import Matches
from logpolar.matching.pairs import Pair
from logpolar.storage.hdf5 import in_lumps
from logpolar.types import FloatArray

MODEL = "fundamental"
"""The geometry that the matches of a pair must agree with: lenses are not known yet."""

_SAME_PLACE = 1.0
"""Keypoints that are closer than this are one, in pixels of the image as it was described."""

_KEPT_IMAGES = 32
"""Whole images whose second features a process keeps for their next pairs."""

Rows: TypeAlias = NDArray[np.intp]


@dataclass(frozen=True)
class LookSources:
    """Where second looks find photos, features and matches, and how they extract; sent to processes."""

    photos: Path
    features: Path
    matches: Path
    open_extractor: OpenExtractor
    region_size: int = DEFAULT_REGION_SIZE
    masks: Mapping[str, Path] = field(default_factory=dict)  # files by name, see ``images.masks``


@dataclass(frozen=True)
class LookReport:
    """Counts of a run of ``look_at_pairs``: pairs, those that gained matches, and the matches."""

    pairs: int
    gained: int
    matches: int


def look_at_pairs(
    sources: LookSources,
    output: Path,
    pairs: Sequence[Pair],
    jobs: int = 1,
    overwrite: bool = False,
    progress: bool = False,
) -> LookReport:
    """Look at pairs again, and store what is added; pairs that are in the file are skipped."""
    with open_features(sources.features) as file, MatchFile(sources.matches) as matches:
        made_with = {"features": file.settings, "matches": matches.settings}
    settings = {**made_with, "second_look": sources.open_extractor(threads=1).settings}
    with FeatureWriter(output, {**settings, "region_size": sources.region_size}, overwrite) as writer:
        todo = [pair for pair in pairs if _entry(pair, 1) not in writer.finished]
        workers = Workers(jobs).at_most(len(todo))
        arguments = sources, 0 if workers.is_here else workers.threads
        with show_progress(len(pairs), "second looks", "pair", progress, len(pairs) - len(todo)) as bar:
            found = on_workers(_look, todo, workers, _Looker, arguments)
            both = ({_entry(pair, side): part for side, part in enumerate(parts, 1)} for pair, parts in found)
            for _ in in_lumps(both, writer.add_many):
                bar.update()
    with FeatureFile(output) as file:
        counts = [file.count(_entry(pair, 1)) for pair in pairs]
    return LookReport(len(pairs), sum(count > 0 for count in counts), sum(counts))


def _entry(pair: Pair, side: int) -> str:
    return " ".join([*(quote(name, safe="") for name in pair), str(side)])


class _Looker:
    """A process that looks at pairs."""

    def __init__(self, sources: LookSources, threads: int) -> None:
        self._sources = sources
        self._features, self._matches = open_features(sources.features), MatchFile(sources.matches)
        extractor = sources.open_extractor(threads=threads)
        assert isinstance(extractor, Extractor)
        self._extractor, self._other = extractor, extractor.settings != self._features.settings
        self._extract = lru_cache(_KEPT_IMAGES)(self._extract_region)

    def look(self, pair: Pair) -> tuple[Features, Features]:
        """The keypoints that a pair gains, and their descriptors: as many of each photo."""
        sides = [self._features.read(name) for name in pair]
        first, second = sides
        matches, estimation = self._matches.read(*pair), EstimationOptions()
        geometry = estimate_geometry(MODEL, first, second, matches, None, estimation)
        nothing = np.zeros((0, 2), np.intp)
        if not geometry.common_scene:
            return _chosen(first, nothing[:, 0]), _chosen(second, nothing[:, 1])
        here, there = (side.keypoints.xy[rows] for side, rows in zip(sides, matches.indices.T, strict=True))
        found = VerifiedMatches(MODEL, matches, geometry, here, there, estimation.threshold_of(MODEL))
        extract = partial(self._extract, pair[0]), partial(self._extract, pair[1])
        size = self._sources.region_size
        again = look_again(MatchedImages(first, second, found), extract, other=self._other, region_size=size)
        indices = again.found.matches.indices
        new = again.found.geometry.inliers & (indices[:, 0] >= len(first)) & (indices[:, 1] >= len(second))
        return _chosen(again.first, indices[new, 0]), _chosen(again.second, indices[new, 1])

    def _extract_region(self, name: str, region: Region) -> Features:
        found = self._extractor.extract_region(self._sources.photos / name, region)
        if name not in self._sources.masks:
            return found
        used = read_mask(self._sources.masks[name], found.image_size)
        return _chosen(found, np.flatnonzero(unmasked(used, found.keypoints.xy)))


def _look(looker: _Looker, pair: Pair) -> tuple[Features, Features]:
    return looker.look(pair)


def _chosen(features: Features, rows: Rows | NDArray[np.integer[Any]]) -> Features:
    return replace(features, keypoints=features.keypoints[rows], descriptors=features.descriptors[rows])


def merge_looks(
    features: Path, matches: Path, looks: Path, output: Path, names: Iterable[str], pairs: Sequence[Pair]
) -> None:
    """Write features of photos and matches of pairs, of both looks, into one file; rows of the first look stay.

    Pairs without a second look keep the matches that they have.
    """
    by_image: dict[str, list[tuple[Pair, int]]] = {name: [] for name in names}
    with FeatureFile(looks) as added:
        there = set(added.names())
    for pair in (pair for pair in pairs if _entry(pair, 1) in there):
        for side, name in enumerate(pair, 1):
            by_image[name].append((pair, side))
    rows: dict[tuple[Pair, int], Rows] = defaultdict(lambda: np.zeros(0, np.intp))
    counts: dict[str, int] = {}
    with open_features(features) as before, FeatureFile(looks) as added, MatchFile(matches) as found:
        settings = {**before.settings, "second_look": added.settings["second_look"]}
        with PairWriter(output, settings, overwrite=True) as writer:
            for name in sorted(by_image):
                whole = before.read(name)
                parts = [added.read(_entry(*key)) for key in by_image[name]]
                joined, targets = merge_features(whole, parts)
                writer.add(name, joined)
                rows |= dict(zip(by_image[name], targets, strict=True))
                counts[name] = len(joined)
            for some in _batches(pairs):
                merged = {
                    pair: (counts[pair[0]], merge_matches(found.read(*pair), rows[pair, 1], rows[pair, 2]))
                    for pair in some
                }
                writer.add_all_matches(merged)


def merge_features(whole: Features, parts: Sequence[Features]) -> tuple[Features, list[Rows]]:
    """Features of the first look, followed by those of the parts that lie elsewhere; the row of each part's keypoints.

    A keypoint of a part close to one of the first look, or else of an earlier part, is that one.
    """
    known, radius = len(whole), _SAME_PLACE / whole.scale
    new = np.concatenate([np.zeros((0, 2), np.float32), *(part.keypoints.xy for part in parts)])
    target = _nearest(new, whole.keypoints.xy, radius)
    free = np.flatnonzero(target < 0)
    kept = free[keep_apart(range(len(free)), [new[free]], radius, len(free))]
    order = _nearest(new[free], new[kept], radius)
    target[free] = known + order
    keypoints, descriptors = whole.keypoints, [whole.descriptors]
    if len(kept):
        keypoints = keypoints + _joined([part.keypoints for part in parts])[kept]
        descriptors.append(np.concatenate([part.descriptors for part in parts])[kept])
    rows = np.split(target, np.cumsum([len(part) for part in parts])[:-1])[: len(parts)]
    return replace(whole, keypoints=keypoints, descriptors=np.concatenate(descriptors)), rows


def _nearest(points: FloatArray, others: FloatArray, radius: float) -> Rows:
    """(N,): for each point the nearest of the others within the radius, the first of equals, or -1."""
    found = np.full(len(points), -1, np.intp)
    here, there = close_pairs(points, others, radius)
    gap = ((points[here] - others[there]) ** 2).sum(axis=1)
    order = np.lexsort((there, gap, here))
    first = np.unique(here[order], return_index=True)
    found[first[0]] = there[order][first[1]]
    return found


def _joined(several: Iterable[Keypoints]) -> Keypoints:
    first, *others = several
    for each in others:
        first = first + each
    return first


def merge_matches(matches: Matches, first: Rows, second: Rows) -> Matches:
    """Matches of the first look, and those of the second between rows that have none yet: one partner for each."""
    used: tuple[set[int], set[int]] = tuple(set(column.tolist()) for column in matches.indices.T)  # type: ignore[assignment]
    added = []
    for here, there in zip(first.tolist(), second.tolist(), strict=True):
        if here not in used[0] and there not in used[1]:
            used[0].add(here)
            used[1].add(there)
            added.append((here, there))
    indices = np.concatenate([matches.indices, np.array(added, np.int32).reshape(-1, 2)])
    distances = np.concatenate([matches.distances, np.zeros(len(added), np.float32)])
    return Matches(indices, distances)


def _batches(pairs: Sequence[Pair], size: int = 256) -> Iterator[Sequence[Pair]]:
    return (pairs[start : start + size] for start in range(0, len(pairs), size))
