"""Scenes whose images have known cameras, and the pairs and sets of images drawn from them.

Three kinds are read:

    - a COLMAP model with its images: ``sparse/`` and ``images/``, undistorted. Pairs share ``min_shared`` points of
      the model or more;
    - a scene of the Image Matching Challenge (PhotoTourism): ``set_100/``, or that folder itself, with ``images/``,
      ``calibration/calibration_NAME.h5`` (K, R, T: X_camera = R X + T) and, optionally, ``images.txt`` and
      ``visibility.txt``, which list the images and their visibility files in the same order. The visibility of a pair
      is the smaller of its two; without these files, all images are paired;
    - a correspondence file of a scene (``logpolar dataset colmap``): pairs with correspondences. Second images may
      be downscaled or rotated copies.

Convention:
    K of the challenge is COLMAP's, with pixel centres at halves; cameras here have them at integers, as everywhere.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.visibility import shared_points
from logpolar.errors import LogpolarError, LogpolarWarning, StorageError
from logpolar.geometry.cameras import Camera, Matrix
from logpolar.images import images_in, read_gray, read_image, to_bytes
from logpolar.storage.arrays import opened, read_numbers
from logpolar.storage.inputs import read_text

Gray = NDArray[np.uint8]

RowPair = tuple[int, int]
"""Rows of a scene's images, the smaller first."""

_FILES = (".h5", ".hdf5")
_SET = "set_100"


@dataclass(frozen=True, eq=False)
class Observed:
    """Which points of a scene's model an image shows, by number, sorted, and where: (n,) and (n, 2)."""

    points: NDArray[np.intp]
    xy: Matrix


@dataclass(frozen=True, eq=False)
class PosedImage:
    """An image and its camera; ``read`` gives the pixels, 8 bit and gray, or raises."""

    name: str
    camera: Camera
    read: Callable[[], Gray]
    observed: Observed | None = None


@dataclass(frozen=True, eq=False)
class PosedScene:
    """Images, covisible pairs of them (by row, the smaller first), and why others are missing."""

    name: str
    images: list[PosedImage]
    pairs: list[RowPair]
    left_out: dict[str, str] = field(default_factory=dict)
    transformed: bool = False  # whether second images are zoomed or rotated copies, with the same camera centres
    enlarged: float = 1.0  # of second images that are crops: by how much their pixels were enlarged, the most of all

    def identity(self) -> dict[str, str]:
        """Identity of the images, from names and cameras, without reading them."""
        digest = hashlib.sha256()
        for image in self.images:
            digest.update(repr((image.name, image.camera.width, image.camera.height)).encode())
            digest.update(np.ascontiguousarray(image.camera.table, np.float64).tobytes())
        return {"scene": digest.hexdigest()[:32]}


def read_scene(
    path: str | Path, min_shared: int = 30, min_visibility: float = 0.1, split: str | None = None
) -> PosedScene:
    """Read a scene of any kind; raises unless it has a pair, and warns of images that are left out.

    ``min_shared``: points of a COLMAP model; ``min_visibility``: of the challenge, between 0 and 1. ``split``: of a
    correspondence file only pairs of this split, unless it has none.
    """
    path = Path(path)
    if not path.exists():
        raise StorageError(f"{path}: no such file or folder")
    if path.is_file():
        scene = _read_correspondences(path, split)
    elif (path / "sparse").is_dir():
        scene = _read_colmap(path, min_shared)
    elif place := _challenge_folder(path):
        scene = _read_challenge(path, place, min_visibility)
    else:
        kinds = f"sparse/ and images/ of COLMAP, {_SET}/ of the Image Matching Challenge, or a correspondence file"
        raise StorageError(f"{path}: not a scene with known poses ({kinds})")
    if not scene.pairs:
        raise StorageError(f"{path}: none of its {len(scene.images)} images overlap enough")
    for reason in scene.left_out.values():
        warnings.warn(f"left out: {reason}", LogpolarWarning, stacklevel=2)
    return scene


# COLMAP


def _read_colmap(folder: Path, min_shared: int) -> PosedScene:
    from logpolar.sfm.workspace import read_workspace

    found = read_workspace(folder, need_depth=False)
    images = [
        PosedImage(v.name, v.camera, partial(_read_whole, v.image, v.camera), Observed(v.points, v.xy))
        for v in found.views
    ]
    pairs = _pairs_above(shared_points(found), min_shared)
    return PosedScene(folder.resolve().name, images, pairs, dict(found.left_out))


def _pairs_above(table: Matrix | NDArray[np.int32], least: float) -> list[RowPair]:
    """Pairs of rows whose entries, in both directions, are at least ``least``."""
    return [(i, j) for i, j in combinations(range(len(table)), 2) if min(table[i, j], table[j, i]) >= least]


def _read_whole(path: Path, camera: Camera) -> Gray:
    gray = to_bytes(read_gray(path))
    if gray.shape != (camera.height, camera.width):
        now, expected = f"{gray.shape[1]} x {gray.shape[0]}", f"{camera.width} x {camera.height}"
        raise StorageError(f"{path}: the image has {now} pixels, its camera {expected}")
    return gray


# Image Matching Challenge


def _challenge_folder(path: Path) -> Path | None:
    """The folder of a scene's set, complete or not."""
    if (path / _SET).is_dir():
        return path / _SET
    return path if (path / "calibration").is_dir() or path.name == _SET else None


