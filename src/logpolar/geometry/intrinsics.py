"""Intrinsics of cameras, as COLMAP writes them, and what a pixel sees through them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import poselib

from logpolar.errors import LogpolarError
from logpolar.images import read_image
from logpolar.images.exif import (
    FOCAL_LENGTH,
    FOCAL_LENGTH_35MM,
    FOCAL_PLANE_UNIT,
    FOCAL_PLANE_X_RESOLUTION,
    PIXEL_WIDTH,
    read_exif,
)
from logpolar.types import Array, Matrix

_PARAMETERS = {
    "SIMPLE_PINHOLE": "f,cx,cy",
    "PINHOLE": "fx,fy,cx,cy",
    "SIMPLE_RADIAL": "f,cx,cy,k",
    "RADIAL": "f,cx,cy,k1,k2",
    "OPENCV": "fx,fy,cx,cy,k1,k2,p1,p2",
    "OPENCV_FISHEYE": "fx,fy,cx,cy,k1,k2,k3,k4",
    "FULL_OPENCV": "fx,fy,cx,cy,k1,k2,p1,p2,k3,k4,k5,k6",
}
"""COLMAP's camera models, as far as PoseLib knows them."""

_DIAGONAL_35MM = math.hypot(36, 24)
_UNITS = {2: 25.4, 3: 10.0}  # of EXIF: inch and centimetre, in mm


@dataclass(frozen=True)
class Intrinsics:
    """A camera of COLMAP: model, size in pixels and parameters.

    Convention: COLMAP's. The centre of the top-left pixel is (0.5, 0.5), so the principal point of a centred camera is
    (width / 2, height / 2). Points are in the library's pixels, with that centre at (0, 0).
    """

    model: str
    width: int
    height: int
    parameters: tuple[float, ...]

    def __post_init__(self) -> None:
        if self.model not in _PARAMETERS:
            raise LogpolarError(f"'{self.model}' is not a known camera model ({', '.join(_PARAMETERS)})")
        names = _PARAMETERS[self.model].split(",")
        if len(self.parameters) != len(names):
            raise LogpolarError(
                f"a {self.model} camera has {len(names)} parameters ({', '.join(names)}), not {len(self.parameters)}"
            )
        if not all(map(math.isfinite, self.parameters)):
            raise LogpolarError(f"the parameters of a camera must be finite: {self}")
        if self.width < 1 or self.height < 1 or min(self.parameters[: names.index("cx")]) <= 0:
            raise LogpolarError(f"a camera needs a positive size and focal length: {self}")

    def __str__(self) -> str:
        return ",".join([self.model, str(self.width), str(self.height), *(f"{each:g}" for each in self.parameters)])

    @classmethod
    def parse(cls, text: str) -> Intrinsics:
        """From COLMAP's notation, for example ``PINHOLE,640,480,500,500,320,240``."""
        model, *numbers = text.replace(",", " ").split() or [""]
        try:
            width, height = map(int, numbers[:2])
            parameters = tuple(map(float, numbers[2:]))
        except ValueError as error:
            example = "PINHOLE,640,480,500,500,320,240"
            raise LogpolarError(
                f"'{text}' is not a camera; write MODEL,WIDTH,HEIGHT,PARAMETERS as in {example}"
            ) from error
        return cls(model, width, height, parameters)

    @classmethod
    def from_exif(cls, path: str | Path) -> Intrinsics:
        """A pinhole camera with the focal length in a photo's EXIF data, centred."""
        height, width = read_image(path).shape[:2]
        exif = read_exif(path)
        focal = exif.get(FOCAL_LENGTH_35MM, 0) * math.hypot(width, height) / _DIAGONAL_35MM
        unit = _UNITS.get(int(exif.get(FOCAL_PLANE_UNIT, 2)))
        if not focal and unit and {FOCAL_LENGTH, FOCAL_PLANE_X_RESOLUTION} <= exif.keys():
            focal = exif[FOCAL_LENGTH] / unit * exif[FOCAL_PLANE_X_RESOLUTION] * width / exif.get(PIXEL_WIDTH, width)
        if not focal > 0:
            example = f"SIMPLE_PINHOLE,{width},{height},FOCAL,{width / 2:g},{height / 2:g}"
            raise LogpolarError(f"{path}: no focal length in its EXIF data; give the camera as {example}")
        return cls("SIMPLE_PINHOLE", width, height, (focal, width / 2, height / 2))

    @property
    def focal(self) -> float:
        """Focal length in pixels; the mean of that in x and y."""
        return float(np.mean(self.parameters[: _PARAMETERS[self.model].split(",").index("cx")]))

    def to_rays(self, points: Array) -> Matrix:
        """Directions (x / z, y / z) of pixels (N, 2), undistorted."""
        if len(points) == 0:
            return np.zeros((0, 2))
        camera = poselib.Camera(self.model, list(self.parameters), self.width, self.height)
        return np.asarray(camera.unproject(np.asarray(points, np.float64) + 0.5))


AnyCamera: TypeAlias = Intrinsics | str | Matrix
"""``Intrinsics``, COLMAP's notation of them, or an intrinsic matrix (3, 3) in the library's pixels."""


def rays_and_focal(points: Array, camera: AnyCamera) -> tuple[Matrix, float]:
    """Directions (x / z, y / z) of pixels (N, 2), and the camera's focal length in pixels."""
    if isinstance(camera, str):
        camera = Intrinsics.parse(camera)
    if isinstance(camera, Intrinsics):
        return camera.to_rays(points), camera.focal
    matrix = np.asarray(camera, np.float64)
    whole = matrix.shape == (3, 3) and bool(np.isfinite(matrix).all())
    area = float(np.linalg.det(matrix[:2, :2])) if whole else 0.0
    if area == 0:
        raise LogpolarError("a camera matrix must be 3 x 3, finite, with a focal length above 0")
    homogeneous = np.concatenate([np.asarray(points, np.float64), np.ones((len(points), 1))], axis=1)
    with np.errstate(invalid="ignore"):  # points that are not finite
        directions = homogeneous @ np.linalg.inv(matrix).T
    # From the determinant: a rotated camera has no focal lengths on its diagonal.
    return np.asarray(directions[:, :2] / directions[:, 2:]), math.sqrt(abs(area))
