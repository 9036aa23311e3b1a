"""Matching of many pairs of images, on the CPU or a torch device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from logpolar.features.features import Features
from logpolar.keypoints import Keypoints
from logpolar.matching.groups import KEPT_IMAGES
from logpolar.matching.learned import open_matcher
from logpolar.matching.nearest import Matches, filter_matches, match_features, select_matches
from logpolar.matching.options import MatchingOptions
from logpolar.matching.pairs import Pair
from logpolar.types import FloatArray

if TYPE_CHECKING:
    from logpolar.matching.torch_nearest import PairOnDevice

_LEARNED_BATCH = 32
"""Pairs that a learned matcher gets at a time on a device."""


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
    batches; the result is the CPU's but for neighbours that are equally near in float32. A learned matcher runs there
    in float16.
    """
    options = options or MatchingOptions()
    kept = lru_cache(KEPT_IMAGES)(read)
    if device == "cpu":
        yield from ((pair, match_features(kept(pair[0]), kept(pair[1]), options)) for pair in pairs)
    elif options.learned:
        yield from _learned_on_device(kept, pairs, options, device)
    else:
        yield from _on_device(read, pairs, options, device)


def _learned_on_device(
    read: Callable[[str], Features], pairs: Iterable[Pair], options: MatchingOptions, device: str
) -> Iterator[tuple[Pair, Matches]]:
    matcher, left = open_matcher(options.matcher, device), iter(pairs)
    while batch := list(islice(left, _LEARNED_BATCH)):
        images = [(read(first), read(second)) for first, second in batch]
        for pair, (first, second), matches in zip(batch, images, matcher.match_batch(images), strict=True):
            yield pair, filter_matches(matches, first.keypoints, second.keypoints, options)


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
