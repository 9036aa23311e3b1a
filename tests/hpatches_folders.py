"""Folders in the layout of HPatches, cut out of a photo."""

from __future__ import annotations

import cv2
import numpy as np

from logpolar.evaluation.hpatches_sequences import Sequences
from logpolar.evaluation.options import HPatchesOptions

SIZE = (240, 200)  # width, height
TILT = np.array([[0.95, 0.08, 4.0], [-0.05, 1.02, 3.0], [1e-4, -5e-5, 1.0]])


def homography(number: int) -> np.ndarray:
    """Shifts that grow with the number, on top of a tilt."""
    return np.array([[1, 0, 1.5 * number], [0, 1, -number], [0, 0, 1]]) @ TILT


def write_sequence(folder, photo, numbers=range(1, 7), suffix=".ppm", ending="\n", name="H_1_{}", corner=(100, 60)):
    """A sequence cut out of the photo, its other images warped by known homographies."""
    folder.mkdir(parents=True)
    (x, y), (width, height) = corner, SIZE
    for number in numbers:
        place = np.array([[1.0, 0, -x], [0, 1, -y], [0, 0, 1]])
        if number > 1:
            place = homography(number) @ place
            rows = [" ".join(f"{value:.17g}" for value in row) for row in homography(number)]
            (folder / name.format(number)).write_bytes((ending.join(rows) + ending).encode())
        image = cv2.warpPerspective(photo, place, (width, height), flags=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / f"{number}{suffix}"), image)


def pairs_of(folder, **options):
    options = HPatchesOptions(**options)
    return list(Sequences(folder, options).pairs()), options
