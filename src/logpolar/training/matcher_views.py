"""Views for training a matcher: images of scenes, photos and aligned pairs, warped, altered, with their keypoints.

Convention: a view has a projection P = [M | m] (3, 4) and each keypoint a depth d, such that the point X that is seen
at (x, y) satisfies d (x, y, 1) = M X + m. Views with a common frame of X (a scene, a photo, an aligned pair) see the
same points: this is ``geometry.cameras.Transfer`` for all kinds of views. A photo is the plane d (x, y, 1) = X with
m = 0. A depth of NaN is unknown; a negative one is of a point that no other view shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.depth import nearest
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.surfaces import read_stored_surface
from logpolar.geometry.cameras import Matrix
from logpolar.images import downscale, read_gray, resize_matrix, resize_points, to_bytes, to_gray
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import Detector, SiftDetector
from logpolar.models.matcher_cards import keypoint_table
from logpolar.training.conditions import change_conditions
from logpolar.training.matcher_options import ViewsOptions
from logpolar.types import FloatArray

Bytes = NDArray[np.uint8]

VARIANTS = ("detected", "upright", "fixed")
"""Each view is described by keypoints as detected, without angles, and without sizes and angles."""

_EDGE = 0.05
"""Largest relative difference of neighbouring inverse depths on one surface."""


@dataclass(frozen=True, eq=False)
class SourceImage:
    """An image in memory, 8-bit gray, with its projection and inverse depth (any resolution; None: a plane)."""

    pixels: Bytes
    projection: Matrix  # (3, 4)
    surface: FloatArray | None = None

    def depth_at(self, xy: Matrix) -> Matrix:
        """Depths (N,) at pixels (N, 2), by the convention above."""
        height, width = self.pixels.shape
        if self.surface is None:
            inside = ((xy >= -0.5) & (xy <= (width - 0.5, height - 0.5))).all(axis=1)
            return np.where(inside, 1.0, -1.0)
        return surface_depth(self.surface, (width, height), xy)


@dataclass(frozen=True)
class SourceFile:
    """Where an image is to be read: a photo, or an image of a correspondence file by number."""

    path: Path
    number: int | None = None
    homography: tuple[float, ...] | None = None  # of an aligned image: from the first image of the pair

    def read(self, max_size: int) -> SourceImage:
        if self.number is not None:
            with CorrespondenceFile(self.path) as file:
                return read_scene_image(file, self.number)
        gray = read_gray(self.path)
        small = to_bytes(downscale(gray, max_size))
        frame = np.eye(3) if self.homography is None else np.reshape(self.homography, (3, 3))
        matrix = resize_matrix(gray.shape[::-1], small.shape[::-1]) @ frame
        return SourceImage(small, np.concatenate([matrix, np.zeros((3, 1))], axis=1))


@dataclass(frozen=True, eq=False)
class View:
    """A view, as the device needs it; K keypoints, strongest first."""

    pixels: Bytes
    keypoints: Keypoints
    depth: FloatArray  # (K,)
    projection: Matrix  # (3, 4)

    @property
    def image_size(self) -> tuple[int, int]:
        return self.pixels.shape[1], self.pixels.shape[0]

    def variant(self, name: str, fixed_size: float) -> tuple[Keypoints, NDArray[np.bool_]]:
        """The keypoints as a variant, and which are used: of those at one place the first, where angles are ignored."""
        found = self.keypoints
        if name == "detected":
            return found, np.ones(len(found), np.bool_)
        sizes = found.size if name == "upright" else np.full(len(found), fixed_size, np.float32)
        places = (
            np.rint(found.xy * 4) if name == "fixed" else np.concatenate([np.rint(found.xy * 4), sizes[:, None]], 1)
        )
        used = np.zeros(len(found), np.bool_)
        used[np.unique(places, axis=0, return_index=True)[1]] = True
        return Keypoints.from_points(found.xy, sizes, 0.0, found.response), used

    def table(self, name: str, fixed_size: float) -> tuple[Keypoints, FloatArray, NDArray[np.bool_]]:
        """Of a variant: keypoints, their ``keypoint_table`` and which are used."""
        keypoints, used = self.variant(name, fixed_size)
        return keypoints, keypoint_table(keypoints, self.image_size), used


def read_scene_image(file: CorrespondenceFile, number: int) -> SourceImage:
    """An image of a scene with its camera and its surface."""
    camera = file.read_camera(number)
    if camera is None:
        raise ValueError(f"{file.path}: image {number} has no camera")
    return SourceImage(file.read_image(number), camera.matrix @ camera.pose, read_stored_surface(file, number))


def surface_depth(surface: FloatArray, image_size: tuple[int, int], xy: Matrix) -> Matrix:
    """Depths (N,) at pixels (N, 2) of an image of (width, height), by inverse depth at any resolution.

    Bilinear in inverse depth where all four neighbours are known and lie on one surface; NaN elsewhere.
    """
    places = resize_points(xy, np.array(surface.shape[::-1]) / image_size)
    corner = np.floor(places)
    a, b, c, d = (nearest(surface, *(corner + offset).T) for offset in ((0, 0), (1, 0), (0, 1), (1, 1)))
    x, y = (places - corner).T
    mean = (1 - y) * ((1 - x) * a + x * b) + y * ((1 - x) * c + x * d)
    least, most = np.minimum.reduce([a, b, c, d]), np.maximum.reduce([a, b, c, d])
    known = (least > 0) & (most - least <= _EDGE * most)
    return np.asarray(np.divide(1, mean, out=np.full(len(xy), np.nan), where=known))


def make_view(
    source: SourceImage,
    options: ViewsOptions,
    random: np.random.Generator,
    plain: bool,
    backdrop: Bytes | None = None,
    detector: Detector | None = None,
) -> View:
    """A random view of an image, or the image as it is; beyond the image it shows ``backdrop``, or nothing.

    Keypoints are those of ``detector``, by default SIFT's.
    """
    height, width = source.pixels.shape
    warp, size = (np.eye(3), (width, height)) if plain else random_warp((width, height), options, random)
    pixels = source.pixels if plain else _warped(source.pixels, warp, size, backdrop)
    if random.random() < options.altered:
        pixels = change_conditions(pixels, random)
    spread = float(random.random() < 0.5)
    detect = detector or SiftDetector(options.keypoints, contrast_threshold=0.02, spread=spread)
    keypoints = detect(to_gray(pixels)).strongest(options.keypoints)
    back = np.concatenate([keypoints.xy, np.ones((len(keypoints), 1))], axis=1) @ np.linalg.inv(warp).T
    original = back[:, :2] / back[:, 2:]
    # d' (x', y', 1) = warp d (x, y, 1)
    depth = source.depth_at(original) * (np.concatenate([original, np.ones_like(back[:, 2:])], axis=1) @ warp[2])
    return View(pixels, keypoints, depth.astype(np.float32), warp @ source.projection)


def random_warp(
    size: tuple[int, int], options: ViewsOptions, random: np.random.Generator
) -> tuple[Matrix, tuple[int, int]]:
    """Homography from an image of (width, height) to a view of it, and the view's size.

    Half of the views are smaller, half show a part of the image at full resolution; both by up to ``max_zoom``.
    """
    width, height = size
    zoom = float(np.exp(random.uniform(0, np.log(options.max_zoom))))
    smaller = random.random() < 0.5
    scale = 1 / zoom if smaller else 1.0
    angle = random.uniform(-180, 180) if random.random() < options.turned else random.uniform(-15, 15)
    # Of a part at full resolution the larger zooms are cut short, so that keypoints remain.
    part = 1.0 if smaller else max(1 / zoom, 0.3)
    view = np.maximum(np.round(np.array([width, height]) * scale * part), 32).astype(int)
    look_at = np.array([width - 1, height - 1]) / 2 + random.uniform(-0.5, 0.5, 2) * (1.1 - part) * (width, height)
    radians = np.radians(angle)
    rotation = scale * np.array([[np.cos(radians), -np.sin(radians)], [np.sin(radians), np.cos(radians)]])
    half = np.array([width, height]) * part / 2
    corners = look_at + half * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    tilt = random.uniform(-options.max_tilt, options.max_tilt, (4, 2)) * half
    target = (corners + tilt - look_at) @ rotation.T + (view - 1) / 2
    matrix = cv2.getPerspectiveTransform(corners.astype(np.float32), target.astype(np.float32))
    return np.asarray(matrix, np.float64), (int(view[0]), int(view[1]))


def _warped(pixels: Bytes, warp: Matrix, size: tuple[int, int], backdrop: Bytes | None) -> Bytes:
    scale = float(np.sqrt(abs(np.linalg.det(warp[:2, :2]))))
    if scale < 1:  # as by a coarser sensor: half a pixel of blur in the small image
        pixels = np.asarray(cv2.GaussianBlur(pixels, (0, 0), 0.5 * np.sqrt(1 / scale**2 - 1) + 1e-3), np.uint8)
    view = cv2.warpPerspective(pixels, warp, size, flags=cv2.INTER_LINEAR)
    mask = cv2.warpPerspective(np.ones_like(pixels), warp, size, flags=cv2.INTER_NEAREST)
    if backdrop is None:
        behind = np.full(size[::-1], round(float(pixels.mean())), np.uint8)
    else:
        behind = np.asarray(cv2.resize(backdrop, size, interpolation=cv2.INTER_AREA), np.uint8)
    return np.where(mask > 0, view, behind).astype(np.uint8)
