"""Sample positions of a patch around a keypoint.

The same code works on numpy arrays, torch tensors and nodes of an ONNX graph, so that the
look-ups of this package (``numpy_lookup``, ``torch_lookup``, ``onnx_lookup``) can only differ in how they interpolate.

Convention:
    lambda multiplies the keypoint's size, which is a diameter: the support radius is R = lambda / 2 * size pixels.
    A patch has ``rows`` x ``columns`` cells; cell (i, j) is taken at the middle of its interval, (i + 1/2) / rows.
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

Array: TypeAlias = Any
"""A numpy array, a torch tensor or an ``OnnxArray``."""


Outside: TypeAlias = Literal["reflect", "mean"]
"""What a sample beyond the image's edge sees: the image's reflection, or the mean of the patch's samples on the image.

Reflection invents image content; the mean, which the network's normalisation maps to 0, adds nothing.
"""


class SamplePoints(NamedTuple):
    """Positions to look up: ``x`` and ``y`` (N, rows, columns) in pixels, ``spacing`` (N, columns).

    ``spacing`` is the distance in pixels to the neighbouring samples, the larger of the two directions. It is what
    determines the necessary smoothing, and is the same for a whole column.
    """

    x: Array
    y: Array
    spacing: Array


class Lines(NamedTuple):
    """Rows of patches are straight lines in the image, and this is all that says where their samples lie.

    Convention:
        sample (i, j):  start_i + distance_j * direction_i

    ``start`` and ``direction`` are pairs (x, y) of arrays (N, rows), or (N, 1) where they are the same for all rows;
    ``distance`` and ``spacing``, which is that of ``SamplePoints``, are (N, columns).
    """

    start: tuple[Array, Array]
    direction: tuple[Array, Array]
    distance: Array
    spacing: Array

    def points(self) -> SamplePoints:
        x, y = (
            start[:, :, None] + self.distance[:, None, :] * direction[:, :, None]
            for start, direction in zip(self.start, self.direction, strict=True)
        )
        return SamplePoints(x, y, self.spacing)


@dataclass(frozen=True)
class LogPolar:
    """Log-polar pattern: rows are angles, columns are log radii (left is the centre).

    Convention:
        angle of row i:      phi_i = angle + 360 (i + 1/2) / rows                     degrees, clockwise
        radius of column j:  rho_j = r0 (R / r0) ^ ((j + 1/2) / columns)              pixels
        sample (i, j):       (x + rho_j cos phi_i, y + rho_j sin phi_i)

        The inner radius is r0 = (R / radius_ratio) ^ (1 - b) * (1 px) ^ b with b = ``inner_radius``:
        ``"covariant"`` (b = 0) ties it to the keypoint, so that an error of the keypoint's scale only shifts
        the columns; ``"paper"`` (b = 1) is one pixel whatever the keypoint; a number lies between the two.

    Rotating the image rotates ``angle`` with it and leaves the patch unchanged; an error of the angle rolls the rows.
    """

    lambda_: float = 96.0
    rows: int = 32
    columns: int = 32
    inner_radius: Literal["covariant", "paper"] | float = "covariant"
    radius_ratio: float = 128.0
    antialias: bool = True
    outside: Outside = "reflect"

    def __post_init__(self) -> None:
        _check(self)
        if not (_is_number(self.radius_ratio) and self.radius_ratio > 1):
            raise ValueError(f"radius_ratio must be above 1, not {self.radius_ratio}")
        if self.inner_radius not in ("covariant", "paper") and not (
            _is_number(self.inner_radius) and 0 <= float(self.inner_radius) <= 1
        ):
            raise ValueError(
                f"inner_radius must be 'covariant', 'paper' or a number from 0 to 1, not {self.inner_radius!r}"
            )

    @property
    def pixel_weight(self) -> float:
        """b of the docstring: 0 for ``"covariant"``, 1 for ``"paper"``."""
        if isinstance(self.inner_radius, str):
            return {"covariant": 0.0, "paper": 1.0}[self.inner_radius]
        return float(self.inner_radius)

    def locate(self, xy: Array, size: Array, angle: Array) -> SamplePoints:
        """Sample positions for keypoints ``xy`` (N, 2), ``size`` (N,), ``angle`` (N,)."""
        return self.lines(xy, size, angle).points()

    def lines(self, xy: Array, size: Array, angle: Array) -> Lines:
        """The same before it is multiplied out: rays from the keypoint."""
        xp = namespace(xy)
        outer = size[:, None] * (self.lambda_ / 2)
        log_inner = (1 - self.pixel_weight) * xp.log(outer / self.radius_ratio)
        log_span = xp.log(outer) - log_inner
        radius = xp.exp(log_inner + log_span * _middles(self.columns, xy))
        phi = angle[:, None] * (math.pi / 180) + 2 * math.pi * _middles(self.rows, xy)
        radius_step = xp.abs(log_span) / self.columns
        spacing = radius * xp.clip(radius_step, 2 * math.pi / self.rows, None)
        return Lines((xy[:, 0, None], xy[:, 1, None]), (xp.cos(phi), xp.sin(phi)), radius, spacing)


@dataclass(frozen=True)
class Cartesian:
    """Square grid: the usual patch, rotated by the keypoint's angle.

    Convention:
        u_j = (j + 1/2) / columns - 1/2,  v_i = (i + 1/2) / rows - 1/2,  side S = lambda * size pixels
        sample (i, j):  (x, y) + S * (u_j cos a - v_i sin a, u_j sin a + v_i cos a),  a = angle, clockwise
    """

    lambda_: float = 12.0
    rows: int = 32
    columns: int = 32
    antialias: bool = True
    outside: Outside = "reflect"

    def __post_init__(self) -> None:
        _check(self)

    def locate(self, xy: Array, size: Array, angle: Array) -> SamplePoints:
        """Sample positions for keypoints ``xy`` (N, 2), ``size`` (N,), ``angle`` (N,)."""
        return self.lines(xy, size, angle).points()

    def lines(self, xy: Array, size: Array, angle: Array) -> Lines:
        """The same before it is multiplied out: parallel lines, each from its middle."""
        xp = namespace(xy)
        side = (size * self.lambda_)[:, None]
        phi = angle[:, None] * (math.pi / 180)
        cosine, sine = side * xp.cos(phi), side * xp.sin(phi)
        u, v = (_middles(count, xy)[None, :] - 0.5 for count in (self.columns, self.rows))
        spacing = size[:, None] * (self.lambda_ / min(self.rows, self.columns))
        start = xy[:, 0, None] - v * sine, xy[:, 1, None] + v * cosine
        return Lines(start, (cosine, sine), u + 0 * side, spacing + 0 * u)


Pattern: TypeAlias = LogPolar | Cartesian

_NAMES: dict[str, type[LogPolar] | type[Cartesian]] = {"log-polar": LogPolar, "cartesian": Cartesian}


def pattern_to_dict(pattern: Pattern) -> dict[str, Any]:
    """The pattern as plain values, for a model's card."""
    name = next(name for name, kind in _NAMES.items() if type(pattern) is kind)
    values = asdict(pattern)
    return {"pattern": name, "lambda": values.pop("lambda_"), **values}


