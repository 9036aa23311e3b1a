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

from logpolar.keypoints import Keypoints
from logpolar.sampling.patterns import Lines, Pattern, mean_inside, pyramid_level, reflect, within
from logpolar.types import FloatArray

_REMAP_LIMIT = 32767
"""cv2.remap refuses images and maps with a side this long."""

_BATCH = 256
"""Keypoints sampled at a time, so that their coordinates fit the processor's cache."""


class ImagePyramid:
    """A Gaussian pyramid of one image, built level by level as needed."""

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
        """Number of the last level, a single pixel."""
        return (max(self.width, self.height) - 1).bit_length()

    def level(self, number: int) -> FloatArray:
        while len(self._levels) <= number:
            self._levels.append(np.asarray(cv2.pyrDown(self._levels[-1]), np.float32))
        return self._levels[number]

    def sample(self, keypoints: Keypoints, pattern: Pattern) -> FloatArray:
        """Patches (N, rows, columns), intensities as in the image."""
        keypoints.check()  # in their original order, which errors refer to
        patches = np.empty((len(keypoints), pattern.rows, pattern.columns), np.float32)
        order, done = keypoints.in_bands(), 0
        for batch in self.batches(keypoints[order], pattern):
            patches[order[done : done + len(batch)]] = batch
            done += len(batch)
        return patches

    def validity(self, keypoints: Keypoints, pattern: Pattern) -> NDArray[np.bool_]:
        """Mask (N, rows, columns) of the samples that lie on the image rather than on its reflection."""
        mask = np.empty((len(keypoints), pattern.rows, pattern.columns), np.bool_)
        for part, lines in _lines(keypoints, pattern):
            mask[part] = _place(lines, self.width, self.height)[1].transpose(0, 2, 1)
        return mask

    def batches(self, keypoints: Keypoints, pattern: Pattern) -> Iterator[FloatArray]:
        """Patches as ``sample`` has them, in batches, in the order of the keypoints: fastest ``in_bands``, where
        neighbours share the processor's cache."""
        for _, lines in _lines(keypoints, pattern):
            position, mask = _place(lines, self.width, self.height)
            level = np.clip(pyramid_level(lines.spacing), 0, self.top if pattern.antialias else 0)
            values = self._look_up(position, level)
            if pattern.outside == "mean":
                np.copyto(values, mean_inside(values, mask).astype(np.float32), where=~mask)
            yield np.ascontiguousarray(values.transpose(0, 2, 1))

    def _look_up(self, position: FloatArray, level: NDArray[np.float64]) -> FloatArray:
        """Values (N, columns, rows) at positions (2, N, columns, rows) on levels (N, columns), linear between two."""
        _, count, columns, rows = position.shape
        lower = np.floor(level)
        # Columns on level l form group 2 l, those between l and l + 1 group 2 l + 1. Groups are handled one by one.
        group = (lower + np.ceil(level)).astype(np.uint8).reshape(-1)
        order = np.argsort(group, kind="stable")
        at = np.take(position.reshape(2, -1, rows), order, axis=1)
        weight = (level - lower).astype(np.float32).reshape(-1, 1)[order]
        values = np.empty(at.shape[1:], np.float32)
        ends = np.cumsum(np.bincount(group)).tolist()
        for number, start, end in zip(range(len(ends)), [0, *ends], ends, strict=False):
            if start < end:
                values[start:end] = self._look_up_group(number, at[:, start:end], weight[start:end])
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return np.take(values, back, axis=0).reshape(count, columns, rows)

    def _look_up_group(self, group: int, position: FloatArray, weight: FloatArray) -> FloatArray:
        """Values (K, rows) at positions (2, K, rows), which are overwritten; ``weight`` (K, 1) of the upper level."""
        lower, between = divmod(group, 2)
        position *= np.float32(0.5**lower)
        values = _bilinear(self.level(lower), *position)
        if between:
            position *= np.float32(0.5)
            coarse = _bilinear(self.level(lower + 1), *position)
            coarse -= values
            coarse *= weight
            values += coarse
        return values


