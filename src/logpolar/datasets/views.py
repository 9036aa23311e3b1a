"""Preparation of a single view of a scene: keypoints, confirmed depth, and a plane around each keypoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from logpolar.datasets.building import open_detector, or_reason
from logpolar.datasets.columns import IMAGE_CAUSES
from logpolar.datasets.depth import Planes, confirmed_inverse_depth, fit_planes, invert, nearest
from logpolar.datasets.image_transforms import ImageTransform, transformed_name
from logpolar.datasets.options import DepthRules, ImageRules, SceneOptions
from logpolar.datasets.writing import ImageRecord
from logpolar.errors import ImageError
from logpolar.geometry.cameras import Camera
from logpolar.images import decode_gray, downscale, encode_gray, read_image, to_bytes, to_gray
from logpolar.keypoints import Keypoints
from logpolar.sfm.depth_maps import read_depth
from logpolar.sfm.workspace import View
from logpolar.storage.atomic_io import replacing
from logpolar.types import FloatArray, Image

_PICTURE_SIDE = 256  # pixels of a depth picture's longer side


@dataclass(frozen=True, eq=False)
class PreparedView:
    """What pairing needs of a view, in pixels of the stored image."""

    camera: Camera
    keypoints: Keypoints
    planes: Planes

    def save(self, path: Path) -> None:
        """Write atomically to a file."""
        camera, keypoints, planes = self.camera, self.keypoints, self.planes
        with replacing(path) as half, half.open("wb") as file:
            np.savez(
                file,
                shape=(camera.width, camera.height),
                camera=camera.table,
                keypoints=np.concatenate([keypoints.table, keypoints.response[:, None]], axis=1),
                planes=np.concatenate([planes.inverse_depth[:, None], planes.slope], axis=1),
            )

    @classmethod
    def load(cls, path: Path) -> PreparedView:
        with np.load(path) as stored:
            width, height = stored["shape"].tolist()
            camera = Camera.from_table(width, height, stored["camera"])
            points, planes = stored["keypoints"], stored["planes"]
        keypoints = Keypoints(points[:, :2], points[:, 2], points[:, 3], points[:, 4])
        return cls(camera, keypoints, Planes(planes[:, 0], planes[:, 1:]))


@dataclass(frozen=True, eq=False)
class ViewTask:
    """What a process needs to prepare one view."""

    view: View
    split: str
    confirming: list[tuple[Path, Camera]]  # depth maps and cameras
    options: SceneOptions
    relative_path: str  # of the image, from the output's folder
    target: Path  # where the prepared view goes
    transformed: bool = False  # as the second image of a pair

    @property
    def name(self) -> str:
        """Of the image in the file."""
        return transformed_name(self.view.name, self.options.second) if self.transformed else self.view.name


def prepare_view(task: ViewTask) -> ImageRecord | str:
    """Prepare a view and save it; its record for the file, or the reason why it cannot be used."""
    return or_reason(lambda: _prepare_view(task), task.view.image)


def _prepare_view(task: ViewTask) -> ImageRecord:
    options = task.options
    image = _read_image(task.view)
    reduced = downscale(to_gray(image), options.images.max_size)
    height, width = reduced.shape
    camera = task.view.camera.resized(width, height)
    transform = ImageTransform.of(width, height, options.second) if task.transformed else None
    if transform:
        camera = transform.camera(camera)
        data = encode_gray(to_bytes(transform.image(reduced)), options.images.quality)
    else:
        data = _encoded_image(image, task.view.image, options.images) if options.images.embed else b""
    # Detected in the very pixels that a reader of the file gets.
    keypoints = open_detector(options.keypoints)(to_gray(decode_gray(data) if data else to_bytes(reduced)))
    # Depth is looked up in the original image.
    depth, inverse_depth = read_surface(task.view, task.confirming, options.depth, width)
    factor = depth.shape[1] / width, depth.shape[0] / height
    placed = (transform.keypoints_back(keypoints) if transform else keypoints).resized(*factor)
    planes = fit_planes(inverse_depth, placed.xy, placed.size / 2, options.depth)
    planes = Planes(planes.inverse_depth, planes.slope * np.array(factor, np.float32))
    planes = transform.planes(planes) if transform else planes
    known, confirmed = (nearest(values, placed.xy[:, 0], placed.xy[:, 1]) > 0 for values in (depth, inverse_depth))
    counts = (~known).sum(), (known & ~confirmed).sum(), (confirmed & ~planes.known).sum()
    # Keypoints that may have partners come first, so that the others can be cut off.
    order = np.lexsort((-keypoints.response, ~planes.known))
    keypoints, planes = keypoints[order], planes[order]
    kept = slice(int(planes.known.sum()) + options.keypoints.distractors)
    PreparedView(camera, keypoints, planes).save(task.target)
    return ImageRecord(
        name=task.name,
        split=task.split,
        size=(camera.width, camera.height),
        keypoints=keypoints[kept],
        data=data,
        path="" if data else task.relative_path,
        depth=planes.depth[kept],
        depth_picture=_depth_picture(transform.depth(inverse_depth) if transform else inverse_depth),
        rejects=dict(zip(IMAGE_CAUSES, map(int, counts), strict=True)),
        camera=camera,
    )


def read_surface(
    view: View, confirming: list[tuple[Path, Camera]], rules: DepthRules, width: int
) -> tuple[FloatArray, FloatArray]:
    """A view's depth map, and the inverse depth confirmed by other views, at the map's resolution.

    ``width`` is that of the image whose pixels are the unit of ``rules``.
    """
    depth = read_depth(view.depth)
    if rules.min_views == 0:
        return depth, invert(depth)
    camera = view.camera.resized(depth.shape[1], depth.shape[0])
    pixel = depth.shape[1] / width
    return depth, confirmed_inverse_depth(depth, camera, _read_others(confirming), rules, pixel)


def _read_others(confirming: list[tuple[Path, Camera]]) -> Iterator[tuple[FloatArray, Camera]]:
    """One depth map at a time, to bound the memory."""
    for path, camera in confirming:
        depth = read_depth(path)
        yield depth, camera.resized(depth.shape[1], depth.shape[0])


def _read_image(view: View) -> Image:
    """The image of a view; raises unless it has the size of its camera."""
    image = read_image(view.image)
    height, width = image.shape[:2]
    if (width, height) != (view.camera.width, view.camera.height):
        expected = f"its camera in the sparse model has {view.camera.width} x {view.camera.height}"
        raise ImageError(f"{view.image}: the image has {width} x {height} pixels, {expected}")
    return image


def _encoded_image(image: Image, path: Path, rules: ImageRules) -> bytes:
    """The encoded image for the file; a JPEG or PNG that need not be downscaled is copied byte by byte."""
    plain = image.dtype == np.uint8 and (image.ndim == 2 or image.shape[2] == 3)
    if plain and max(image.shape) <= rules.max_size and path.suffix.lower() in (".jpg", ".jpeg", ".png"):
        return path.read_bytes()
    return encode_gray(to_bytes(downscale(to_gray(image), rules.max_size)), rules.quality)


def _depth_picture(inverse_depth: FloatArray) -> bytes:
    """PNG of inverse depth, its 2nd to 98th percentile stretched to 1 ... 255; 0 is unknown."""
    known = inverse_depth > 0
    if not known.any():
        return encode_gray(np.zeros((1, 1), np.uint8), 100)
    low, high = np.percentile(inverse_depth[known], [2, 98])
    shade = np.clip((inverse_depth - low) / max(high - low, 1e-12), 0, 1) * 254 + 1
    picture = np.where(known, np.rint(shade), 0).astype(np.uint8)
    factor = min(_PICTURE_SIDE / max(picture.shape), 1)
    return encode_gray(
        np.asarray(cv2.resize(picture, None, fx=factor, fy=factor, interpolation=cv2.INTER_NEAREST)), 100
    )
