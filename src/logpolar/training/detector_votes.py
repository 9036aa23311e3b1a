"""Votes: keypoints on which other detectors agree over two views of a photo, to start a detector from."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from logpolar.geometry.cameras import Matrix
from logpolar.geometry.homography import warp_points
from logpolar.geometry.radius_search import close_pairs, keep_apart
from logpolar.images import to_gray
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import FeatureDetector, SiftDetector
from logpolar.training.detector_crops import Crops
from logpolar.types import FloatArray

_RADIUS = 2.0
"""Pixels within which keypoints of two views, or of two detectors, are the same."""

_MOST = 1024
"""Votes kept of an image, those of most detectors first."""

Votes = tuple[FloatArray, FloatArray]
"""(N, 3) for each of two views: x, y and how many detectors found the place in both."""


def find_votes(first: NDArray[np.uint8], second: NDArray[np.uint8], homography: Matrix) -> Votes:
    """Places of two views that SIFT, ORB and the Shi-Tomasi corner detector find in both."""
    found: tuple[list[FloatArray], list[FloatArray]] = [], []
    for detect in (SiftDetector(_MOST), FeatureDetector(cv2.ORB.create(_MOST), _MOST), _shi_tomasi):
        here, there = (detect(to_gray(view)).xy for view in (first, second))
        rows, columns = close_pairs(warp_points(homography, here)[0], there.astype(np.float64), _RADIUS)
        for side, xy in zip(found, (here[np.unique(rows)], there[np.unique(columns)]), strict=True):
            side.append(xy)
    return _agree(found[0]), _agree(found[1])


def _shi_tomasi(gray: FloatArray) -> Keypoints:
    corners = cv2.goodFeaturesToTrack(gray, _MOST, 0.01, 4)
    return Keypoints.from_points(np.zeros((0, 2)) if corners is None else corners[:, 0])


def _agree(places: Sequence[FloatArray]) -> FloatArray:
    """Each place with the number of detectors that found it; of places close to each other that with the most."""
    xy = np.concatenate(places)
    votes = np.zeros(len(xy), np.float32)
    for one in places:
        rows, _ = close_pairs(xy, one, _RADIUS)
        votes[np.unique(rows)] += 1
    kept = keep_apart(np.argsort(-votes, kind="stable").tolist(), [xy], _RADIUS, _MOST)
    return np.concatenate([xy[kept], votes[kept, None]], axis=1).astype(np.float32)


class VoteMaps:
    """Votes of many images on a device."""

    def __init__(self, votes: Sequence[FloatArray], device: torch.device) -> None:
        """``votes``: (N, 3) of each original image."""
        table = np.full((len(votes), _MOST, 3), [-1e6, -1e6, 0], np.float32)
        for row, each in zip(table, votes, strict=True):
            row[: len(each)] = each[:_MOST]
        self._table = torch.from_numpy(table).to(device)

    def render(self, crops: Crops) -> Tensor:
        """(2B, side, side): votes at the pixels of crops; a single detector's do not count."""
        votes = self._table[crops.image % len(self._table)]
        place = ((votes[..., :2] - crops.offset[:, None]) / crops.scale[:, None, None]).round().long()
        inside = ((place >= 0) & (place < crops.side)).all(dim=-1) & (votes[..., 2] >= 2)
        index = torch.where(inside, place[..., 1] * crops.side + place[..., 0], crops.side**2)
        maps = torch.zeros(len(index), crops.side**2 + 1, device=votes.device)
        maps = maps.scatter_reduce(1, index, votes[..., 2], "amax")
        return maps[:, :-1].view(-1, crops.side, crops.side)
