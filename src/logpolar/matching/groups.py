"""The order in which pairs are matched: so that an image is read from the disk, or uploaded, as rarely as possible.

Images get numbers so that those that are paired have numbers near each other, breadth first through the graph of pairs
(Cuthill and McKee, 1969). The table of all pairs is then worked off in square tiles of ``TILE`` images: of the images
of one tile each is read once, and those of its rows stay for the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from logpolar.matching.pairs import Pair

TILE = 32

KEPT_IMAGES = 3 * TILE
"""Images whose features a process keeps: those of a tile, and as many as the next one needs before the last leave."""


def in_tiles(pairs: Sequence[Pair]) -> list[Pair]:
    """The same pairs in the order of tiles."""
    number = _numbered(pairs)

    def place(pair: Pair) -> tuple[int, int, int, int]:
        low, high = sorted((number[pair[0]], number[pair[1]]))
        return low // TILE, high // TILE, low, high

    return sorted(pairs, key=place)


def _numbered(pairs: Sequence[Pair]) -> dict[str, int]:
    neighbours: dict[str, list[str]] = {}
    for first, second in pairs:
        neighbours.setdefault(first, []).append(second)
        neighbours.setdefault(second, []).append(first)
    found: dict[str, int] = {}
    for start in neighbours:
        if start in found:
            continue
        found[start] = len(found)
        waiting = deque([start])
        while waiting:
            for other in neighbours[waiting.popleft()]:
                if other not in found:
                    found[other] = len(found)
                    waiting.append(other)
    return found
