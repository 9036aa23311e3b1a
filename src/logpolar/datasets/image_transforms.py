"""A smaller or a turned copy of an image, and what is known of the image carried over to the copy.

Scenes hold few pairs of very different scale, or of cameras that were held upside down. An altered copy is a view by
the same camera at the same place, so that poses and depth say exactly where everything lies in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import cv2
import numpy as np

from logpolar.datasets.depth import Planes, nearest
from logpolar.datasets.options import SecondViewRules
from logpolar.geometry.cameras import Array, Camera, Matrix
from logpolar.images import downscale, resize_matrix, resize_points
from logpolar.keypoints import Keypoints, normalize_degrees
from logpolar.types import FloatArray


def altered_name(name: str, rules: SecondViewRules) -> str:
    """What the altered copy of an image is called: ``a.jpg@shrunk-3``, ``a.jpg@shrunk-3-turned-45``."""
    parts = [f"shrunk-{rules.shrink:g}"] if rules.shrink != 1 else []
    parts += [f"turned-{rules.turn:g}"] if rules.turn != 0 else []
    return f"{name}@{'-'.join(parts)}"


@dataclass(frozen=True, eq=False)
class Alteration:
    """How images of one size are altered.

    ``place`` (3, 3): the similarity from pixels of the image to those of the copy, centres at integers. (The factors of
    x and y differ by what rounding to whole pixels makes of them.)
    """

    original: tuple[int, int]  # width, height
    shrunk: tuple[int, int]  # before it is turned
    size: tuple[int, int]  # of the copy
    turn: float  # degrees, clockwise on the screen
    place: Matrix

    @classmethod
    def of(cls, width: int, height: int, rules: SecondViewRules) -> Alteration:
        small = downscale(np.zeros((height, width), np.float32), _longer_side(width, height, rules.shrink))
        shrunk = small.shape[1], small.shape[0]
        size, turned = _turn_about_centre(shrunk, rules.turn)
        return cls((width, height), shrunk, size, rules.turn, turned @ resize_matrix((width, height), shrunk))

    @property
    def linear(self) -> Matrix:
        """(2, 2): d (x, y in the copy) / d (x, y in the image)."""
        return self.place[:2, :2]

    def image(self, gray: FloatArray) -> FloatArray:
        """The copy of an image; where it shows more than the image it has the image's mean."""
        gray = downscale(gray, max(self.shrunk))
        if self.turn % 90 == 0:
            return np.ascontiguousarray(np.rot90(gray, -round(self.turn / 90)))
        _, turned = _turn_about_centre(self.shrunk, self.turn)
        fill = float(gray.mean())
        copy = cv2.warpAffine(gray, turned[:2], self.size, flags=cv2.INTER_CUBIC, borderValue=fill)
        return np.asarray(np.clip(copy, 0, 1), np.float32)  # cubic interpolation overshoots

    def camera(self, camera: Camera) -> Camera:
        """The camera of the copy, given that of the image."""
        width, height = self.size
        return replace(camera, width=width, height=height, matrix=self.place @ camera.matrix)

    def keypoints_back(self, keypoints: Keypoints) -> Keypoints:
        """Keypoints of the copy as they would be in the image."""
        return replace(
            keypoints,
            xy=self._back(keypoints.xy.astype(np.float64)),
            size=keypoints.size / np.sqrt(abs(np.linalg.det(self.linear))),
            angle=normalize_degrees(keypoints.angle - np.float32(self.turn)),
        )

    def planes(self, planes: Planes) -> Planes:
        """Planes around pixels of the image as they are around the same places of the copy: g . (A^-1 step)."""
        return Planes(planes.inverse_depth, (planes.slope @ np.linalg.inv(self.linear)).astype(np.float32))

    def depth(self, inverse_depth: FloatArray) -> FloatArray:
        """A map of inverse depth of the image, whatever its resolution, as one of the copy in the copy's pixels."""
        x, y = np.meshgrid(np.arange(self.size[0]), np.arange(self.size[1]))
        back = self._back(np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float64))
        factor = np.array(inverse_depth.shape[::-1]) / self.original
        columns, rows = resize_points(back, factor).T
        return nearest(inverse_depth, columns, rows).reshape(x.shape)

    def _back(self, xy: Array) -> Array:
        inverse = np.linalg.inv(self.place)
        return np.asarray(xy @ inverse[:2, :2].T + inverse[:2, 2])


def _longer_side(width: int, height: int, factor: float) -> int:
    return max(round(max(width, height) / factor), 1)


def _turn_about_centre(size: tuple[int, int], degrees: float) -> tuple[tuple[int, int], Matrix]:
    """(width, height) of the canvas that holds all of a turned image, and the map (3, 3) from the image to it."""
    radians = np.radians(degrees)
    cosine, sine = float(np.cos(radians)), float(np.sin(radians))
    if degrees % 90 == 0:  # pixels on pixels, and no row more for want of precision
        cosine, sine = round(cosine), round(sine)
    (width, height), (along, across) = size, (abs(cosine), abs(sine))
    canvas = int(np.ceil(width * along + height * across)), int(np.ceil(width * across + height * along))
    rotation = np.array([[cosine, -sine], [sine, cosine]], np.float64)
    place = np.eye(3)
    place[:2, :2] = rotation
    place[:2, 2] = (np.array(canvas) - 1) / 2 - rotation @ ((np.array(size) - 1) / 2)
    return canvas, place
