"""Images that views for training a matcher are made of, read once and kept on the device.

Convention: an image, or a view of it, has a projection P = [M | m] (3, 4), and each of its points a depth d, such that
the point X that is seen at (x, y) satisfies d (x, y, 1) = M X + m. Images with a common frame of X (a scene, a photo,
an aligned pair) see the same points: this is ``geometry.cameras.Transfer`` for all of them. A photo is the plane
d (x, y, 1) = X with m = 0. A depth of NaN is unknown; a negative one is of a point that no other view shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.surfaces import read_stored_surface
from logpolar.distributed import cores
from logpolar.geometry.cameras import Matrix
from logpolar.images import downscale, read_gray, resize_matrix, to_bytes
from logpolar.sampling.torch_lookup import TorchPyramids
from logpolar.training.conditions import alter_images
from logpolar.training.depth_maps import DepthMaps
from logpolar.types import FloatArray


@dataclass(frozen=True, eq=False)
class SourceImage:
    """An image in memory, 8-bit gray, with its projection and inverse depth (any resolution; None: a plane)."""

    pixels: NDArray[np.uint8]
    projection: Matrix  # (3, 4)
    surface: FloatArray | None = None


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


def read_scene_image(file: CorrespondenceFile, number: int) -> SourceImage:
    """An image of a scene with its camera and its surface."""
    camera = file.read_camera(number)
    if camera is None:
        raise ValueError(f"{file.path}: image {number} has no camera")
    return SourceImage(file.read_image(number), camera.matrix @ camera.pose, read_stored_surface(file, number))


class Sources:
    """Images on a device; copies under other conditions have the numbers ``len(self)`` and up."""

    def __init__(self, images: Sequence[SourceImage], device: torch.device, copies: int = 0, seed: int = 0) -> None:
        pixels = [image.pixels for image in images]
        seen = [*pixels, *alter_images(pixels, copies, seed)]
        self.pyramids = TorchPyramids([torch.from_numpy(each) / 255 for each in seen], device, torch.float16)
        self.projections = torch.tensor(np.stack([image.projection for image in images]), device=device)
        self.copies, self.device = copies, device
        planes = [image.surface is None for image in images]
        self._is_plane = torch.tensor(planes, device=device)
        empty = np.zeros((0, 0), np.float32)
        self._depths = DepthMaps([empty if image.surface is None else image.surface for image in images], device)

    def __len__(self) -> int:
        return len(self._is_plane)

    def contain(self, image: Tensor, xy: Tensor) -> Tensor:
        """(N, ...): whether positions (N, ..., 2) lie on images (N,)."""
        shape = len(image), *[1] * (xy.ndim - 2), 2
        last = (self.pyramids.sizes(image) - 0.5).view(shape)
        return ((xy >= -0.5) & (xy <= last)).all(dim=-1)

    def depth_at(self, image: Tensor, xy: Tensor) -> Tensor:
        """Depths (N, K) at positions (N, K, 2) of originals (N,), by the convention above; negative off the image."""
        inverse = self._depths.on_surface(image, xy, self.pyramids.sizes(image))
        known = torch.where(inverse > 0, 1 / inverse, torch.nan)
        depth = torch.where(self._is_plane[image][:, None], 1.0, known)
        return torch.where(self.contain(image, xy), depth, -1.0)


def read_sources(
    files: Sequence[SourceFile], max_size: int, device: torch.device, copies: int = 0, seed: int = 0
) -> Sources:
    """Read the images of files."""
    with ThreadPoolExecutor(cores()) as threads:
        return Sources(list(threads.map(lambda file: file.read(max_size), files)), device, copies, seed)
