"""Correspondence files as tensors on the device: images by pyramid, correspondences by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from logpolar.datasets.files import CorrespondenceFile
from logpolar.errors import LogpolarError
from logpolar.sampling.torch_lookup import TorchPyramids


@dataclass(frozen=True, eq=False)
class PairTable:
    """Image pairs of one source, with the rows of their correspondences; pairs of one group are next to each other.

    A group is a scene, or a photo that views were made of: its pairs may show the same things.
    """

    images: NDArray[np.int64]  # (P, 2)
    rows: NDArray[np.int64]  # (P, 2): first and end
    group: NDArray[np.int64]  # (P,), not decreasing

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class TrainingData:
    """All that batches are drawn from."""

    pyramids: TorchPyramids
    first: Tensor  # (C, 4): x, y, size, angle of the first keypoint of each correspondence
    second: Tensor  # (C, 4)
    residual: Tensor  # (C,): degrees, angle of the second keypoint less the true one
    sources: tuple[PairTable, ...]

    @property
    def pairs(self) -> int:
        return sum(map(len, self.sources))

    @property
    def correspondences(self) -> int:
        return int(sum(np.diff(source.rows, axis=1).sum() for source in self.sources))

    @property
    def groups(self) -> int:
        return sum(len(np.unique(source.group)) for source in self.sources)


@dataclass(frozen=True, eq=False)
class _FileData:
    """What is used of one file: numbers of images and rows count from 0 within it."""

    images: list[NDArray[np.uint8]]
    first: NDArray[np.float32]
    second: NDArray[np.float32]
    residual: NDArray[np.float32]
    pairs: PairTable


def load_training_data(
    sources: Sequence[Sequence[Path]],
    per_pair: int,
    device: torch.device | str,
    dtype: torch.dtype = torch.float16,
    progress: bool = False,
) -> TrainingData:
    """The training part of the files of each source; image pairs with fewer correspondences than ``per_pair`` are left
    out. Raises ``LogpolarError`` for a source that gives nothing."""
    images: list[NDArray[np.uint8]] = []
    columns: list[tuple[NDArray[np.float32], ...]] = []
    tables, rows, groups = [], 0, 0
    with tqdm(total=sum(map(len, sources)), desc="data", unit="file", disable=None if progress else True) as bar:
        for files in sources:
            parts = []
            for path in files:
                read = _read_file(path, per_pair)
                pairs = read.pairs
                if len(pairs):
                    parts.append(PairTable(pairs.images + len(images), pairs.rows + rows, pairs.group + groups))
                    images += read.images
                    columns.append((read.first, read.second, read.residual))
                    rows, groups = rows + len(read.first), groups + int(pairs.group[-1]) + 1
                bar.update()
            if not parts:
                named = ", ".join(map(str, files))
                raise LogpolarError(f"{named}: no image pair to train on has {per_pair} or more correspondences")
            tables.append(
                PairTable(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("images", "rows", "group")))
            )
    first, second, residual = (
        torch.from_numpy(np.concatenate(values)).to(device) for values in zip(*columns, strict=True)
    )
    pyramids = TorchPyramids([torch.from_numpy(image) / 255 for image in images], device, dtype)
    return TrainingData(pyramids, first, second, residual, tuple(tables))


def _read_file(path: Path, per_pair: int) -> _FileData:
    with CorrespondenceFile(path) as file:
        if not file.complete:
            raise LogpolarError(f"{path}: is not complete; let 'logpolar dataset' finish it")
        pair_rows = file.correspondence_rows
        wanted = [pair for pair in file.pairs("train") if np.diff(pair_rows[pair])[0] >= per_pair]
        groups = file.groups()
        wanted.sort(key=lambda pair: groups[pair])
        used = np.unique(file.pair_images[wanted])
        number = np.zeros(len(file.images), np.int64)
        number[used] = np.arange(len(used))
        keypoints = {image: file.read_keypoints(image) for image in used.tolist()}
        found = [
            file.read_correspondences(pair, (keypoints[first], keypoints[second]))
            for pair, (first, second) in zip(wanted, file.pair_images[wanted].tolist(), strict=True)
        ]
        images = [file.read_image(image) for image in used.tolist()]
    ends = np.cumsum([0, *map(len, found)])
    _, group = np.unique(groups[wanted], return_inverse=True)
    empty = np.zeros((0, 4), np.float32)
    return _FileData(
        images,
        np.concatenate([empty, *(each.first.table for each in found)]),
        np.concatenate([empty, *(each.second.table for each in found)]),
        np.concatenate([empty[:, 0], *(each.angle_residual for each in found)]),
        PairTable(number[file.pair_images[wanted]], np.stack([ends[:-1], ends[1:]], axis=1), group.astype(np.int64)),
    )