def sample_patches(gray: FloatArray, keypoints: Keypoints, pattern: Pattern) -> FloatArray:
    """Patches (N, rows, columns) around keypoints of one gray float32 image."""
    return ImagePyramid(gray).sample(keypoints, pattern)


def _lines(keypoints: Keypoints, pattern: Pattern) -> Iterator[tuple[slice, Lines]]:
    """Lines of all keypoints, in batches. In float64: a large support may reach very far."""
    keypoints.check()
    table = [values.astype(np.float64) for values in (keypoints.xy, keypoints.size, keypoints.angle)]
    for start in range(0, len(keypoints), _BATCH):
        part = slice(start, start + _BATCH)
        yield part, pattern.lines(*(values[part] for values in table))


def _place(lines: Lines, width: int, height: int) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Positions x and y (2, N, columns, rows) folded into the image, and which (N, columns, rows) lie on it.

    In float32, but for columns that reach beyond the image: there samples may be very far, and must fall to the same
    side of the edge in all look-ups.
    """
    distance = lines.distance
    count, columns = distance.shape
    rows = np.broadcast(lines.start[0], lines.direction[0]).shape[1]
    position, mask = np.empty((2, count, columns, rows), np.float32), np.ones((count, columns, rows), np.bool_)
    factors = np.stack([distance, np.ones_like(distance)], axis=2).astype(np.float32)
    for along, start, direction, length in zip(position, lines.start, lines.direction, (width, height), strict=True):
        # A product of matrices is the fastest way to multiply out: (distance, 1) (direction, start)
        np.matmul(factors, np.stack(np.broadcast_arrays(direction, start), axis=1).astype(np.float32), out=along)
        reach = np.abs(distance) * np.abs(direction).max(axis=1, keepdims=True)
        low, high = start.min(axis=1, keepdims=True) - reach, start.max(axis=1, keepdims=True) + reach
        beyond = np.flatnonzero((low < 0) | (high > length - 1))
        keypoint = beyond // columns
        exact = start[keypoint] + distance.reshape(-1, 1)[beyond] * direction[keypoint]
        along.reshape(-1, rows)[beyond] = reflect(exact, length)
        mask.reshape(-1, rows)[beyond] &= within(exact, length)
    return position, mask


def _bilinear(image: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Bilinear look-up; positions a little beyond the last pixel see the edge pixel."""
    if max(image.shape) >= _REMAP_LIMIT:
        return _bilinear_gather(image, x, y)
    values = np.empty(x.shape, np.float32)
    # As maps of one row: for more rows OpenCV uses its threads, which costs more than it saves.
    flat_x, flat_y, flat_values = (each.reshape(1, -1) for each in (x, y, values))
    for start in range(0, x.size, _REMAP_LIMIT - 1):
        part = np.s_[:, start : start + _REMAP_LIMIT - 1]
        cv2.remap(
            image,
            flat_x[part],
            flat_y[part],
            cv2.INTER_LINEAR,
            dst=flat_values[part],
            borderMode=cv2.BORDER_REPLICATE,
        )
    return values


def _bilinear_gather(image: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """``cv2.remap`` for images that are too large for it."""
    height, width = image.shape
    x, y = np.clip(x, 0, width - 1), np.clip(y, 0, height - 1)
    left, upper = x.astype(np.int64), y.astype(np.int64)
    right, lower = np.minimum(left + 1, width - 1), np.minimum(upper + 1, height - 1)
    weight_x, weight_y = x - left, y - upper
    above = image[upper, left] + weight_x * (image[upper, right] - image[upper, left])
    below = image[lower, left] + weight_x * (image[lower, right] - image[lower, left])
    return np.asarray(above + weight_y * (below - above), np.float32)
