"""Image pairs to evaluate detectors on, with the place of each pixel in the other image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.aligned import read_pair_list
from logpolar.datasets.depth import nearest
from logpolar.datasets.options import PairRules
from logpolar.datasets.visibility import select_pairs, shared_points
from logpolar.errors import LogpolarError
from logpolar.evaluation.hpatches_sequences import Sequences
from logpolar.evaluation.options import DetectorsOptions, HPatchesOptions
from logpolar.geometry.cameras import Camera, Matrix, Transfer
from logpolar.geometry.homography import warp_points
from logpolar.images import fitted_size, read_gray, resize, resize_matrix, resize_points
from logpolar.sfm.depth_maps import read_depth
from logpolar.sfm.workspace import read_workspace
from logpolar.types import FloatArray

_OCCLUSION = 0.05
"""Relative difference of depths above which a pixel is hidden in the other image."""

Size: TypeAlias = tuple[int, int]
"""Width and height."""

Warp: TypeAlias = Callable[[FloatArray], tuple[Matrix, NDArray[np.bool_]]]
"""Positions (N, 2) to those in the other image, and whether they are known to be visible there."""


@dataclass(frozen=True)
class SizedImage:
    """An image file, to be resized."""

    path: Path
    size: Size

    @property
    def key(self) -> str:
        return f"{self.path}@{self.size}"

    def read(self) -> FloatArray:
        return resize(read_gray(self.path), self.size)


@dataclass(frozen=True, eq=False)
class DetectorPair:
    """Two images, and where pixels of each lie in the other."""

    first: SizedImage
    second: SizedImage
    forward: Warp
    backward: Warp


@dataclass(frozen=True, eq=False)
class _Planar:
    homography: Matrix
    size: Size  # of the other image

    def __call__(self, xy: FloatArray) -> tuple[Matrix, NDArray[np.bool_]]:
        with np.errstate(divide="ignore", invalid="ignore"):  # points at infinity are not inside
            sent = warp_points(self.homography, xy.astype(np.float64))[0]
        return sent, _inside(sent, self.size)


@dataclass(frozen=True, eq=False)
class _Solid:
    """With cameras of the images as they are seen, and files of depth maps of any resolution."""

    cameras: tuple[Camera, Camera]
    depths: tuple[Path, Path]

    def __call__(self, xy: FloatArray) -> tuple[Matrix, NDArray[np.bool_]]:
        here, there = self.cameras
        depth = _depth_at(self.depths[0], here, xy.astype(np.float64))
        x, y, deep = Transfer.between(here, there)(xy[:, 0].astype(np.float64), xy[:, 1].astype(np.float64), depth)
        sent = np.asarray(np.stack([x, y], axis=1), np.float64)
        inside = _inside(sent, (there.width, there.height)) & (depth > 0) & (deep > 0)
        met = _depth_at(self.depths[1], there, np.where(inside[:, None], sent, 0))
        return sent, inside & (met > 0) & (np.abs(met - deep) <= _OCCLUSION * np.abs(deep))


def _inside(xy: Matrix, size: Size) -> NDArray[np.bool_]:
    return np.asarray(((xy >= 0) & (xy <= np.array(size) - 1)).all(axis=1))


def _depth_at(path: Path, camera: Camera, xy: Matrix) -> Matrix:
    """Depths (N,), 0 where unknown, of positions of a camera's image."""
    depth = read_depth(path)
    factor = np.array([depth.shape[1] / camera.width, depth.shape[0] / camera.height])
    place = np.clip(resize_points(xy, factor), 0, np.array(depth.shape[::-1]) - 1)
    return np.asarray(nearest(depth, place[:, 0], place[:, 1]), np.float64)


def read_pairs(path: Path, options: DetectorsOptions) -> list[DetectorPair]:
    """The image pairs of a folder of HPatches sequences, a list of aligned pairs, or a COLMAP workspace."""
    if path.is_file():
        pairs = list(_aligned(path, options))
    elif any(each.is_dir() for pattern in ("i_*", "v_*") for each in path.glob(pattern)):
        pairs = list(_sequences(path, options))
    else:
        pairs = list(_workspace(path, options))
    if not pairs:
        raise LogpolarError(f"{path}: no image pairs in it")
    if options.pairs and options.pairs < len(pairs):
        drawn = np.random.default_rng(options.seed).permutation(len(pairs))[: options.pairs]
        pairs = [pairs[number] for number in sorted(drawn.tolist())]
    return pairs


def _aligned(path: Path, options: DetectorsOptions) -> Iterator[DetectorPair]:
    for pair in read_pair_list(path):
        yield _planar((pair.first, pair.second), np.eye(3) if pair.homography is None else pair.homography, options)


def _sequences(path: Path, options: DetectorsOptions) -> Iterator[DetectorPair]:
    for images, homographies in Sequences(path, HPatchesOptions(mode="full")).files():
        for number, homography in homographies.items():
            yield _planar((images[1], images[number]), homography, options)


def _planar(paths: tuple[Path, Path], homography: Matrix, options: DetectorsOptions) -> DetectorPair:
    """A pair related by a homography between the files' pixels."""
    shapes = [read_gray(path).shape for path in paths]
    sizes = [(shape[1], shape[0]) for shape in shapes]
    seen = _seen(sizes, options)
    here, there = (resize_matrix(before, after) for before, after in zip(sizes, seen, strict=True))
    between = there @ homography @ np.linalg.inv(here)
    images = [SizedImage(path, size) for path, size in zip(paths, seen, strict=True)]
    return DetectorPair(images[0], images[1], _Planar(between, seen[1]), _Planar(np.linalg.inv(between), seen[0]))


def _seen(sizes: Sequence[Size], options: DetectorsOptions) -> list[Size]:
    """Sizes of both images as detectors see them: limited, then the second reduced by the zoom."""
    first, second = (fitted_size(size, options.max_size or None) for size in sizes)
    return [first, fitted_size(second, max(round(max(second) / options.zoom), 1))]


def _workspace(path: Path, options: DetectorsOptions) -> Iterator[DetectorPair]:
    scene = read_workspace(path)
    rules = PairRules(min_overlap=0.1, max_per_image=0)
    random = np.random.default_rng(options.seed)
    pairs, _ = select_pairs(scene, shared_points(scene), [""] * len(scene.views), rules, random)
    for pair in pairs:
        views = scene.views[pair.first], scene.views[pair.second]
        seen = _seen([(view.camera.width, view.camera.height) for view in views], options)
        here, there = (view.camera.resized(*size) for view, size in zip(views, seen, strict=True))
        images = [SizedImage(view.image, size) for view, size in zip(views, seen, strict=True)]
        depths = views[0].depth, views[1].depth
        ways = _Solid((here, there), depths), _Solid((there, here), depths[::-1])
        yield DetectorPair(images[0], images[1], *ways)
