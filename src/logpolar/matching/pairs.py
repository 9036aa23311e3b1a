"""Image pairs to match: exhaustive, sequential by name, by retrieval, or from a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from logpolar.errors import LogpolarError
from logpolar.settings import check_settings, setting
from logpolar.storage.inputs import read_text

if TYPE_CHECKING:  # the command line's options import this module, and numpy is slow to import
    from logpolar.features.collections import FeatureSource
    from logpolar.types import FloatArray

Pair: TypeAlias = tuple[str, str]

Pairing = Literal["exhaustive", "sequential", "retrieval"]
PAIRINGS: tuple[Pairing, ...] = get_args(Pairing)


@dataclass(frozen=True)
class PairingOptions:
    """How image pairs are selected."""

    pairing: Pairing = setting(  # noqa: RUF009 - it makes a field
        "exhaustive",
        "Every image with every other, with the next ones by name, or with the most similar ones.",
        choices=PAIRINGS,
    )
    overlap: int = setting(10, "Sequential: number of following images that each image is paired with.", 1)
    neighbours: int = setting(20, "Retrieval: number of most similar images that each image is paired with.", 1)
    deduplicate: bool = setting(False, "Retrieval: near-identical photos are paired with the first of them only.")

    def __post_init__(self) -> None:
        check_settings(self)


def choose_pairs(names: Sequence[str], options: PairingOptions, source: FeatureSource | None = None) -> list[Pair]:
    """Pairs of named images; no image with itself, no pair twice.

    ``source`` holds the images' features; only retrieval needs it.
    """
    if options.pairing == "exhaustive":
        return exhaustive_pairs(names)
    if options.pairing == "sequential":
        return sequential_pairs(names, options.overlap)
    from logpolar.matching.retrieval import shipped_centres, similar_pairs

    if source is None:
        raise ValueError("retrieval needs the images' descriptors")
    centres = shipped_centres(source.settings)

    def read_descriptors(name: str) -> FloatArray:
        return source.read(name).descriptors

    return similar_pairs(names, read_descriptors, options.neighbours, centres=centres, deduplicate=options.deduplicate)


def exhaustive_pairs(names: Sequence[str]) -> list[Pair]:
    return list(combinations(names, 2))


def sequential_pairs(names: Sequence[str], overlap: int) -> list[Pair]:
    """Each image with the next ``overlap`` ones, in the given order."""
    return [(name, other) for number, name in enumerate(names) for other in names[number + 1 : number + 1 + overlap]]


def spatial_pairs(names: Sequence[str], positions: Mapping[str, Sequence[float]], neighbours: int) -> list[Pair]:
    """Each image with its nearest ``neighbours`` by position; images without a position with every other."""
    import numpy as np

    known = [name for name in names if name in positions]
    places = np.array([positions[name] for name in known], np.float64).reshape(len(known), -1)
    found = []
    for name, place in zip(known, places, strict=True):
        order = np.argsort(np.linalg.norm(places - place, axis=1), kind="stable")
        nearest = [known[row] for row in order if known[row] != name][:neighbours]
        found += [(min(name, other), max(name, other)) for other in nearest]
    for name in names:
        if name not in positions:
            found += [(min(name, other), max(name, other)) for other in names if other != name]
    return sorted(set(found))


def each_once(pairs: Iterable[Pair]) -> list[Pair]:
    """The pairs without repetitions, where the order of the two names does not matter."""
    found: dict[frozenset[str], Pair] = {}
    for pair in pairs:
        found.setdefault(frozenset(pair), pair)
    return list(found.values())


_MOST_WORDS = 100
"""Of a line with two names that contain spaces."""


def read_pairs(path: str | Path, names: Iterable[str]) -> list[Pair]:
    """Pairs from a text file with two names per line, as in hloc and COLMAP; each must be among ``names``.

    Empty lines and lines that begin with ``#`` are skipped, as are repeated pairs in either order. Names may contain
    spaces if only one split of the line gives two known names.
    """
    known, found = set(names), list[Pair]()
    for number, line in enumerate(read_text(path, LogpolarError, "text file of pairs").splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            found.append(_parse(line.strip(), known, f"{path}: line {number}"))
    if not found:
        raise LogpolarError(f"{path}: no pairs in this file")
    return each_once(found)


def _parse(line: str, known: set[str], place: str) -> Pair:
    words = line.split()
    if not 2 <= len(words) <= _MOST_WORDS:
        raise LogpolarError(f"{place}: '{line[:200]}' is not a pair of two names")
    splits = [(" ".join(words[:here]), " ".join(words[here:])) for here in range(1, len(words))]
    good = [pair for pair in splits if set(pair) <= known]
    if not good:
        unknown = next(name for name in splits[0] if name not in known)
        raise LogpolarError(f"{place}: no image '{unknown}' among the features")
    if len(good) > 1:
        raise LogpolarError(f"{place}: '{line}' is ambiguous: it can be split into more than one pair of names")
    if good[0][0] == good[0][1]:
        raise LogpolarError(f"{place}: an image cannot be matched with itself")
    return good[0]
