"""Keypoints, and conversions to and from the conventions of other libraries.

Convention:
    - ``xy``: pixels of the original image; the centre of the top-left pixel is (0, 0).
    - ``size``: diameter in pixels, as in OpenCV: 2 sigma for SIFT.
    - ``angle``: degrees in [0, 360), clockwise on the screen (from the x axis towards the y axis, which points down).
    - ``response``: strength; larger is better.

| | position | scale | angle |
|---|---|---|---|
| OpenCV | the same | the same | the same; -1 means none |
| COLMAP | x + 0.5, y + 0.5 | size / 2 | radians, the same direction |
| LAF | the same | see ``from_lafs`` | degrees, the opposite direction |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from logpolar.errors import KeypointError
from logpolar.images import resize_points
from logpolar.types import FloatArray

DEFAULT_SIZE = 4.0
"""Diameter of keypoints without a scale: a little above SIFT's median on 1024 px photos (3 px)."""

DEFAULT_ANGLE = 0.0
"""Angle of keypoints without one: upright."""

BAND = 64.0
"""Height in pixels of the bands in which keypoints are sorted for locality in memory."""

MAX_SIZE = 1e6
"""Largest valid diameter in pixels."""


@dataclass(frozen=True, eq=False)
class Keypoints:
    """N keypoints as float32 arrays: ``xy`` (N, 2), ``size`` (N,), ``angle`` (N,), ``response`` (N,)."""

    xy: FloatArray
    size: FloatArray
    angle: FloatArray
    response: FloatArray

    def __post_init__(self) -> None:
        for each in fields(self):
            # Contiguous: columns of a larger array are not, and OpenCV refuses those.
            object.__setattr__(self, each.name, np.asarray(getattr(self, each.name), np.float32, order="C"))
        count = len(self.xy)
        if self.xy.shape != (count, 2):
            raise KeypointError(f"keypoint positions must have shape (N, 2), not {self.xy.shape}")
        for name in ("size", "angle", "response"):
            if getattr(self, name).shape != (count,):
                raise KeypointError(f"{count} keypoints need {name} of shape ({count},)")

    def __len__(self) -> int:
        return len(self.xy)

    def __getitem__(self, index: slice | NDArray[np.bool_] | NDArray[np.integer]) -> Keypoints:
        """The keypoints selected by a slice, a mask or an index array."""
        return Keypoints(*(getattr(self, field.name)[index] for field in fields(self)))

    def __add__(self, other: Keypoints) -> Keypoints:
        """These keypoints followed by the others."""
        names = [each.name for each in fields(self)]
        return Keypoints(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in names))

    @property
    def table(self) -> FloatArray:
        """Rows (x, y, size, angle)."""
        return np.concatenate([self.xy, self.size[:, None], self.angle[:, None]], axis=1)

    @classmethod
    def empty(cls) -> Keypoints:
        return cls.from_points(np.zeros((0, 2)))

    @classmethod
    def from_points(
        cls,
        xy: ArrayLike,
        size: ArrayLike | None = None,
        angle: ArrayLike | None = None,
        response: ArrayLike | None = None,
    ) -> Keypoints:
        """Keypoints from positions (N, 2); missing values are filled in.

        Without ``size`` every keypoint gets ``DEFAULT_SIZE`` (4 px), without ``angle`` ``DEFAULT_ANGLE`` (0, upright),
        without ``response`` 1. A single number applies to all keypoints.
        """
        points = np.asarray(xy, np.float32)
        if points.size == 0:
            points = points.reshape(0, 2)
        if points.ndim != 2 or points.shape[1] != 2:
            raise KeypointError(f"keypoint positions must have shape (N, 2), not {points.shape}")

        def filled(values: ArrayLike | None, default: float) -> FloatArray:
            given = np.asarray(default if values is None else values, np.float32)
            if given.ndim and given.shape != (len(points),):
                raise KeypointError(f"{len(points)} keypoints cannot have {given.size} sizes, angles or responses")
            return np.array(np.broadcast_to(given, len(points)))

        return cls(
            points,
            filled(size, DEFAULT_SIZE),
            normalise_degrees(filled(angle, DEFAULT_ANGLE)),
            filled(response, 1.0),
        )

    def check(self) -> None:
        """Raise ``KeypointError`` unless every keypoint can be described.

        Everything must be finite, sizes positive and at most ``MAX_SIZE``. Positions outside the image are valid.
        """
        finite = np.isfinite(self.xy).all(axis=1) & np.isfinite(self.angle)
        for good, what in (
            (finite, "a position or angle that is not finite"),
            ((self.size > 0) & (self.size <= MAX_SIZE), f"a size that is not between 0 and {MAX_SIZE:g} px"),
        ):
            if not good.all():
                bad = np.flatnonzero(~good)
                raise KeypointError(f"{len(bad)} of {len(self)} keypoints have {what} (the first is number {bad[0]})")

    def strongest(self, count: int) -> Keypoints:
        """At most ``count`` keypoints, strongest response first; equal responses keep their order."""
        order = np.argsort(-self.response, kind="stable")
        return self[order[:count]]

    def in_bands(self) -> NDArray[np.intp]:
        """Indices (N,) that sort keypoints from left to right in bands of the image: neighbours follow each other."""
        return np.lexsort((self.xy[:, 0], np.floor(self.xy[:, 1] / BAND)))

    def resized(self, factor_x: float, factor_y: float) -> Keypoints:
        """The same keypoints after the image is resized by these factors: (x + 0.5) * factor - 0.5."""
        if factor_x == factor_y == 1:
            return self  # bit for bit: adding and subtracting a half would round
        factor = np.array([factor_x, factor_y], np.float32)
        return Keypoints(
            resize_points(self.xy, factor),
            self.size * np.float32(np.sqrt(factor_x * factor_y)),
            self.angle,
            self.response,
        )

    @classmethod
    def from_opencv(cls, keypoints: Sequence[cv2.KeyPoint]) -> Keypoints:
        """From OpenCV. A keypoint without an angle (-1) is upright, one without a size (0) gets ``DEFAULT_SIZE``."""
        rows = np.array([(*k.pt, k.size, k.angle, k.response) for k in keypoints], np.float32).reshape(-1, 5)
        return cls.from_points(
            rows[:, :2],
            np.where(rows[:, 2] == 0, DEFAULT_SIZE, rows[:, 2]),
            np.where(rows[:, 3] == -1, DEFAULT_ANGLE, rows[:, 3]),
            rows[:, 4],
        )

    def to_opencv(self) -> list[cv2.KeyPoint]:
        columns = zip(self.xy.tolist(), self.size.tolist(), self.angle.tolist(), self.response.tolist(), strict=True)
        return [cv2.KeyPoint(x, y, size, angle, response) for (x, y), size, angle, response in columns]

    @classmethod
    def from_colmap(cls, rows: ArrayLike) -> Keypoints:
        """From COLMAP's rows (x, y), (x, y, scale, orientation) or (x, y, a11, a12, a21, a22).

        COLMAP counts pixels from the corner of the image, so 0.5 is subtracted; its scale is sigma, half of ``size``.
        An affine shape is reduced to the circle of the same area, with the direction of its x axis.
        """
        table = np.asarray(rows, np.float32)
        if table.ndim != 2 or table.shape[1] not in (2, 4, 6):
            raise KeypointError(f"COLMAP keypoints have 2, 4 or 6 columns, not shape {table.shape}")
        xy = table[:, :2] - np.float32(0.5)
        if table.shape[1] == 2:
            return cls.from_points(xy)
        if table.shape[1] == 4:
            return cls.from_points(xy, 2 * table[:, 2], np.degrees(table[:, 3]))
        sigma, angle = frame_circle(table[:, 2:].reshape(-1, 2, 2), np)
        return cls.from_points(xy, 2 * sigma, angle)

    def to_colmap(self) -> FloatArray:
        """Rows (x, y, scale, orientation) as COLMAP stores them: corner origin, sigma, radians."""
        columns = (self.xy + np.float32(0.5), self.size[:, None] / 2, np.radians(self.angle)[:, None])
        return np.concatenate(columns, axis=1, dtype=np.float32)

    @classmethod
    def from_lafs(cls, lafs: ArrayLike, sizes_per_scale: float = 1 / 6) -> Keypoints:
        """From kornia's local affine frames (N, 2, 3) = [A | xy].

        The scale of a LAF (``frame_circle``) is the half-width of a patch in pixels. How many keypoint sizes that is
        depends on its origin: kornia_moons uses a half-width of 6 sizes, hence the default 1/6.
        """
        frames = np.asarray(lafs, np.float32).reshape(-1, 2, 3)
        scale, angle = frame_circle(frames.astype(np.float64), np)
        return cls.from_points(frames[:, :, 2], scale * sizes_per_scale, angle)

    def to_lafs(self, sizes_per_scale: float = 1 / 6) -> FloatArray:
        """kornia's local affine frames (N, 2, 3): the result of ``laf_from_center_scale_ori(xy, scale, -angle)``."""
        scale, phi = self.size / np.float32(sizes_per_scale), np.radians(self.angle)
        cosine, sine = scale * np.cos(phi), scale * np.sin(phi)
        rows = np.stack([cosine, -sine, self.xy[:, 0], sine, cosine, self.xy[:, 1]], axis=1)
        return np.asarray(rows.reshape(-1, 2, 3), np.float32)


def frame_circle(frames: Any, xp: Any) -> tuple[Any, Any]:
    """Scale in pixels and angle in degrees (...) of frames (..., 2, 3) = [A | xy] or A alone; ``xp``: numpy or torch.

    Convention:
        scale: sqrt |det A|, that of the circle with the area of the frame's ellipse
        angle: direction of A's first column, the frame's x axis in the image: clockwise on the screen

    For rotated and scaled frames this is minus kornia's ``get_laf_orientation``. For affine ones it is not: kornia
    reads the first row, the direction before the affine shape was applied.
    """
    a11, a12, a21, a22 = frames[..., 0, 0], frames[..., 0, 1], frames[..., 1, 0], frames[..., 1, 1]
    return xp.sqrt(xp.abs(a11 * a22 - a12 * a21)), xp.rad2deg(xp.arctan2(a21, a11))


def normalise_degrees(angle: FloatArray) -> FloatArray:
    """Angles in [0, 360)."""
    wrapped = np.remainder(angle, np.float32(360))
    # A tiny negative angle rounds up to exactly 360 in float32.
    return np.asarray(np.where(wrapped == 360, np.float32(0), wrapped), np.float32)