def pattern_from_dict(values: Mapping[str, Any]) -> Pattern:
    """The inverse of ``pattern_to_dict``; raises ``ValueError`` for anything that is not a pattern."""
    rest = {"lambda_" if key == "lambda" else key: value for key, value in dict(values).items()}
    name = rest.pop("pattern", None)
    if not isinstance(name, str) or name not in _NAMES:
        raise ValueError(f"unknown sampling pattern {name!r} (known: {', '.join(_NAMES)})")
    check_entries(rest, _NAMES[name], "sampling")
    return _NAMES[name](**rest)


def check_entries(values: Any, kind: type, what: str) -> None:
    """Raise ``ValueError`` unless ``values`` has exactly a dataclass's fields: a file leaves nothing to defaults."""
    if not isinstance(values, dict):
        raise ValueError(f"the {what} is not a table")
    expected = {each.name for each in fields(kind)}
    if values.keys() != expected:
        odd = ", ".join(sorted(values.keys() ^ expected))
        raise ValueError(f"the {what} has entries that are missing or unknown: {odd}")


def pyramid_level(spacing: Array) -> Array:
    """Level of the Gaussian pyramid whose pixels are as far apart as the samples: log2 of the spacing, at least 0."""
    xp = namespace(spacing)
    return xp.log2(xp.clip(spacing, 1.0, None))


