"""Consensus of neighbouring matches: a correct match changes scale and rotation as the matches around it do.

A match is kept if at least ``_VOTES`` of its ``_NEIGHBOURS`` nearest matches, in the first image, agree with it on the
ratio of keypoint sizes and on the difference of angles. Incorrect matches agree with their neighbours by chance only.

Keypoints without size or angle (all the same in an image) say nothing of either. Two matches still imply a similarity,
by which the step from one to the other turns and grows; a match is then kept if ``_STEP_VOTES`` of those nearest
matches imply the same as one of the ``_REFERENCES`` nearest, itself included.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.keypoints import Keypoints
from logpolar.types import Array, FloatArray

_NEIGHBOURS = 20
_VOTES = 4
_STEP_VOTES, _REFERENCES = 6, 10
_OCTAVES = 0.6
"""Largest difference of log2 scale ratios that agree."""
_DEGREES = 35.0
"""Largest difference of rotations that agree."""
_TREE: dict[str, bool | int | float | str] = {"algorithm": 4}
"""FLANN's single kd-tree, whose search is exact and the same in every run."""


def agreeing(first: Keypoints, second: Keypoints) -> NDArray[np.bool_]:
    """Mask (N,) of matched keypoints, row by row, that agree with the matches around them."""
    if len(first) <= _VOTES:
        return np.zeros(len(first), np.bool_)
    around = _nearest_points(first.xy, _NEIGHBOURS)
    if have_shape(first, second):
        octaves, rotation = np.log2(second.size / first.size), (second.angle - first.angle) % 360
        agree = _same(octaves[around], octaves[:, None], rotation[around], rotation[:, None])
        return np.asarray(agree.sum(axis=1) >= _VOTES)
    octaves, rotation = _steps(first.xy, second.xy, around)
    votes = np.zeros(len(first), np.intp)
    for nearest in range(min(_REFERENCES, octaves.shape[1])):  # its similarity, and how many imply the same
        same = _same(octaves, octaves[:, nearest, None], rotation, rotation[:, nearest, None])
        votes = np.maximum(votes, same.sum(axis=1))
    return np.asarray(votes >= min(_STEP_VOTES, octaves.shape[1]))


def have_shape(*several: Keypoints) -> bool:
    """Whether keypoints have sizes and angles of their own, not one for all of an image."""
    values = [each for keypoints in several for each in (keypoints.size, keypoints.angle)]
    return all(bool((each != each[:1]).any()) for each in values)


def _same(octaves: Array, other_octaves: Array, rotation: Array, other_rotation: Array) -> NDArray[np.bool_]:
    """Whether changes of scale and rotation agree; NaN agrees with nothing. Rotations within one turn."""
    turn = np.abs(rotation - other_rotation)
    near = (turn <= _DEGREES) | (turn >= 360 - _DEGREES)
    return np.asarray((np.abs(octaves - other_octaves) <= _OCTAVES) & near)


def _steps(first: FloatArray, second: FloatArray, around: NDArray[np.int32]) -> tuple[Array, Array]:
    """Change of scale in octaves and of direction in degrees, (N, K), of the steps to neighbouring matches."""
    here, there = (np.ascontiguousarray(xy).view(np.complex64)[:, 0] for xy in (first, second))
    with np.errstate(divide="ignore", invalid="ignore"):
        change = (there[around] - there[:, None]) / (here[around] - here[:, None])
        octaves = np.log2(np.abs(change))
    octaves[~np.isfinite(octaves)] = np.nan  # matches at one place
    return octaves, np.angle(change, deg=True)


def _nearest_points(points: FloatArray, count: int) -> NDArray[np.int32]:
    """Rows (N, K) of the nearest other points of each point (N, 2), at most ``count``."""
    count = min(count, len(points) - 1)
    found, _ = cv2.flann.Index(points, _TREE).knnSearch(points, count + 1, params={"checks": -1})
    own = np.arange(len(points))[:, None]
    # Of points at one place, the tree may list another before the point itself, or leave it out.
    rest = np.argsort(found == own, axis=1, kind="stable")[:, :count]
    return np.asarray(np.take_along_axis(found, rest, axis=1), np.int32)
