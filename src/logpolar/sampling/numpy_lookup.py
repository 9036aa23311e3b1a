"""Look-up on the CPU: Gaussian pyramid and ``cv2.remap``.

Convention:
    Level l of the pyramid halves level l - 1 (5-tap binomial filter, ``cv2.pyrDown``) and keeps every second pixel,
    the first included: pixel k of level l lies at pixel k * 2^l of the image. Between levels the look-up is linear.
"""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.keypoints import FloatArray, Keypoints
from logpolar.sampling.patterns import Pattern, SamplePoints, fill_outside, inside, pyramid_level, reflect

_REMAP_LIMIT = 32767
"""cv2.remap refuses images, and maps, with a side this long."""

_CHUNK = 256
"""Keypoints sampled at a time: their coordinates then fit the processor's cache, and memory stays bounded."""


class ImagePyramid:
    """One image and its smaller copies, made when first needed. Sample as many keypoints from it as you like."""

    def __init__(self, gray: FloatArray) -> None:
        if gray.ndim != 2 or gray.dtype != np.float32:
            raise ValueError(f"expected a gray float32 image, not {gray.dtype} of shape {gray.shape}")
        self._levels = [gray]

    @property
    def height(self) -> int:
        return int(self._levels[0].shape[0])

    @property
    def width(self) -> int:
        return int(self._levels[0].shape[1])

    @property
    def top(self) -> int:
        """The last level: a single pixel."""
        return (max(self.width, self.height) - 1).bit_length()

    def level(self, number: int) -> FloatArray:
        while len(self._levels) <= number:
            self._levels.append(np.asarray(cv2.pyrDown(self._levels[-1]), np.float32))
        return self._levels[number]

    def sample(self, keypoints: Keypoints, pattern: Pattern) -> FloatArray:
        """Patches (N, rows, columns), intensities as in the image."""
        patches = np.empty((len(keypoints), pattern.rows, pattern.columns), np.float32)
        for part, points in _located(keypoints, pattern):
            patches[part] = self._look_up(points, pattern.antialias)
            if pattern.outside == "mean":
                patches[part] = fill_outside(patches[part], inside(points, self.width, self.height))
        return patches

    def validity(self, keypoints: Keypoints, pattern: Pattern) -> NDArray[np.bool_]:
        """Mask (N, rows, columns) of the samples that lie on the image rather than on its reflection."""
        mask = np.empty((len(keypoints), pattern.rows, pattern.columns), np.bool_)
        for part, points in _located(keypoints, pattern):
            mask[part] = inside(points, self.width, self.height)
        return mask

    def _look_up(self, points: SamplePoints, antialias: bool) -> FloatArray:
        x = reflect(points.x, self.width).astype(np.float32)
        y = reflect(points.y, self.height).astype(np.float32)
        if not antialias:
            return self._bilinear(0, x, y)
        # A whole column of a patch shares its level, so columns are the unit that is handed out to the levels.
        x, y = (np.ascontiguousarray(values.transpose(0, 2, 1)).reshape(-1, values.shape[1]) for values in (x, y))
        level = np.clip(pyramid_level(points.spacing).reshape(-1), 0, self.top)
        lower = level.astype(np.int64)
        share = (level - lower).astype(np.float32)[:, None]
        values = np.empty_like(x)
        for number in np.unique(lower).tolist():
            here = np.flatnonzero(lower == number)
            at = np.take(x, here, axis=0), np.take(y, here, axis=0)
            fine = self._bilinear(number, *at)
            if number < self.top:
                coarse = self._bilinear(number + 1, *at)
                coarse -= fine
                coarse *= share[here]
                fine += coarse
            values[here] = fine
        count, columns = points.spacing.shape
        return np.asarray(values.reshape(count, columns, -1).transpose(0, 2, 1), np.float32)

    def _bilinear(self, number: int, x: FloatArray, y: FloatArray) -> FloatArray:
        """Values of one level at positions given in pixels of the image; any shape of positions."""
        image = self.level(number)
        scale = np.float32(0.5**number)
        flat_x, flat_y = (x * scale).reshape(-1, x.shape[-1]), (y * scale).reshape(-1, x.shape[-1])
        values = np.empty(flat_x.shape, np.float32)
        for start in range(0, len(values), _REMAP_LIMIT - 1):
            rows = slice(start, start + _REMAP_LIMIT - 1)
            values[rows] = _bilinear(image, flat_x[rows], flat_y[rows])
        return values.reshape(x.shape)


def sample_patches(gray: FloatArray, keypoints: Keypoints, pattern: Pattern) -> FloatArray:
    """Patches (N, rows, columns) around keypoints of one gray float32 image."""
    return ImagePyramid(gray).sample(keypoints, pattern)


def _located(keypoints: Keypoints, pattern: Pattern) -> Iterator[tuple[slice, SamplePoints]]:
    """Sample positions of all keypoints, some at a time. In float64: a large support may reach very far."""
    keypoints.check()
    columns = [values.astype(np.float64) for values in (keypoints.xy, keypoints.size, keypoints.angle)]
    for start in range(0, len(keypoints), _CHUNK):
        part = slice(start, start + _CHUNK)
        yield part, pattern.locate(*(values[part] for values in columns))


def _bilinear(image: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Bilinear look-up; positions a little beyond the last pixel see the edge pixel."""
    if max(image.shape) >= _REMAP_LIMIT:
        return _bilinear_gather(image, x, y)
    return np.asarray(cv2.remap(image, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE), np.float32)


def _bilinear_gather(image: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """The same as ``cv2.remap`` for images that are too long for it."""
    height, width = image.shape
    x, y = np.clip(x, 0, width - 1), np.clip(y, 0, height - 1)
    left, upper = x.astype(np.int64), y.astype(np.int64)
    right, lower = np.minimum(left + 1, width - 1), np.minimum(upper + 1, height - 1)
    share_x, share_y = x - left, y - upper
    above = image[upper, left] + share_x * (image[upper, right] - image[upper, left])
    below = image[lower, left] + share_x * (image[lower, right] - image[lower, left])
    return np.asarray(above + share_y * (below - above), np.float32)
