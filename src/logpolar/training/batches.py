"""Batches: images and keypoints live on the device, patches are cut there for every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from logpolar.datasets.correspondences import ImagePair
from logpolar.keypoints import Keypoints
from logpolar.sampling.patterns import Pattern
from logpolar.sampling.torch_lookup import TorchPyramids


@dataclass(frozen=True)
class BatchOptions:
    pairs: int = 16  # image pairs in a batch
    per_pair: int = 64  # correspondences from each
    angle_jitter: float = 10.0  # standard deviation in degrees, first patch only
    scale_jitter: float = 0.4  # standard deviation of ln(size), first patch only


class PairSampler:
    """Draws batches of corresponding patches from image pairs; always pairs * per_pair of them."""

    def __init__(
        self,
        pairs: Sequence[ImagePair],
        pattern: Pattern,
        options: BatchOptions,
        device: torch.device | str,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        usable = [pair for pair in pairs if len(pair.correspondences) >= options.per_pair]
        if len(usable) < options.pairs:
            enough = f"{options.per_pair} or more correspondences"
            raise ValueError(f"{len(usable)} image pairs have {enough}, but a batch needs {options.pairs}")
        self.pattern, self.options = pattern, options
        images = [torch.from_numpy(view) / 255 for pair in usable for view in (pair.first, pair.second)]
        self._pyramids = TorchPyramids(images, device, dtype)
        self._first = _table([pair.correspondences.first for pair in usable], device)
        self._second = _table([pair.correspondences.second for pair in usable], device)
        counts = torch.tensor([len(pair.correspondences) for pair in usable], device=device)
        self._present = torch.arange(self._first.shape[1], device=device) < counts[:, None]

    def __len__(self) -> int:
        return len(self._first)

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Patches of the first and of the second views, (pairs * per_pair, rows, columns) each."""
        options, device = self.options, self._first.device
        pair = torch.randperm(len(self), generator=generator, device=device)[: options.pairs]
        lottery = torch.rand(self._present[pair].shape, generator=generator, device=device)
        chosen = (lottery + self._present[pair]).topk(options.per_pair, dim=1).indices
        first = self._first[pair[:, None], chosen].flatten(0, 1)
        second = self._second[pair[:, None], chosen].flatten(0, 1)
        noise = torch.randn(2, len(first), generator=generator, device=device)
        first[:, 2] *= torch.exp(options.scale_jitter * noise[0])
        first[:, 3] += options.angle_jitter * noise[1]
        pair = pair.repeat_interleave(options.per_pair)
        return self._patches(2 * pair, first), self._patches(2 * pair + 1, second)

    def _patches(self, image: Tensor, keypoints: Tensor) -> Tensor:
        return self._pyramids.sample(image, keypoints[:, :2], keypoints[:, 2], keypoints[:, 3], self.pattern)


def _table(keypoints: Sequence[Keypoints], device: torch.device | str) -> Tensor:
    """(pairs, most keypoints, 4): x, y, size, angle; rows past the end of a pair's keypoints are zero."""
    table = torch.zeros(len(keypoints), max(map(len, keypoints)), 4)
    for row, points in zip(table, keypoints, strict=True):
        row[: len(points)] = torch.from_numpy(points.table)
    return table.to(device)
