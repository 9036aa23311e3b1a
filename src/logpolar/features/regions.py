"""Features of a part of an image, seen larger or smaller, and rotated.

Keypoints are detected in the part alone, as if it were a photo of its own, but described with what lies around it, and
come out in the pixels of the image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.features.features import Features
from logpolar.images import resize, resize_points
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import Detector
from logpolar.keypoints.keypoints import normalise_degrees
from logpolar.models.describers import Describer
from logpolar.types import Array, FloatArray, Matrix

_AROUND = 1.0
"""How much of the image around a region descriptors see on each side, in sides of the region."""

_LEVEL = 1.0
"""Rotations by fewer degrees are left out: they would only blur."""


@dataclass(frozen=True)
class Region:
    """A rectangle in an image, its sides in any direction, and how it is to be seen.

    Convention: the point p of the image is seen at factor * R(-degrees) (p - centre), from the middle of the region;
    degrees are clockwise on the screen, as of keypoints.
    """

    centre: tuple[float, float]  # in pixels of the image
    size: tuple[float, float]  # width and height in pixels of the image, along the region's own axes
    degrees: float = 0.0  # of the region's x axis
    factor: float = 1.0  # pixels of the region as it is seen, per pixel of the image

    @property
    def longer(self) -> float:
        """The longer side as it is seen, in pixels."""
        return max(self.size) * self.factor

    def resized(self, factor_x: float, factor_y: float) -> Region:
        """The same region, seen alike, after the image is resized by these factors: (x + 0.5) * factor - 0.5."""
        x, y = resize_points(np.array(self.centre), np.array([factor_x, factor_y]))
        factor = math.sqrt(factor_x * factor_y)
        return Region((x, y), (self.size[0] * factor, self.size[1] * factor), self.degrees, self.factor / factor)

    def corners(self, around: float = 0.0) -> Matrix:
        """(4, 2): in pixels of the image; ``around`` makes the region larger on each side, in sides."""
        half = np.array(self.size) / 2 + around * max(self.size)
        return np.asarray(half * [[-1, -1], [1, -1], [1, 1], [-1, 1]] @ rotation(self.degrees).T + self.centre)


def rotation(degrees: float) -> Matrix:
    """(2, 2): by this angle, clockwise on the screen."""
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[cosine, -sine], [sine, cosine]])


def extract_region(gray: FloatArray, region: Region, detector: Detector, describer: Describer) -> Features:
    """Features of a region, in pixels of the image; none of a region that lies outside."""
    height, width = gray.shape
    corners = region.corners(_AROUND)
    left, top = (int(low) for low in np.clip(np.floor(corners.min(axis=0)), 0, (width, height)))
    right, bottom = (int(high) for high in np.clip(np.ceil(corners.max(axis=0)) + 1, 0, (width, height)))
    if right <= left or bottom <= top:
        return Features(Keypoints.empty(), describer.describe(gray, Keypoints.empty()), (width, height), region.factor)
    size = tuple(max(round(side * region.factor), 1) for side in (right - left, bottom - top))
    seen = resize(gray[top:bottom, left:right], (size[0], size[1]))
    factor = size[0] / (right - left), size[1] / (bottom - top)
    x, y = region.centre
    keypoints = _detect(seen, replace(region, centre=(x - left, y - top)).resized(*factor), detector)
    found = keypoints.resized(1 / factor[0], 1 / factor[1])
    found = replace(found, xy=found.xy + np.array([left, top], np.float32))
    return Features(found, describer.describe(seen, keypoints), (width, height), region.factor)


def _detect(seen: FloatArray, region: Region, detector: Detector) -> Keypoints:
    """Keypoints inside a region of an image, in the image's pixels."""
    window = tuple(max(round(side), 1) for side in region.size)
    if abs(region.degrees) < _LEVEL:
        centre, limits = np.array(region.centre), np.array(seen.shape[::-1])
        low = np.clip(np.rint(centre - np.array(window) / 2).astype(int), 0, limits - 1)
        high = np.clip(low + window, low + 1, limits)
        found = detector(np.ascontiguousarray(seen[low[1] : high[1], low[0] : high[0]]))
        return replace(found, xy=found.xy + low.astype(np.float32))
    back = rotation(region.degrees)
    middle = (np.array(window) - 1) / 2
    matrix = np.concatenate([back.T, (middle - back.T @ region.centre)[:, None]], axis=1)
    upright = cv2.warpAffine(seen, matrix, window, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT_101)
    found = detector(np.clip(upright, 0, 1))
    xy = (found.xy - middle) @ back.T + region.centre
    turned = replace(found, xy=xy, angle=normalise_degrees(found.angle + np.float32(region.degrees)))
    return turned[_inside(xy, seen)]


def _inside(xy: Array, image: FloatArray) -> NDArray[np.bool_]:
    """Mask (N,) of the points that lie in the image."""
    limits = np.array(image.shape[::-1]) - 0.5
    return np.asarray(((xy >= -0.5) & (xy < limits)).all(axis=1))
