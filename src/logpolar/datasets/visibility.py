"""Selection of image pairs of a scene by covisibility."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.options import PairRules
from logpolar.geometry.cameras import direction_degrees
from logpolar.sfm.workspace import Scene, View


@dataclass(frozen=True)
class Pair:
    """Two views by number; the first shows the shared points larger."""

    first: int
    second: int
    angle: float  # median degrees between the rays to the shared points

    @property
    def views(self) -> tuple[int, int]:
        return self.first, self.second


def shared_points(scene: Scene) -> NDArray[np.int32]:
    """(V, V): number of points of the sparse model that two views share."""
    counts = np.zeros((len(scene.views), len(scene.views)), np.int32)
    seen = np.zeros(len(scene.points), np.bool_)
    for number, view in enumerate(scene.views):
        seen[view.points] = True
        for other in range(number + 1, len(scene.views)):
            counts[number, other] = counts[other, number] = seen[scene.views[other].points].sum()
        seen[view.points] = False
    return counts


def select_pairs(
    scene: Scene,
    shared: NDArray[np.int32],
    splits: list[str],
    rules: PairRules,
    random: np.random.Generator,
    max_size: int = 2**31,
) -> tuple[list[Pair], Counter[str]]:
    """Pairs that pass the visibility test, sorted, and the numbers of others by cause.

    Only images of the same split are paired. If ``max_per_image`` is exceeded, pairs are admitted round-robin from
    classes of viewing angle 10 degrees wide, at random within each. Images will be downscaled to ``max_size`` pixels on
    the longer side, which decides which of the two shows the points larger.
    """
    rejects: Counter[str] = Counter()
    pairs = []
    for first, second in combinations(range(len(scene.views)), 2):
        if shared[first, second] < max(rules.min_shared, 1):
            rejects["few shared points"] += 1
        elif _overlap(scene.views[first], scene.views[second]) < rules.min_overlap:
            rejects["small overlap"] += 1
        elif splits[first] != splits[second]:
            rejects["across the split"] += 1
        else:
            pairs.append(_make_pair(scene, first, second, max_size))
    admitted = _limit(pairs, rules.max_per_image, random) if rules.max_per_image else pairs
    rejects["over the limit per image"] = len(pairs) - len(admitted)
    return sorted(admitted, key=lambda pair: pair.views), rejects


def _overlap(first: View, second: View) -> float:
    """Fraction of the image that the bounding box of the shared points covers, the smaller of both images."""
    _, here, there = np.intersect1d(first.points, second.points, assume_unique=True, return_indices=True)
    boxes = [np.prod(np.ptp(view.xy[rows], axis=0)) for view, rows in ((first, here), (second, there))]
    areas = [view.camera.width * view.camera.height for view in (first, second)]
    return float(min(box / area for box, area in zip(boxes, areas, strict=True)))


def _make_pair(scene: Scene, first: int, second: int, max_size: int) -> Pair:
    """The ordered pair: an error of a pixel in the larger image is less than a pixel in the smaller."""
    views = scene.views[first], scene.views[second]
    points = scene.points[np.intersect1d(views[0].points, views[1].points, assume_unique=True)]
    cameras = [view.camera for view in views]
    reduced = [min(max_size / max(camera.width, camera.height), 1) for camera in cameras]
    magnification = [np.median(c.matrix[0, 0] * r / c.see(points)[1]) for c, r in zip(cameras, reduced, strict=True)]
    angle = float(np.median(direction_degrees(*(points - camera.centre for camera in cameras))))
    larger, smaller = (first, second) if magnification[0] >= magnification[1] else (second, first)
    return Pair(larger, smaller, angle)


def _limit(pairs: list[Pair], most: int, random: np.random.Generator) -> list[Pair]:
    rank: Counter[int] = Counter()
    ranked = []
    for index in random.permutation(len(pairs)):
        kind = int(pairs[index].angle // 10)
        ranked.append((rank[kind], kind, pairs[index]))
        rank[kind] += 1
    count: Counter[int] = Counter()
    admitted = []
    for _, _, pair in sorted(ranked, key=lambda entry: entry[:2]):
        if all(count[view] < most for view in pair.views):
            count.update(pair.views)
            admitted.append(pair)
    return admitted