def _read_challenge(scene: Path, place: Path, min_visibility: float) -> PosedScene:
    for name in ("images", "calibration"):
        if not (place / name).is_dir():
            raise StorageError(f"{place}: no folder {name}; is the download complete?")
    paths = _listed(place, "images") or images_in(place / "images")
    images, left_out = {}, {}
    for number, path in enumerate(paths):
        try:
            images[number] = _read_posed(place, path)
        except LogpolarError as error:
            left_out[path.name] = str(error)
    if len(images) < 2:
        reason = "".join(f"; {each}" for each in list(left_out.values())[:1])
        raise StorageError(f"{place}: only {len(images)} of {len(paths)} images can be used{reason}")
    visibility = _read_visibility(place, len(paths))
    rows = list(images)
    pairs = _pairs_above(visibility[np.ix_(rows, rows)], min_visibility)
    named = scene.resolve().parent if scene.name == _SET else scene.resolve()
    return PosedScene(named.name, list(images.values()), pairs, left_out)


def _listed(place: Path, kind: str) -> list[Path] | None:
    """Files listed in ``KIND.txt``, one a line, relative to its folder; None without it."""
    path = place / f"{kind}.txt"
    if not path.exists():
        return None
    return [place / line.strip() for line in read_text(path).splitlines() if line.strip()]


def _read_posed(place: Path, path: Path) -> PosedImage:
    if not path.is_file():
        raise StorageError(f"{path}: the scene's image is missing")
    table = _read_calibration(place / "calibration" / f"calibration_{path.stem}.h5")
    # Nothing else gives the size of the image; decoding it also shows whether it is complete.
    height, width = read_image(path).shape[:2]
    camera = Camera.from_table(width, height, table)
    return PosedImage(path.name, camera, partial(_read_whole, path, camera))


def _read_calibration(path: Path) -> Matrix:
    """(3, 7): K, R and T side by side, K in the library's pixels."""
    if not path.is_file():
        raise StorageError(f"{path}: the calibration of an image is missing")
    with opened(path, "calibration") as file:
        values = [read_numbers(file, path, "calibration", name) for name in ("K", "R", "T")]
        table = np.concatenate([each.reshape(3, -1) for each in values], axis=1, dtype=np.float64)
    if table.shape != (3, 7):
        raise StorageError(f"{path}: not a calibration with K (3 x 3), R (3 x 3) and T (3)")
    focal, product = table[[0, 1], [0, 1]], table[:, 3:6] @ table[:, 3:6].T
    if not (np.isfinite(table).all() and (focal > 0).all() and np.allclose(product, np.eye(3), atol=1e-4)):
        raise StorageError(f"{path}: K, R or T is not finite, K has no focal length, or R is not a rotation")
    table[:2, 2] -= 0.5
    return table


def _read_visibility(place: Path, count: int) -> Matrix:
    """(count, count); 1 throughout where there are no lists."""
    paths = _listed(place, "visibility")
    if paths is None:
        return np.ones((count, count))
    if len(paths) != count or not (place / "images.txt").exists():
        raise StorageError(f"{place / 'visibility.txt'}: names {len(paths)} lists, images.txt names {count} images")
    return np.stack([_read_numbers(path, count) for path in paths]) if paths else np.ones((0, 0))


def _read_numbers(path: Path, count: int) -> Matrix:
    try:
        values = np.array(read_text(path).split(), np.float64)
    except ValueError as error:
        raise StorageError(f"{path}: not a list of numbers") from error
    if values.shape != (count,) or not np.isfinite(values).all():
        raise StorageError(f"{path}: a list of visibility has a number for each of the {count} images")
    return values


# Correspondence files


def _read_correspondences(path: Path, split: str | None) -> PosedScene:
    if path.suffix not in _FILES:
        raise StorageError(f"{path}: not a scene with known poses (a folder, or a correspondence file .h5)")
    with CorrespondenceFile(path) as file:
        names = [entry.name for entry in file.images]
        found = ((number, file.read_camera(number)) for number in range(len(names)))
        cameras = {number: camera for number, camera in found if camera is not None}
        numbers = file.pairs(split) or file.pairs()
        counts = np.diff(file.correspondence_rows, axis=1).ravel()
        linked = file.pair_images[np.array([n for n in numbers if counts[n] > 0], np.intp)].tolist()
        second = file.settings.get("second", {})
    if not cameras:
        raise StorageError(f"{path}: no image in this file has a camera (files of scenes have, those of photos do not)")
    rows = {number: row for row, number in enumerate(cameras)}
    images = [
        PosedImage(names[number], camera, partial(_read_stored, path, number)) for number, camera in cameras.items()
    ]
    pairs = {(min(rows[i], rows[j]), max(rows[i], rows[j])) for i, j in linked if i in rows and j in rows}
    transformed = second.get("shrink", 1) != 1 or second.get("turn", 0) != 0
    return PosedScene(path.stem, images, sorted(pairs), transformed=transformed)


def _read_stored(path: Path, number: int) -> Gray:
    with CorrespondenceFile(path) as file:
        return file.read_image(number)


# Pairs and sets of images


def draw_pairs(scene: PosedScene, count: int, seed: int) -> list[RowPair]:
    """Random pairs of the scene, sorted; 0 for all."""
    if count == 0 or count >= len(scene.pairs):
        return sorted(scene.pairs)
    chosen = np.random.default_rng(seed).permutation(len(scene.pairs))[:count]
    return sorted(scene.pairs[index] for index in chosen)


def keep_images(scene: PosedScene, count: int, seed: int) -> PosedScene:
    """The scene with the pairs among ``count`` images alone: many pairs of few images that must be described."""
    bag = next(iter(draw_bags(scene, count, 1, seed)), tuple(range(len(scene.images))))
    return replace(scene, pairs=[pair for pair in scene.pairs if set(pair) <= set(bag)])


def draw_bags(scene: PosedScene, size: int, count: int, seed: int) -> list[tuple[int, ...]]:
    """Different sets of ``size`` images that are connected through the scene's pairs.

    Fewer than ``count`` if 20 attempts per set find no more. All pairs of a set are matched, covisible or not.
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
