"""Pinhole cameras, and the transfer of pixels of known depth between them.

Convention:
    - pixel centres at integers, as everywhere in the library;
    - X_camera = rotation @ X_world + translation; x to the right, y down, z forward; depth is z.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from logpolar.images import resize_matrix
from logpolar.types import Array as Array
from logpolar.types import Matrix as Matrix


@dataclass(frozen=True, eq=False)
class Camera:
    width: int
    height: int
    matrix: Matrix  # (3, 3): [[fx, 0, cx], [0, fy, cy], [0, 0, 1]], or, for a rotated image, any with this last row
    rotation: Matrix  # (3, 3)
    translation: Matrix  # (3,)

    def resized(self, width: int, height: int) -> Camera:
        """The camera of the resized image: x becomes (x + 0.5) * factor - 0.5."""
        scale = resize_matrix((self.width, self.height), (width, height))
        return replace(self, width=width, height=height, matrix=scale @ self.matrix)

    def cropped(self, left: int, top: int, width: int, height: int) -> Camera:
        """The camera of the part of the image whose first pixel is (left, top)."""
        shift = np.array([[1, 0, -left], [0, 1, -top], [0, 0, 1]], np.float64)
        return replace(self, width=width, height=height, matrix=shift @ self.matrix)

    def see(self, points: Matrix) -> tuple[Matrix, Matrix]:
        """Pixels (N, 2) and depths (N,) of world points (N, 3)."""
        seen = points @ self.rotation.T + self.translation
        return (seen @ self.matrix.T)[:, :2] / seen[:, 2:], seen[:, 2]

    @property
    def pose(self) -> Matrix:
        """(3, 4): rotation and translation side by side."""
        return np.concatenate([self.rotation, self.translation[:, None]], axis=1)

    @property
    def table(self) -> Matrix:
        """(3, 7): matrix, rotation and translation side by side; the inverse of ``from_table``."""
        return np.concatenate([self.matrix, self.pose], axis=1)

    @classmethod
    def from_table(cls, width: int, height: int, table: Matrix) -> Camera:
        return cls(width, height, table[:, :3], table[:, 3:6], table[:, 6])

    @property
    def centre(self) -> Matrix:
        return np.asarray(-self.rotation.T @ self.translation)


@dataclass(frozen=True, eq=False)
class Transfer:
    """From the pixels of one camera to those of another: x' ~ infinite @ (x, y, 1) + shift / depth."""

    infinite: Matrix  # (3, 3): the homography of points at infinity
    shift: Matrix  # (3,)

    @classmethod
    def between(cls, first: Camera, second: Camera) -> Transfer:
        rotation = second.rotation @ first.rotation.T
        translation = second.translation - rotation @ first.translation
        return cls(second.matrix @ rotation @ np.linalg.inv(first.matrix), second.matrix @ translation)

    def __call__(self, x: Array, y: Array, depth: Array) -> tuple[Array, Array, Array]:
        """Positions x, y and depth in the second camera of pixels of known depth; arrays broadcast."""
        infinite, shift = self.infinite.astype(depth.dtype), self.shift.astype(depth.dtype)
        sideways, down, deep = (depth * (t[0] * x + t[1] * y + t[2]) + s for t, s in zip(infinite, shift, strict=True))
        with np.errstate(divide="ignore", invalid="ignore"):
            return sideways / deep, down / deep, deep

    def of_planes(self, xy: Array, inverse_depth: Array, slope: Array) -> Matrix:
        """Homographies (N, 3, 3) of small planes, around pixels ``xy`` (N, 2), from the first camera to the second.

        A plane's inverse depth is linear in the pixel: inverse_depth + slope . (x - xy). Put into the formula of the
        class, this gives a homography; its third coordinate over the inverse depth is the depth in the second camera.
        """
        offset = inverse_depth - (slope * xy).sum(axis=1)
        plane = np.concatenate([slope, offset[:, None]], axis=1).astype(np.float64)
        return np.asarray(self.infinite + self.shift[:, None] * plane[:, None, :])


def rotation_degrees(first: Matrix, second: Matrix) -> Matrix:
    """Angle (...) of the rotation between rotation matrices (..., 3, 3)."""
    # From the chord: the cosine of a small angle is 1 to the last bits.
    chord = np.linalg.norm(first - second, axis=(-2, -1)) / np.sqrt(8)
    return np.asarray(2 * np.degrees(np.arcsin(np.minimum(chord, 1))))


def direction_degrees(first: Matrix, second: Matrix) -> Matrix:
    """Angle (...) between directions (..., 3) of any length; 0 where one has no length."""
    across = np.linalg.norm(np.cross(first, second), axis=-1)
    return np.asarray(np.degrees(np.arctan2(across, (first * second).sum(axis=-1))))
