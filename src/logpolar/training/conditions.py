"""Altered copies of whole images: what night, weather, season and another sensor make of a photo.

Copies are made once, before training. Effects that need neighbouring pixels (blur, compression) or are common to all
patches of an image (the edge of a shadow) are thus consistent, and cost nothing per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.distributed import cores
from logpolar.images import decode_gray, encode_gray, to_bytes
from logpolar.types import FloatArray


def change_conditions(view: NDArray[np.uint8], random: np.random.Generator) -> NDArray[np.uint8]:
    """An 8-bit gray image under other conditions; the geometry is unchanged.

    In this order, each with its own probability: contrast inverted in regions, as of lit windows and skies at night;
    gamma that varies over the image; cast shadows; lamps; haze; motion blur; noise; compression.
    """
    shape = view.shape
    values = view.astype(np.float32) / 255
    if random.random() < 0.4:
        region = _sigmoid(12 * (smooth_field(shape, random) - np.float32(random.uniform(0.1, 0.8))))
        values = values + region * np.float32(random.uniform(0.5, 1)) * (1 - 2 * values)
    if random.random() < 0.7:
        strength, dark = random.uniform(0, 0.6), random.normal(0.2, 0.5)
        log_gamma = np.float32(strength) * smooth_field(shape, random) + np.float32(dark)
        values = np.clip(values, 1e-3, 1) ** np.exp(log_gamma)
    for _ in range(random.integers(0, 3)):
        edge = _sigmoid(np.float32(random.uniform(5, 60)) * smooth_field(shape, random))
        values = values * (1 - np.float32(random.uniform(0.2, 0.8)) * edge)
    if random.random() < 0.3:
        values = values + _lamps(shape, random)
    if random.random() < 0.3:
        haze = np.clip(random.uniform(0.2, 0.8) + 0.3 * smooth_field(shape, random), 0, 0.9)
        values = values * (1 - haze) + haze * np.float32(random.uniform(0.3, 1))
    if random.random() < 0.4:
        values = np.asarray(cv2.filter2D(values, -1, _motion(random)), np.float32)
    if random.random() < 0.7:
        values = values + random.uniform(0, 0.06) * random.standard_normal(shape, np.float32)
    changed = to_bytes(np.clip(values, 0, 1))
    return decode_gray(encode_gray(changed, int(random.integers(25, 90)))) if random.random() < 0.5 else changed


def alter_images(images: Sequence[NDArray[np.uint8]], copies: int, seed: int) -> list[NDArray[np.uint8]]:
    """Altered copies: the first of every image, then the second, and so on."""
    tasks = [(copy, number) for copy in range(copies) for number in range(len(images))]

    def alter(task: tuple[int, int]) -> NDArray[np.uint8]:
        return change_conditions(images[task[1]], np.random.default_rng((seed, *task)))

    with ThreadPoolExecutor(cores()) as threads:  # OpenCV and numpy release the lock
        return list(threads.map(alter, tasks))


def smooth_field(shape: tuple[int, ...], random: np.random.Generator) -> FloatArray:
    """(height, width) from about -1 to 1; structures are a half to a tenth of the image wide."""
    cells = random.uniform(-1, 1, random.integers(2, 11, 2)).astype(np.float32)
    return np.asarray(cv2.resize(cells, shape[::-1], interpolation=cv2.INTER_CUBIC), np.float32)


def _sigmoid(values: FloatArray) -> FloatArray:
    return np.asarray(1 / (1 + np.exp(-values)), np.float32)


def _lamps(shape: tuple[int, ...], random: np.random.Generator) -> FloatArray:
    """Bright spots with a glow."""
    rows, columns = np.ogrid[: shape[0], : shape[1]]
    light = np.zeros(shape, np.float32)
    for _ in range(random.integers(1, 6)):
        y, x = random.random(2) * shape
        width = max(shape) * random.uniform(0.005, 0.06)
        light += np.exp(-np.sqrt(((rows - y) ** 2 + (columns - x) ** 2) / width**2)).astype(np.float32)
    return np.asarray(light * np.float32(random.uniform(0.4, 1.2)), np.float32)


def _motion(random: np.random.Generator) -> FloatArray:
    """Kernel of a straight movement by 2 to 9 pixels."""
    length, angle = random.uniform(2, 9), random.uniform(0, np.pi)
    kernel = np.zeros((11, 11), np.float32)
    step = length / 2 * np.array([np.cos(angle), np.sin(angle)])
    ends = [tuple(int(value) for value in np.rint((5 + sign * step) * 16)) for sign in (-1, 1)]
    cv2.line(kernel, ends[0], ends[1], 1.0, 1, cv2.LINE_AA, 4)
    return np.asarray(kernel / kernel.sum(), np.float32)
