"""Training pairs from single photos: two views of a photo related by a known homography, under different light."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.building import (
    BuildReport,
    BuiltPair,
    PairTask,
    build_pairs,
    fingerprint,
    keep_distractors,
    open_detector,
    or_reason,
    split_images,
)
from logpolar.datasets.correspondences import find_correspondences
from logpolar.datasets.options import PhotoOptions, ViewOptions, stored_settings
from logpolar.errors import ImageError
from logpolar.geometry.cameras import Matrix
from logpolar.images import decode_gray, encode_gray, read_downscaled, to_bytes, to_gray, unnamed_images

Bytes = NDArray[np.uint8]
Task = tuple[int, int]  # photo, pair of views of it


@dataclass(frozen=True, eq=False)
class ViewPair(BuiltPair):
    """Two views of a photo, and the homography from the first to the second."""

    homography: Matrix
    zoom: float  # scale of the second view over that of the first, before the tilt


def build_photos(
    photos: dict[str, Path],
    output: str | Path,
    options: PhotoOptions | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    progress: bool = False,
) -> BuildReport:
    """Make a correspondence file of named photos; resumes an unfinished file."""
    options = options or PhotoOptions()
    if not photos:
        raise ImageError("there are no photos")
    left_out = unnamed_images(photos)
    photos = {name: path for name, path in photos.items() if name not in left_out}
    names, paths = list(photos), list(photos.values())
    splits = split_images(names, options.split)
    tasks = [
        PairTask((photo, view), name, (f"{name}#{view}a", f"{name}#{view}b"), splits[name])
        for photo, name in enumerate(names)
        for view in range(options.views)
    ]
    settings = {"source": "homographies", "images_hash": fingerprint(names, paths), **stored_settings(options)}
    work = partial(_try_pair, paths, options.split.seed, options.view)
    return build_pairs(
        output, settings, tasks, work, left_out, what="photos", jobs=jobs, overwrite=overwrite, progress=progress
    )


def _try_pair(photos: list[Path], seed: int, options: ViewOptions, task: PairTask[Task]) -> ViewPair | str:
    pair = or_reason(lambda: make_photo_pair(photos, seed, options, task.item), photos[task.item[0]])
    return pair if isinstance(pair, str) else keep_distractors(pair, options.keypoints.distractors)


def make_photo_pair(photos: Sequence[Path], seed: int, options: ViewOptions, task: Task) -> ViewPair:
    """A pair of views of a photo, determined by seed and task."""
    random = np.random.default_rng((seed, *task))
    other = (task[0] + int(random.integers(1, max(len(photos), 2)))) % len(photos)
    photo = _read_photo(photos[task[0]], options)
    try:
        backdrop = _read_photo(photos[other], options)
    except ImageError:  # reported for that photo itself
        backdrop = photo
    return make_view_pair(photo, backdrop, options, random)


def _read_photo(path: Path, options: ViewOptions) -> Bytes:
    return to_bytes(read_downscaled(path, options.max_size)[0])


def make_view_pair(photo: Bytes, backdrop: Bytes, options: ViewOptions, random: np.random.Generator) -> ViewPair:
    """Two views of ``photo``; beyond the photo's border the second shows ``backdrop``.

    Each view shows content that the other does not, as real photos do: the first is a crop, the second is not limited
    to it. Otherwise a descriptor would learn that distant surroundings never change.
    """
    height, width = photo.shape
    crop = np.round(random.uniform(options.min_crop, 1, 2) * (width, height)).astype(int)
    corner = np.floor(random.random(2) * (np.array([width, height]) - crop + 1)).astype(int)
    low, high = -np.log(options.max_zoom), np.log(options.max_zoom) / 2
    zoom = float(np.exp(random.uniform(low, high)))
    zoom = max(zoom, min(options.min_side / min(width, height), 1))
    homography, shape = _random_view(width, height, zoom, options, random)

    first = photo[corner[1] : corner[1] + crop[1], corner[0] : corner[0] + crop[0]]
    second = _warp(photo, backdrop, homography, shape, zoom)
    shift = np.array([[1, 0, corner[0]], [0, 1, corner[1]], [0, 0, 1.0]])
    homography = homography @ shift
    encoded = tuple(compress(change_light(view, random), options.quality, random) for view in (first, second))
    first, second = (decode_gray(data) for data in encoded)
    first_keypoints, second_keypoints = (open_detector(options.keypoints)(to_gray(view)) for view in (first, second))
    found, rejects = find_correspondences(
        first_keypoints, second_keypoints, homography, second.shape[::-1], options.rules, random
    )
    return ViewPair(
        first, second, first_keypoints, second_keypoints, found, (encoded[0], encoded[1]), rejects, homography, zoom
    )


def _random_view(
    width: int, height: int, zoom: float, options: ViewOptions, random: np.random.Generator
) -> tuple[Matrix, tuple[int, int]]:
    """Homography from the photo to a view of it, and the view's (width, height)."""
    angle = random.uniform(-options.max_rotation, options.max_rotation)
    if random.random() < 0.5:
        angle *= 20 / max(options.max_rotation, 20)
    centre = np.array([width - 1, height - 1]) / 2
    # The photo's size times the zoom, but no larger than the photo.
    shape = np.minimum(np.round(np.array([width, height]) * zoom), (width, height)).astype(int)
    look_at = centre + random.uniform(-0.15, 0.15, 2) * (width, height)
    radians = np.radians(angle)
    rotation = zoom * np.array([[np.cos(radians), -np.sin(radians)], [np.sin(radians), np.cos(radians)]])
    corners = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], np.float64)
    tilt = random.uniform(-options.max_tilt, options.max_tilt, (4, 2)) * (width, height) / 2
    target = (corners + tilt - look_at) @ rotation.T + (shape - 1) / 2
    matrix = cv2.getPerspectiveTransform(corners.astype(np.float32), target.astype(np.float32))
    return np.asarray(matrix, np.float64), (int(shape[0]), int(shape[1]))


