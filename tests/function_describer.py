"""Plain functions of an 8 bit view and keypoints as describers, and scores of pairs that are in no file."""

from __future__ import annotations

from logpolar.evaluation.cache import Uncached
from logpolar.evaluation.pairs import DescribedPair, pool_of, score_described
from logpolar.images import to_bytes
from logpolar.models.describers import Describer


class FunctionDescriber(Describer):
    def __init__(self, function):
        self._function = function

    def describe(self, gray, keypoints):
        return self._function(to_bytes(gray), keypoints)


def uncached(function) -> Uncached:
    return Uncached(FunctionDescriber(function))


def score_pairs(pairs, describe):
    """The score of image pairs that have nothing in common with each other."""
    described = [
        DescribedPair(
            describe(pair.first, pair.correspondences.first),
            describe(pair.second, pair.second_keypoints[pool_of(pair)]),
            pair.correspondences,
        )
        for pair in pairs
        if len(pair.correspondences)
    ]
    return score_described(described)
