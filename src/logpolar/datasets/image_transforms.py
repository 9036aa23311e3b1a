"""A downscaled or rotated copy of an image, with what is known of the image carried over.

Scenes have few pairs of very different scale or rotation. A transformed copy is a view by the same camera from the same
place, so that poses and depth remain exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np

from logpolar.datasets.depth import Planes, nearest
from logpolar.datasets.options import SecondViewRules
from logpolar.geometry.cameras import Array, Camera, Matrix
from logpolar.images import downscale, resize_matrix, resize_points
from logpolar.keypoints import Keypoints, normalise_degrees
from logpolar.types import FloatArray


def transformed_name(name: str, rules: SecondViewRules) -> str:
    """Name of the transformed copy in a file: ``a.jpg@shrunk-3``, ``a.jpg@shrunk-3-turned-45``."""
    parts = [f"shrunk-{rules.downscale:g}"] if rules.downscale != 1 else []
    parts += [f"turned-{rules.rotate:g}"] if rules.rotate != 0 else []
    return f"{name}@{'-'.join(parts)}"


@dataclass(frozen=True, eq=False)
class ImageTransform:
    """How images of one size are transformed.

    ``matrix`` (3, 3): the similarity from pixels of the image to those of the copy, centres at integers. (The factors
    of x and y differ by the rounding to whole pixels.)
    """

    original: tuple[int, int]  # width, height
    downscaled: tuple[int, int]  # before rotation
    size: tuple[int, int]  # of the copy
    rotation: float  # degrees, clockwise on the screen
    matrix: Matrix

    @classmethod
    def of(cls, width: int, height: int, rules: SecondViewRules) -> ImageTransform:
        longer = max(round(max(width, height) / rules.downscale), 1)
        small = downscale(np.zeros((height, width), np.float32), longer)
        downscaled = small.shape[1], small.shape[0]
        size, rotated = _rotate_about_centre(downscaled, rules.rotate)
        matrix = rotated @ resize_matrix((width, height), downscaled)
        return cls((width, height), downscaled, size, rules.rotate, matrix)

    @property
    def linear(self) -> Matrix:
        """(2, 2): d (x, y in the copy) / d (x, y in the image)."""
        return self.matrix[:2, :2]

    def image(self, gray: FloatArray) -> FloatArray:
        """The copy of an image; filled with the image's mean beyond its borders."""
        gray = downscale(gray, max(self.downscaled))
        if self.rotation % 90 == 0:
            return np.ascontiguousarray(np.rot90(gray, -round(self.rotation / 90)))
        _, rotated = _rotate_about_centre(self.downscaled, self.rotation)
        fill = float(gray.mean())
        copy = cv2.warpAffine(gray, rotated[:2], self.size, flags=cv2.INTER_CUBIC, borderValue=fill)
        return np.asarray(np.clip(copy, 0, 1), np.float32)  # cubic interpolation overshoots

    def camera(self, camera: Camera) -> Camera:
        """The camera of the copy, given that of the image."""
        width, height = self.size
        return replace(camera, width=width, height=height, matrix=self.matrix @ camera.matrix)

    def keypoints_back(self, keypoints: Keypoints) -> Keypoints:
        """Keypoints of the copy mapped to the image."""
        return replace(
            keypoints,
            xy=self._back(keypoints.xy.astype(np.float64)),
            size=keypoints.size / np.sqrt(abs(np.linalg.det(self.linear))),
            angle=normalise_degrees(keypoints.angle - np.float32(self.rotation)),
        )

    def planes(self, planes: Planes) -> Planes:
        """Planes around pixels of the image mapped to the copy: slope g becomes g A^-1."""
        return Planes(planes.inverse_depth, (planes.slope @ np.linalg.inv(self.linear)).astype(np.float32))

    def depth(self, inverse_depth: FloatArray) -> FloatArray:
        """Inverse depth of the image, at any resolution, mapped to the pixels of the copy."""
        x, y = np.meshgrid(np.arange(self.size[0]), np.arange(self.size[1]))
        back = self._back(np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float64))
        factor = np.array(inverse_depth.shape[::-1]) / self.original
        columns, rows = resize_points(back, factor).T
        return nearest(inverse_depth, columns, rows).reshape(x.shape)

    def _back(self, xy: Array) -> Array:
        inverse = np.linalg.inv(self.matrix)
        return np.asarray(xy @ inverse[:2, :2].T + inverse[:2, 2])


def _rotate_about_centre(size: tuple[int, int], degrees: float) -> tuple[tuple[int, int], Matrix]:
    """(width, height) of the canvas that holds a rotated image, and the map (3, 3) from the image to it."""
    radians = np.radians(degrees)
    cosine, sine = float(np.cos(radians)), float(np.sin(radians))
    if degrees % 90 == 0:  # exact, so that rounding adds no row
        cosine, sine = round(cosine), round(sine)
    (width, height), (along, across) = size, (abs(cosine), abs(sine))
    canvas = int(np.ceil(width * along + height * across)), int(np.ceil(width * across + height * along))
    rotation = np.array([[cosine, -sine], [sine, cosine]], np.float64)
    matrix = np.eye(3)
    matrix[:2, :2] = rotation
    matrix[:2, 2] = (np.array(canvas) - 1) / 2 - rotation @ ((np.array(size) - 1) / 2)
    return canvas, matrix