def reflect(position: Array, length: Array | int) -> Array:
    """Fold positions into [0, length - 1] by reflection about the first and last pixel, however far away they are.

    The edge pixel is not repeated: ... 2 1 | 0 1 2 3 | 2 1 ...  An axis of one pixel maps everything to it.
    """
    xp = namespace(position)
    if isinstance(length, int):
        period: Any = max(2 * (length - 1), 1)
    else:
        period = xp.clip(2 * (length - 1), 1, None)
    folded = xp.abs(position - period * xp.round(position / period))
    return folded if not isinstance(length, int) or length > 1 else folded * 0


def within(position: Array, length: Array | int) -> Array:
    """Whether positions along an axis lie on the image, pixels of which reach half a pixel beyond their centres."""
    return (position >= -0.5) & (position <= length - 0.5)


def inside(points: SamplePoints, width: Array | int, height: Array | int) -> Array:
    """Validity mask (N, rows, columns): the samples that lie on the image itself, not on its reflection."""
    return within(points.x, width) & within(points.y, height)


def mean_inside(patches: Array, mask: Array) -> Array:
    """Mean (N, 1, 1) of the samples of each patch that lie on the image, or 0 if there are none."""
    total, count = (patches * mask).sum(axis=(1, 2), keepdims=True), mask.sum(axis=(1, 2), keepdims=True)
    return total / namespace(patches).clip(count, 1, None)


def fill_outside(patches: Array, mask: Array) -> Array:
    """Patches (N, rows, columns) whose samples off the image are the mean of those on it, or 0 if there are none."""
    return namespace(patches).where(mask, patches, mean_inside(patches, mask))


def namespace(array: Array) -> Any:
    """numpy for a numpy array, torch for a torch tensor; arrays of other kinds know their own."""
    if isinstance(array, np.ndarray):
        return np
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__()
    import torch

    return torch


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _middles(count: int, like: Array) -> Array:
    """(k + 1/2) / count for k = 0 ... count - 1, as an array of the same kind, type and device as ``like``."""
    if isinstance(like, np.ndarray):
        return ((np.arange(count) + 0.5) / count).astype(like.dtype)
    # Made on the device: a copy from the host could not be part of a recorded CUDA graph.
    return (namespace(like).arange(count, dtype=like.dtype, device=like.device) + 0.5) / count


def _check(pattern: Pattern) -> None:
    if not (_is_number(pattern.lambda_) and pattern.lambda_ > 0):
        raise ValueError(f"lambda must be a positive number, not {pattern.lambda_}")
    if not isinstance(pattern.antialias, bool):
        raise ValueError(f"antialias must be true or false, not {pattern.antialias!r}")
    if pattern.outside not in ("reflect", "mean"):
        raise ValueError(f"outside must be 'reflect' or 'mean', not {pattern.outside!r}")
    if not all(isinstance(side, int) and side >= 1 for side in (pattern.rows, pattern.columns)):
        raise ValueError(f"a patch needs at least one row and column, not {pattern.rows} x {pattern.columns}")
