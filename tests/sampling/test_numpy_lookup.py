"""Patches that leave the image in part, wholly, or by far: each sample against the definitions, written as loops."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest

from logpolar.keypoints import Keypoints
from logpolar.sampling import Cartesian, ImagePyramid, LogPolar, sample_patches

PATTERNS = [
    LogPolar(24, 6, 9, radius_ratio=16, outside="mean"),
    LogPolar(24, 6, 9, inner_radius="paper"),
    LogPolar(12, 3, 4, antialias=False, outside="mean"),
    Cartesian(8, 5, 7, outside="mean"),
    Cartesian(6, 4, 3),
]
SHAPES = [(48, 70), (7, 3), (1, 40), (33, 1), (1, 1)]


def sample_place(pattern, x, y, size, degrees, row, column):
    """Where a cell looks, and how far its neighbours are."""
    angle, down, right = math.radians(degrees), (row + 0.5) / pattern.rows, (column + 0.5) / pattern.columns
    if isinstance(pattern, Cartesian):
        side, u, v = pattern.lambda_ * size, right - 0.5, down - 0.5
        x += side * (u * math.cos(angle) - v * math.sin(angle))
        y += side * (u * math.sin(angle) + v * math.cos(angle))
        return x, y, side / min(pattern.rows, pattern.columns)
    outer = pattern.lambda_ / 2 * size
    inner = 1.0 if pattern.inner_radius == "paper" else outer / pattern.radius_ratio
    radius, phi = inner * (outer / inner) ** right, angle + 2 * math.pi * down
    step = max(abs(math.log(outer / inner)) / pattern.columns, 2 * math.pi / pattern.rows)
    return x + radius * math.cos(phi), y + radius * math.sin(phi), radius * step


def folded(position: float, length: int) -> float:
    position = abs(position) % (2 * (length - 1)) if length > 1 else 0
    return min(position, 2 * (length - 1) - position)


def bilinear(image: np.ndarray, x: float, y: float) -> float:
    height, width = image.shape
    left, upper = math.floor(x), math.floor(y)
    total = 0.0
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1)):
        weight = (1 - abs(x - left - column)) * (1 - abs(y - upper - row))
        total += weight * float(image[min(upper + row, height - 1), min(left + column, width - 1)])
    return total


def by_loops(image: np.ndarray, keypoints: Keypoints, pattern) -> tuple[np.ndarray, np.ndarray]:
    """Patches and masks."""
    height, width = image.shape
    levels = [image]
    while max(levels[-1].shape) > 1:
        levels.append(np.atleast_2d(cv2.pyrDown(levels[-1])))
    shape = len(keypoints), pattern.rows, pattern.columns
    patches, masks = np.zeros(shape), np.zeros(shape, bool)
    for number, row, column in np.ndindex(shape):
        x, y, spacing = sample_place(pattern, *keypoints.table[number].tolist(), row, column)
        masks[number, row, column] = -0.5 <= x <= width - 0.5 and -0.5 <= y <= height - 0.5
        level = min(math.log2(max(spacing, 1)), len(levels) - 1) if pattern.antialias else 0.0
        lower = math.floor(level)
        x, y = folded(x, width), folded(y, height)
        value = bilinear(levels[lower], x / 2**lower, y / 2**lower)
        if level > lower:
            above = bilinear(levels[lower + 1], x / 2 ** (lower + 1), y / 2 ** (lower + 1))
            value += (level - lower) * (above - value)
        patches[number, row, column] = value
    if pattern.outside == "mean":
        for patch, mask in zip(patches, masks, strict=True):
            patch[~mask] = patch[mask].mean() if mask.any() else 0
    return patches, masks


def at_the_edges(width: int, height: int) -> Keypoints:
    """On the image, at its corners and sides, beside it and far away; tiny, larger than the image and huge."""
    on = [(0.5, 0.5), (0.2, 0.3), (0.8, 0.6), (0.6, 0.9), (0, 0), (1, 1)]
    off = [(-0.5, height / 2), (width - 0.5, -0.5), (-9, 0), (width + 4, height + 9), (5000, -7000)]
    xy = np.concatenate([np.array(on) * (width - 1, height - 1), off])
    sizes = [0.3, 2, 9, 40, 20_000]
    return Keypoints.from_points(
        np.concatenate([xy] * len(sizes)), np.repeat(sizes, len(xy)), np.arange(len(sizes) * len(xy)) * 37.0
    )


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("shape", SHAPES)
def test_samples_and_masks_by_loops(gray, shape, pattern):
    image = np.ascontiguousarray(cv2.GaussianBlur(gray, (0, 0), 2)[100 : 100 + shape[0], 50 : 50 + shape[1]])
    keypoints = at_the_edges(shape[1], shape[0])
    patches, masks = by_loops(image, keypoints, pattern)
    pyramid = ImagePyramid(image)
    np.testing.assert_array_equal(pyramid.validity(keypoints, pattern), masks)
    np.testing.assert_allclose(pyramid.sample(keypoints, pattern), patches, atol=1e-4)


def test_both_kinds_of_columns_are_tried():
    """Those that stay on the image and those that do not, in one patch."""
    masks = ImagePyramid(np.zeros(SHAPES[0], np.float32)).validity(at_the_edges(*SHAPES[0][::-1]), PATTERNS[0])
    whole = masks.all(axis=1).mean(axis=1)
    assert ((whole > 0) & (whole < 1)).sum() > 5
    assert (whole == 1).any()
    assert not masks.any(axis=(1, 2)).all()


def some_keypoints(count: int) -> Keypoints:
    random = np.random.default_rng(0)
    size = np.exp(random.uniform(0, 3, count))
    return Keypoints.from_points(random.uniform(-20, 530, (count, 2)), size, random.uniform(0, 360, count))


def test_patches_come_in_the_order_of_their_keypoints(gray):
    keypoints, pattern = some_keypoints(600), LogPolar(24, 8, 8, outside="mean")
    patches = sample_patches(gray, keypoints, pattern)
    order = np.random.default_rng(1).permutation(600)
    np.testing.assert_array_equal(sample_patches(gray, keypoints[order], pattern), patches[order])
    batches = list(ImagePyramid(gray).batches(keypoints, pattern))
    assert len(batches) > 1
    assert all(batch.flags.c_contiguous and batch.dtype == np.float32 for batch in batches)
    np.testing.assert_array_equal(np.concatenate(batches), patches)


def test_no_keypoints_no_batches(gray):
    assert list(ImagePyramid(gray).batches(Keypoints.empty(), LogPolar())) == []
