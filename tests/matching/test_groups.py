from __future__ import annotations

from functools import lru_cache

import numpy as np

from logpolar.matching.groups import KEPT_IMAGES, TILE, in_tiles
from logpolar.matching.pairs import exhaustive_pairs


def reads(pairs):
    """How often images are read from the disk."""
    count = [0]

    @lru_cache(KEPT_IMAGES)
    def read(name):
        count[0] += 1

    for pair in pairs:
        for name in pair:
            read(name)
    return count[0]


def shuffled(pairs):
    return [pairs[row] for row in np.random.default_rng(0).permutation(len(pairs))]


class TestInTiles:
    def test_pairs_are_the_same(self):
        pairs = shuffled(exhaustive_pairs([f"{number}.jpg" for number in range(50)]))
        assert in_tiles(pairs) != pairs
        assert sorted(in_tiles(pairs)) == sorted(pairs)
        assert in_tiles([]) == []

    def test_of_all_pairs_an_image_is_read_once_per_tile(self):
        count = 6 * TILE
        pairs = shuffled(exhaustive_pairs([f"{number}.jpg" for number in range(count)]))
        tiles = 6 * 7 // 2
        assert reads(in_tiles(pairs)) <= TILE * (tiles + 1)
        assert reads(pairs) > 20 * reads(in_tiles(pairs))

    def test_of_scenes_apart_each_image_is_read_about_once(self):
        pairs = shuffled(
            [pair for scene in range(10) for pair in exhaustive_pairs([f"{scene}/{n}" for n in range(30)])]
        )
        assert reads(in_tiles(pairs)) == 300
