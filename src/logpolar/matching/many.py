"""Matching of many pairs of images, on the CPU or a torch device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from logpolar.features.features import Features
from logpolar.keypoints import Keypoints
from logpolar.matching.nearest import Matches, filter_matches, match_features, select_matches
from logpolar.matching.options import MatchingOptions
from logpolar.matching.pairs import Pair
from logpolar.types import FloatArray

if TYPE_CHECKING:
    from logpolar.matching.torch_nearest import PairOnDevice

KEPT_IMAGES = 64
"""Images whose features a process keeps in memory: pairs of one image follow each other."""


def match_many(
    read: Callable[[str], Features],
    pairs: Iterable[Pair],
    options: MatchingOptions | None = None,
    device: str = "cpu",
) -> Iterator[tuple[Pair, Matches]]:
    """Matches of pairs of named images, in any order; ``read`` gives the features of an image.

    >>> with FeatureFile("features.h5") as file:                                          # doctest: +SKIP
    ...     matches = dict(match_many(file.read, [("a.jpg", "b.jpg")], device="cuda"))

    On a device, descriptors of an image are uploaded once and stay while memory lasts, and pairs are matched in
    batches; the result is the CPU's but for neighbours that are equally near in float32.
    """
    options = options or MatchingOptions()
    if device != "cpu":
        yield from _on_device(read, pairs, options, device)
        return
    kept = lru_cache(KEPT_IMAGES)(read)
    for pair in pairs:
        yield pair, match_features(kept(pair[0]), kept(pair[1]), options)


def _on_device(
    read: Callable[[str], Features], pairs: Iterable[Pair], options: MatchingOptions, device: str
) -> Iterator[tuple[Pair, Matches]]:
    from logpolar.matching.torch_nearest import UploadedImages, nearest_of_pairs

    keypoints: dict[str, Keypoints] = {}
    waiting: deque[Pair] = deque()
    empty: list[Pair] = []

    def read_descriptors(name: str) -> FloatArray:
        features = read(name)
        keypoints[name] = features.keypoints
        return features.descriptors

    images = UploadedImages(read_descriptors, device)

    def uploaded() -> Iterator[PairOnDevice]:
        for pair in pairs:
            both = images[pair[0]], images[pair[1]]
            if all(map(len, both)):
                waiting.append(pair)
                yield both
            else:
                empty.append(pair)

    for found in nearest_of_pairs(uploaded()):
        pair = waiting.popleft()
        first, second = (keypoints[name] for name in pair)
        yield pair, filter_matches(select_matches(found, options), first, second, options)
    yield from ((pair, Matches.empty()) for pair in empty)
