"""What poses are measured on: image pairs and sets of images drawn from scenes, with keypoints and descriptors.

Images of a set ("bag") hang together: it grows from one image through pairs that see enough of the same. All pairs in
it are matched, though: which of them see the same is not told.

Everything random comes from the options' seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from logpolar.errors import LogpolarError
from logpolar.evaluation.descriptors.keypoint_sources import KeypointSource, sift_source
from logpolar.evaluation.pairs import Describe, Describer, describe_named
from logpolar.evaluation.poses.options import PhototourismOptions
from logpolar.evaluation.poses.scenes import Gray, PosedScene
from logpolar.evaluation.poses.scores import check_estimator
from logpolar.geometry.cameras import Camera
from logpolar.keypoints import Keypoints
from logpolar.sfm.pycolmap_compat import import_pycolmap
from logpolar.types import FloatArray

ImagePair = tuple[int, int]
"""Rows of a scene's images, the smaller first."""

Progress = Callable[[list[int]], Iterable[int]]


@dataclass(frozen=True, eq=False)
class PreparedScene:
    """The pairs and bags that were drawn, and the keypoints of all images in them, by row."""

    scene: PosedScene
    pairs: list[ImagePair]
    bags: dict[int, list[tuple[int, ...]]]  # by size
    views: dict[int, Gray]
    keypoints: dict[int, Keypoints]


def prepare_scene(
    scene: PosedScene,
    options: PhototourismOptions,
    multi_view: bool = False,
    source: KeypointSource | None = None,
    progress: Progress = iter,
) -> PreparedScene:
    """Draw pairs and, with ``multi_view``, bags; read the images that are needed and detect keypoints, once.

    Without a ``source`` keypoints are SIFT's, by the options.
    """
    check_estimator(options.estimator)
    if multi_view:
        if scene.altered:
            raise LogpolarError(
                f"{scene.name}: has reduced or turned copies of images, which give poses of two views only"
            )
        import_pycolmap("multi-view evaluation")
    pairs = draw_pairs(scene, options.pairs, options.seed)
    sizes = options.bags if multi_view else {}
    bags = {size: draw_bags(scene, size, count, options.seed) for size, count in sizes.items()}
    groups: list[tuple[int, ...]] = [*pairs, *(bag for own in bags.values() for bag in own)]
    needed = {row for group in groups for row in group}
    source = source or sift_source(options.keypoints, options.contrast)
    views, keypoints = dict[int, Gray](), dict[int, Keypoints]()
    for row in progress(sorted(needed)):
        views[row] = scene.images[row].read()
        keypoints[row] = source(views[row])
    return PreparedScene(scene, pairs, bags, views, keypoints)


def draw_pairs(scene: PosedScene, count: int, seed: int) -> list[ImagePair]:
    """Some of the scene's pairs, sorted; all for 0."""
    if count == 0 or count >= len(scene.pairs):
        return sorted(scene.pairs)
    chosen = np.random.default_rng(seed).permutation(len(scene.pairs))[:count]
    return sorted(scene.pairs[index] for index in chosen)


def draw_bags(scene: PosedScene, size: int, count: int, seed: int) -> list[tuple[int, ...]]:
    """Different sets of ``size`` images that hang together through the scene's pairs.

    Fewer than ``count`` where a scene has not so many, as far as 20 attempts a set can tell.
    """
    random, bags = np.random.default_rng([seed, size]), dict[tuple[int, ...], None]()
    neighbours = _neighbours(scene)
    for _ in range(20 * count):
        if len(bags) == count:
            break
        bag = _grow(neighbours, size, random)
        if len(bag) == size:
            bags[tuple(sorted(bag))] = None
    return list(bags)


def _neighbours(scene: PosedScene) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {row: set() for row in range(len(scene.images))}
    for first, second in scene.pairs:
        found[first].add(second)
        found[second].add(first)
    return found


def _grow(neighbours: Mapping[int, set[int]], size: int, random: np.random.Generator) -> set[int]:
    bag = {int(random.integers(len(neighbours)))}
    while len(bag) < size:
        around = sorted(set().union(*(neighbours[row] for row in bag)) - bag)
        if not around:
            break
        bag.add(around[int(random.integers(len(around)))])
    return bag


# Describing


@dataclass(frozen=True, eq=False)
class DescribedImage:
    camera: Camera
    xy: FloatArray  # (N, 2)
    descriptors: FloatArray  # (N, D)


def describe_scene(
    prepared: PreparedScene,
    describe: Describe | Describer,
    source: KeypointSource | None = None,
    progress: Progress = iter,
) -> dict[int, DescribedImage]:
    """All images that pairs or bags need, each described once; at other keypoints if there is a ``source`` of them."""
    described, named = {}, describe_named(describe)
    for row in progress(list(prepared.views)):
        image, view = prepared.scene.images[row], prepared.views[row]
        keypoints = prepared.keypoints[row] if source is None else source(view)
        descriptors = named(image.name, view, keypoints)
        if len(descriptors) != len(keypoints) or not np.isfinite(descriptors).all():
            raise ValueError(f"{len(keypoints)} keypoints need as many finite descriptors")
        described[row] = DescribedImage(image.camera, keypoints.xy, descriptors)
    return described
