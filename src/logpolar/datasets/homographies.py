"""Training pairs from single photos: two views of one photo through a known homography, with the light changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.correspondences import (
    CorrespondenceRules,
    Correspondences,
    Matrix,
    find_correspondences,
)
from logpolar.detection import SiftDetector
from logpolar.images import read_gray, to_bytes, to_gray
from logpolar.keypoints import Keypoints

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class ViewOptions:
    """How far the second view may be from the first."""

    max_zoom: float = 4.0  # the second view is smaller by up to this factor, or larger by up to its square root
    max_tilt: float = 0.25  # corners move by up to this share of the image's sides
    min_crop: float = 0.6  # the first view shows at least this share of the photo's sides
    max_turn: float = 180.0  # degrees in the plane; half of the pairs turn by at most 20
    min_side: int = 120  # pixels; the second view is not made smaller than this
    rules: CorrespondenceRules = field(default_factory=CorrespondenceRules)
    detector: SiftDetector = field(default_factory=lambda: SiftDetector(max_keypoints=3000, contrast_threshold=0.02))


@dataclass(frozen=True, eq=False)
class ViewPair:
    """Two 8 bit views, the homography from the first to the second, and what corresponds."""

    first: Bytes
    second: Bytes
    homography: Matrix
    zoom: float  # size of a thing in the second view over its size in the first
    correspondences: Correspondences
    second_keypoints: Keypoints  # all that were detected: the pool of wrong answers


def view_pairs(
    photos: Sequence[Path],
    views: int,
    seed: int,
    options: ViewOptions | None = None,
    jobs: int = 1,
) -> Iterator[ViewPair]:
    """``views`` pairs of each photo, in order; what a pair looks like depends on the seed and its place alone."""
    work = partial(_pair_of_photo, list(photos), seed, options or ViewOptions())
    tasks = [(number, view) for number in range(len(photos)) for view in range(views)]
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=cv2.setNumThreads, initargs=(1,)) as pool:
        yield from pool.map(work, tasks, chunksize=4)


def _pair_of_photo(photos: list[Path], seed: int, options: ViewOptions, task: tuple[int, int]) -> ViewPair:
    random = np.random.default_rng((seed, *task))
    other = (task[0] + int(random.integers(1, max(len(photos), 2)))) % len(photos)
    photo, backdrop = (to_bytes(read_gray(photos[number])) for number in (task[0], other))
    return make_view_pair(photo, backdrop, options, random)


def make_view_pair(photo: Bytes, backdrop: Bytes, options: ViewOptions, random: np.random.Generator) -> ViewPair:
    """Two views of ``photo``; where the second looks past the photo's edge it sees ``backdrop``.

    Each view shows things that the other does not, as real photos do: the first is a crop, the second is not bound
    to it. Otherwise a descriptor would learn that far surroundings are always the same.
    """
    height, width = photo.shape
    share = random.uniform(options.min_crop, 1, 2)
    crop = np.round(share * (width, height)).astype(int)
    corner = np.floor(random.random(2) * (np.array([width, height]) - crop + 1)).astype(int)
    low, high = -np.log(options.max_zoom), np.log(options.max_zoom) / 2
    zoom = float(np.exp(random.uniform(low, high)))
    zoom = max(zoom, min(options.min_side / min(width, height), 1))
    homography, shape = _random_view(width, height, zoom, options, random)

    first = photo[corner[1] : corner[1] + crop[1], corner[0] : corner[0] + crop[0]]
    second = _warp(photo, backdrop, homography, shape, zoom)
    shift = np.array([[1, 0, corner[0]], [0, 1, corner[1]], [0, 0, 1.0]])
    homography = homography @ shift
    first, second = change_light(first, random), change_light(second, random)
    first_keypoints, second_keypoints = options.detector(to_gray(first)), options.detector(to_gray(second))
    correspondences = find_correspondences(first_keypoints, second_keypoints, homography, options.rules, random)
    return ViewPair(first, second, homography, zoom, correspondences, second_keypoints)


def _random_view(
    width: int, height: int, zoom: float, options: ViewOptions, random: np.random.Generator
) -> tuple[Matrix, tuple[int, int]]:
    """Homography from the photo to a view of it, and the view's (width, height)."""
    turn = random.uniform(-options.max_turn, options.max_turn)
    if random.random() < 0.5:
        turn *= 20 / max(options.max_turn, 20)
    centre = np.array([width - 1, height - 1]) / 2
    # A view as large as the photo's own, times the zoom, but no larger than the photo.
    shape = np.minimum(np.round(np.array([width, height]) * zoom), (width, height)).astype(int)
    look_at = centre + random.uniform(-0.15, 0.15, 2) * (width, height)
    radians = np.radians(turn)
    rotation = zoom * np.array([[np.cos(radians), -np.sin(radians)], [np.sin(radians), np.cos(radians)]])
    corners = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], np.float64)
    tilt = random.uniform(-options.max_tilt, options.max_tilt, (4, 2)) * (width, height) / 2
    target = (corners + tilt - look_at) @ rotation.T + (shape - 1) / 2
    matrix = cv2.getPerspectiveTransform(corners.astype(np.float32), target.astype(np.float32))
    return np.asarray(matrix, np.float64), (int(shape[0]), int(shape[1]))


def _warp(photo: Bytes, backdrop: Bytes, homography: Matrix, shape: tuple[int, int], zoom: float) -> Bytes:
    if zoom < 1:
        # What a lens and a coarser sensor would do: half a pixel of blur in the small image.
        photo = np.asarray(cv2.GaussianBlur(photo, (0, 0), 0.5 * np.sqrt(1 / zoom**2 - 1) + 1e-3), np.uint8)
    behind = cv2.resize(backdrop, shape, interpolation=cv2.INTER_AREA)
    view = cv2.warpPerspective(photo, homography, shape, flags=cv2.INTER_LINEAR)
    mask = cv2.warpPerspective(np.ones_like(photo), homography, shape, flags=cv2.INTER_NEAREST)
    return np.where(mask > 0, view, behind).astype(np.uint8)


def change_light(view: Bytes, random: np.random.Generator) -> Bytes:
    """Another camera and another hour: smooth light, gamma, contrast, blur, noise, JPEG; each in half of the cases."""
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
    pixels = np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)
    if random.random() < 0.5:
        _, encoded = cv2.imencode(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, int(random.integers(40, 95))])
        pixels = np.asarray(cv2.imdecode(encoded, cv2.IMREAD_GRAYSCALE), np.uint8)
    return pixels
