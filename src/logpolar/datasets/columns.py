"""The columns of correspondence files: what the writer creates and the reader expects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from logpolar.datasets.correspondences import PAIR_CAUSES
from logpolar.storage.arrays import Array

SPLITS = ("train", "validation", "test")

IMAGE_CAUSES = ("no depth", "other views disagree", "depth edge")
"""Why a keypoint has no depth; the first that applies."""

TEXT = h5py.string_dtype()


@dataclass(frozen=True)
class Column:
    """Type and shape of a row, what it holds, for readers without this library, and the unit it is a multiple of."""

    kind: Any
    shape: tuple[int, ...] = ()
    about: str = ""
    unit: float | None = None
    bounds: tuple[float, float] | None = None

    @property
    def declared(self) -> Array:
        """What readers expect; N rows."""
        return Array(("N", *self.shape), "T" if self.kind is TEXT else np.dtype(self.kind).kind, self.bounds)


COLUMNS = {
    "images/name": Column(TEXT),
    "images/path": Column(TEXT, about="of an image that is not inside, relative to this file's folder"),
    "images/part": Column(
        np.uint8, (), ", ".join(f"{number}: {split}" for number, split in enumerate(SPLITS)), None, (0, len(SPLITS) - 1)
    ),
    "images/size": Column(np.int32, (2,), "width, height in pixels", None, (1, 2**31 - 1)),
    "images/keypoints": Column(np.int64, (2,), "first row and end in keypoints"),
    "images/data": Column(np.int64, (2,), "first byte and end in bytes: the encoded image"),
    "images/depth": Column(
        np.int64,
        (2,),
        "first byte and end in bytes: a picture of the depth; 0: unknown, otherwise nearer is brighter",
    ),
    "images/rejects": Column(np.int32, (len(IMAGE_CAUSES),)),
    "images/camera": Column(
        np.float64, (3, 7), "[matrix | rotation | translation], X camera = rotation X + translation; NaN: not known"
    ),
    "keypoints/xy": Column(np.int32, (2,), "pixels; the centre of the top-left pixel is (0, 0)", 0.01),
    "keypoints/size": Column(np.int32, (), "diameter in pixels, 2 sigma", 0.01),
    "keypoints/angle": Column(np.int32, (), "degrees, clockwise on the screen, from the x axis", 0.01),
    "keypoints/response": Column(np.int32, unit=0.0001),
    "keypoints/depth": Column(np.float32, (), "along the camera's axis, in units of the reconstruction; NaN: unknown"),
    "pairs/images": Column(np.int32, (2,), "rows of the first and the second image"),
    "pairs/correspondences": Column(np.int64, (2,), "first row and end in correspondences"),
    "pairs/rejects": Column(np.int32, (len(PAIR_CAUSES),)),
    "correspondences/keypoints": Column(
        np.int32, (2,), "of the first and of the second image, counted from the image's first keypoint"
    ),
    "correspondences/warp": Column(np.int32, (2, 2), "d (second x, y) / d (first x, y)", 0.001),
    "correspondences/log_scale_ratio": Column(
        np.int32, (), "ln(size in the second image / size that the warp predicts there)", 0.001
    ),
    "correspondences/angle_residual": Column(
        np.int32, (), "degrees: angle in the second image less the angle that the warp predicts", 0.01
    ),
}
