"""Consensus of neighbouring matches: a correct match changes scale and rotation as the matches around it do.

A match is kept if at least ``_VOTES`` of its ``_NEIGHBOURS`` nearest matches, in the first image, agree with it on the
ratio of keypoint sizes and on the difference of angles. Incorrect matches agree with their neighbours by chance only.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.keypoints import Keypoints
from logpolar.types import FloatArray

_NEIGHBOURS = 20
_VOTES = 4
_OCTAVES = 0.6
"""Largest difference of log2 scale ratios that agree."""
_DEGREES = 35.0
"""Largest difference of rotations that agree."""
_TREE: dict[str, bool | int | float | str] = {
    "algorithm": 4
}  # FLANN's single kd-tree, whose search is exact and the same in every run


def agreeing(first: Keypoints, second: Keypoints) -> NDArray[np.bool_]:
    """Mask (N,) of matched keypoints, row by row, that agree with the matches around them."""
    count = len(first)
    if count <= _VOTES:
        return np.zeros(count, np.bool_)
    around = _nearest_points(first.xy, min(_NEIGHBOURS, count - 1))
    octaves, rotation = np.log2(second.size / first.size), second.angle - first.angle
    scale_gap = np.abs(octaves[around] - octaves[:, None])
    turn = np.abs(rotation[around] - rotation[:, None]) % 360
    agree = (scale_gap <= _OCTAVES) & (np.minimum(turn, 360 - turn) <= _DEGREES)
    return np.asarray(agree.sum(axis=1) >= _VOTES)


def _nearest_points(points: FloatArray, count: int) -> NDArray[np.int32]:
    """Rows (N, count) of the nearest other points of each point (N, 2)."""
    found, _ = cv2.flann.Index(points, _TREE).knnSearch(points, count + 1, params={"checks": -1})
    own = np.arange(len(points))[:, None]
    # Of points at one place, the tree may list another before the point itself, or leave it out.
    rest = np.argsort(found == own, axis=1, kind="stable")[:, :count]
    return np.asarray(np.take_along_axis(found, rest, axis=1), np.int32)