def _warp(photo: Bytes, backdrop: Bytes, homography: Matrix, shape: tuple[int, int], zoom: float) -> Bytes:
    if zoom < 1:
        # As by a lens and a coarser sensor: half a pixel of blur in the small image.
        photo = np.asarray(cv2.GaussianBlur(photo, (0, 0), 0.5 * np.sqrt(1 / zoom**2 - 1) + 1e-3), np.uint8)
    behind = cv2.resize(backdrop, shape, interpolation=cv2.INTER_AREA)
    view = cv2.warpPerspective(photo, homography, shape, flags=cv2.INTER_LINEAR)
    mask = cv2.warpPerspective(np.ones_like(photo), homography, shape, flags=cv2.INTER_NEAREST)
    return np.where(mask > 0, view, behind).astype(np.uint8)


def change_light(view: Bytes, random: np.random.Generator) -> Bytes:
    """Another camera and time of day: smooth light, gamma, contrast, blur, noise, each at random."""
    values = view.astype(np.float32) / 255
    if random.random() < 0.5:
        light = random.uniform(-0.3, 0.3, (3, 3)).astype(np.float32)
        values *= np.exp(np.asarray(cv2.resize(light, view.shape[::-1], interpolation=cv2.INTER_CUBIC)))
    if random.random() < 0.5:
        values = np.clip(values, 0, 1) ** np.float32(np.exp(random.normal(0, 0.35)))
    if random.random() < 0.5:
        values = (values - 0.5) * np.float32(np.exp(random.normal(0, 0.25))) + np.float32(0.5 + random.normal(0, 0.08))
    if random.random() < 0.3:
        values = np.asarray(cv2.GaussianBlur(values, (0, 0), random.uniform(0.3, 1.2)), np.float32)
    if random.random() < 0.5:
        values = values + random.normal(0, random.uniform(0, 0.03), view.shape).astype(np.float32)
    return np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)


def compress(view: Bytes, quality: int, random: np.random.Generator) -> bytes:
    """JPEG of the given quality or, in half of the cases, of one between 40 and 94."""
    return encode_gray(view, int(random.integers(40, 95)) if random.random() < 0.5 else quality)
