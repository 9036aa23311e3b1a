"""Correspondence files as tensors on the device: images as pyramids, correspondences as rows."""

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
from logpolar.training.conditions import alter_images

_MIN_ZOOM = 1e-3  # for warps that rounding in the file made singular


@dataclass(frozen=True, eq=False)
class PairTable:
    """Image pairs of one source, with the rows of their correspondences; pairs of one group are next to each other.

    A group is a scene, or a photo that was warped: its pairs may show the same places, across sources too.
    """

    images: NDArray[np.int64]  # (P, 2)
    rows: NDArray[np.int64]  # (P, 2): first and end
    group: NDArray[np.int64]  # (P,), not decreasing

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class TrainingData:
    """What batches are drawn from."""

    pyramids: TorchPyramids
    first: Tensor  # (C, 4): x, y, size, angle of the first keypoint of each correspondence
    second: Tensor  # (C, 4)
    residual: Tensor  # (C,): degrees, angle of the second keypoint less the true one
    log_zoom: Tensor  # (C,): ln(scale of the second image / scale of the first)
    sources: tuple[PairTable, ...]
    copies: int = 0  # altered ones of each of the N images: copy c of image i is image i + c * N

    @property
    def pairs(self) -> int:
        return sum(map(len, self.sources))

    @property
    def correspondences(self) -> int:
        return int(sum(np.diff(source.rows, axis=1).sum() for source in self.sources))

    @property
    def groups(self) -> int:
        return len(np.unique(np.concatenate([source.group for source in self.sources])))


@dataclass(frozen=True, eq=False)
class _FileData:
    """The training split of one file; images and rows are numbered within the file."""

    images: list[NDArray[np.uint8]]
    first: NDArray[np.float32]
    second: NDArray[np.float32]
    residual: NDArray[np.float32]
    log_zoom: NDArray[np.float32]
    pair_images: NDArray[np.int64]
    rows: NDArray[np.int64]
    groups: list[str]


def load_training_data(
    sources: Sequence[Sequence[Path]],
    per_pair: int,
    device: torch.device | str,
    dtype: torch.dtype = torch.float16,
    progress: bool = False,
    copies: int = 0,
    seed: int = 0,
) -> TrainingData:
    """The training split of the files of each source, without image pairs that have fewer correspondences than
    ``per_pair``. Raises ``LogpolarError`` for a source that has none. ``seed`` determines the altered ``copies``."""
    images: list[NDArray[np.uint8]] = []
    columns: list[tuple[NDArray[np.float32], ...]] = []
    tables, rows, groups = [], 0, dict[str, int]()
    with tqdm(total=sum(map(len, sources)), desc="data", unit="file", disable=None if progress else True) as bar:
        for files in sources:
            parts = []
            for path in files:
                read = _read_file(path, per_pair)
                if read.groups:
                    numbers = np.array([groups.setdefault(name, len(groups)) for name in read.groups], np.int64)
                    parts.append(PairTable(read.pair_images + len(images), read.rows + rows, numbers))
                    images += read.images
                    columns.append((read.first, read.second, read.residual, read.log_zoom))
                    rows += len(read.first)
                bar.update()
            if not parts:
                named = ", ".join(map(str, files))
                raise LogpolarError(f"{named}: no image pair to train on has {per_pair} or more correspondences")
            tables.append(_join(parts))
    first, second, residual, log_zoom = (
        torch.from_numpy(np.concatenate(values)).to(device) for values in zip(*columns, strict=True)
    )
    images += alter_images(images, copies, seed)
    pyramids = TorchPyramids([torch.from_numpy(image) / 255 for image in images], device, dtype)
    return TrainingData(pyramids, first, second, residual, log_zoom, tuple(tables), copies)


def _join(parts: Sequence[PairTable]) -> PairTable:
    """One table, sorted by group."""
    images, rows, group = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("images", "rows", "group")
    )
    order = np.argsort(group, kind="stable")
    return PairTable(images[order], rows[order], group[order])


def _read_file(path: Path, per_pair: int) -> _FileData:
    with CorrespondenceFile(path) as file:
        if not file.complete:
            raise LogpolarError(f"{path}: incomplete; rerun 'logpolar dataset' to finish it")
        pair_rows = file.correspondence_rows
        wanted = [pair for pair in file.pairs("train") if np.diff(pair_rows[pair])[0] >= per_pair]
        groups = file.groups()
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
    empty = np.zeros((0, 4), np.float32)
    return _FileData(
        images,
        np.concatenate([empty, *(each.first.table for each in found)]),
        np.concatenate([empty, *(each.second.table for each in found)]),
        np.concatenate([empty[:, 0], *(each.angle_residual for each in found)]),
        np.concatenate([empty[:, 0], *(np.log(np.maximum(each.zoom, _MIN_ZOOM)) for each in found)]),
        number[file.pair_images[wanted]],
        np.stack([ends[:-1], ends[1:]], axis=1),
        [groups[pair] for pair in wanted],
    )
