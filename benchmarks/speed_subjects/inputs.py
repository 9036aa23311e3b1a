"""Pictures, keypoints and descriptors that are measured on, made anew from seeds."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

import common
from logpolar.images import to_gray
from logpolar.keypoints import Keypoints
from logpolar.types import FloatArray

SMALL, LARGE = (1024, 1024), (4000, 3000)
COUNT = 4000


def picture(size: tuple[int, int]) -> np.ndarray:
    """8 bit, gray, (width, height)."""
    return common.large_photo(*size)


def gray_picture(size: tuple[int, int]) -> FloatArray:
    return to_gray(picture(size))


def random_keypoints(count: int, size: tuple[int, int]) -> Keypoints:
    return common.random_keypoints(count, *size)


def random_descriptors(count: int, dimensions: int = 128) -> tuple[FloatArray, FloatArray]:
    """Two sets of unit vectors; each of the second is one of the first, in another order, with noise."""
    random = np.random.default_rng(0)
    first = random.normal(size=(count, dimensions))
    second = first[random.permutation(count)] + 0.5 * random.normal(size=first.shape)
    units = [vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (first, second)]
    return units[0].astype(np.float32), units[1].astype(np.float32)


def write_photos(folder: Path, count: int) -> None:
    """Photos of 1024 x 768 pixels, all different: turned and zoomed parts of the shipped one, and a texture."""
    whole = picture((1600, 1600))
    for number in range(count):
        random = np.random.default_rng(number)
        turn = cv2.getRotationMatrix2D((800, 800), random.uniform(0, 360), random.uniform(1, 2))
        turn[:, 2] -= (800 - 512, 800 - 384)
        view = cv2.warpAffine(whole, turn, (1024, 768), borderMode=cv2.BORDER_REFLECT)
        texture = cv2.GaussianBlur(random.normal(0, 60, view.shape), (0, 0), random.uniform(1, 3))
        cv2.imwrite(str(folder / f"{number:04d}.jpg"), np.clip(view + 2 * texture, 0, 255).astype(np.uint8))
