"""Image pairs with known geometry, homographies or cameras and depth, as data to train a detector on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from logpolar.geometry.cameras import Camera, Matrix, Transfer
from logpolar.sampling.torch_lookup import TorchPyramids
from logpolar.training.conditions import alter_images
from logpolar.training.detector_crops import DetectorData, PairList
from logpolar.types import FloatArray

_DEPTH_SIDE = 256  # of the maps that are kept, in pixels on the longer side
_NO_VOTES = np.zeros((0, 3), np.float32)

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class SourceImages:
    """Images of one source and split, and their pairs."""

    images: list[Bytes]
    inverse_depths: list[NDArray[np.float16] | None]
    votes: list[FloatArray]
    pairs: PairList

    def __len__(self) -> int:
        return len(self.pairs.images)


def make_data(sources: Sequence[SourceImages], device: torch.device, copies: int = 0, seed: int = 0) -> DetectorData:
    """All sources on a device."""
    images, depths, lists = list[Bytes](), list[NDArray[np.float16] | None](), []
    for source in sources:
        lists.append(replace(source.pairs, images=source.pairs.images + len(images)))
        images += source.images
        depths += source.inverse_depths
    seen = [*images, *alter_images(images, copies, seed)]
    pyramids = TorchPyramids([torch.from_numpy(image) / 255 for image in seen], device, torch.float16)
    return DetectorData(pyramids, depths, lists, device, copies)


def from_homographies(
    pairs: Iterable[tuple[Bytes, Bytes, Matrix, int]], votes: Sequence[FloatArray] | None = None
) -> SourceImages:
    """Pairs of images with the homography from the first to the second, and the number of their group."""
    images, transfers, groups = list[Bytes](), [], []
    for first, second, homography, group in pairs:
        images += [first, second]
        ways = zip((first, second), (homography, np.asarray(np.linalg.inv(homography), np.float64)), strict=True)
        transfers.append([_homography_transfer(each, view.shape) for view, each in ways])
        groups.append(group)
    numbers = np.arange(len(images), dtype=np.int64).reshape(-1, 2)
    table = np.array(transfers, np.float32).reshape(-1, 2, 3, 4)
    listed = PairList(numbers, table, np.array(groups, np.int64), has_depth=False)
    return SourceImages(images, [None] * len(images), list(votes or [_NO_VOTES] * len(images)), listed)


def _homography_transfer(homography: Matrix, shape: tuple[int, ...]) -> Matrix:
    """(3, 4): the homography, with the sign by which the middle of the image is in front of the camera."""
    middle = homography[2] @ [(shape[1] - 1) / 2, (shape[0] - 1) / 2, 1]
    return np.concatenate([homography / middle, np.zeros((3, 1))], axis=1)


def from_cameras(
    images: list[Bytes], depths: list[FloatArray], cameras: list[Camera], pairs: NDArray[np.int64], groups: list[int]
) -> SourceImages:
    """Images with depth maps, of any resolution and 0 where unknown, and cameras; ``groups`` of the pairs."""
    known = [depth[depth > 0] for depth in depths]
    unit = float(np.median(np.concatenate(known))) if sum(map(len, known)) else 1.0  # half precision has a range
    inverse = [np.where(depth > 0, unit / np.maximum(depth, 1e-3 * unit), 0).astype(np.float16) for depth in depths]
    transfers = np.zeros((len(pairs), 2, 3, 4), np.float32)
    for row, (first, second) in zip(transfers, pairs.tolist(), strict=True):
        for way, (here, there) in enumerate(((first, second), (second, first))):
            found = Transfer.between(cameras[here], cameras[there])
            row[way] = np.concatenate([found.infinite, found.shift[:, None] / unit], axis=1)
    listed = PairList(pairs.reshape(-1, 2), transfers, np.array(groups, np.int64), has_depth=True)
    return SourceImages(images, list(inverse), [_NO_VOTES] * len(images), listed)


def join(parts: Sequence[SourceImages], has_depth: bool) -> SourceImages:
    """Sources of one kind as one; their groups stay apart."""
    images, depths, votes, lists = list[Bytes](), list[NDArray[np.float16] | None](), list[FloatArray](), []
    groups = 0
    for part in parts:
        lists.append((part.pairs.images + len(images), part.pairs.transfers, part.pairs.groups + groups))
        groups += int(part.pairs.groups.max(initial=-1)) + 1
        images, depths, votes = images + part.images, depths + part.inverse_depths, votes + part.votes
    empty = np.zeros((0, 2), np.int64), np.zeros((0, 2, 3, 4), np.float32), np.zeros(0, np.int64)
    numbers, transfers, names = (np.concatenate(each) for each in zip(empty, *lists, strict=True))
    return SourceImages(images, depths, votes, PairList(numbers, transfers, names, has_depth))


def reduce_depth(depth: FloatArray) -> FloatArray:
    """A depth map of at most 256 pixels on the longer side: nearest values, since means across edges are nowhere."""
    factor = _DEPTH_SIDE / max(depth.shape)
    if factor >= 1:
        return depth
    size = max(round(depth.shape[1] * factor), 1), max(round(depth.shape[0] * factor), 1)
    return np.asarray(cv2.resize(depth, size, interpolation=cv2.INTER_NEAREST_EXACT), np.float32)
