"""Batches: images and keypoints stay on the device, where patches are sampled for every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from logpolar.sampling.patterns import Pattern
from logpolar.training.data import PairTable, TrainingData
from logpolar.training.options import AugmentationOptions, BatchOptions

_UPRIGHT = 30.0  # degrees by which hand-held photos deviate from upright at most
_SIZE_SPREAD = 0.35  # standard deviation of ln(size) of fixed-size keypoints over image pairs


@dataclass(frozen=True, eq=False)
class Batch:
    """Corresponding patches (N, rows, columns), and which pairs of them are neither positive nor negative (N, N).

    ``shown`` (2 N, ...) are the teacher's patches, the first ones and then the second ones: sampled at the same
    keypoints with its own pattern.
    """

    first: Tensor
    second: Tensor
    excluded: Tensor
    shown: Tensor | None = None


class BatchSampler:
    """Draws batches of corresponding patches; always ``pairs`` * ``per_pair`` of them.

    Each source contributes image pairs in proportion to its share, from distinct groups as far as it has them.
    ``fuse`` compiles patch sampling into one kernel. ``teacher`` is the pattern of the teacher's patches, if any.
    """

    def __init__(
        self,
        data: TrainingData,
        shares: Sequence[float],
        pattern: Pattern,
        options: BatchOptions,
        augmentation: AugmentationOptions,
        fuse: bool = False,
        teacher: Pattern | None = None,
    ) -> None:
        self.options, self.augmentation, self._data = options, augmentation, data
        if augmentation.altered and not data.copies:
            raise ValueError("the data have no altered copies")
        device = data.first.device
        counts = apportion(options.pairs, shares)
        self._sources = [
            _Source(table, count, device) for table, count in zip(data.sources, counts, strict=True) if count
        ]
        self._most = max(source.most for source in self._sources)
        self._cut = _cutter(data, pattern, fuse)
        self._cut_for_teacher = None
        if teacher is not None:
            self._cut_for_teacher = self._cut if teacher == pattern else _cutter(data, teacher, fuse)

    def draw(self, generator: torch.Generator) -> Batch:
        options, augmentation, device = self.options, self.augmentation, self._data.first.device
        drawn = [source.draw(generator) for source in self._sources]
        images, rows, group = (torch.cat(values) for values in zip(*drawn, strict=True))
        if augmentation.altered:
            images = self._alter_second(images, generator)
        lottery = torch.rand(len(rows), self._most, generator=generator, device=device)
        present = torch.arange(self._most, device=device) < (rows[:, 1] - rows[:, 0])[:, None]
        chosen = rows[:, :1] + (lottery + present).topk(options.per_pair, dim=1).indices
        first, second, residual = self._data.first[chosen], self._data.second[chosen], self._data.residual[chosen]
        rotation = second[..., 3] - residual - first[..., 3]
        excluded = excluded_negatives(first, second, group, options)
        if augmentation.aligned:
            second[..., 3] -= residual
        noise = torch.randn(2, *chosen.shape, generator=generator, device=device)
        first[..., 2] *= torch.exp(augmentation.scale_jitter * noise[0])
        first[..., 3] += augmentation.angle_jitter * noise[1]
        if augmentation.fixed:
            first, second = fix_shapes(first, second, rotation, self._data.log_zoom[chosen], augmentation, generator)
        keypoints = torch.cat([first.flatten(0, 1), second.flatten(0, 1)])
        image = images.T.flatten().repeat_interleave(options.per_pair)
        patches = self._cut(image, keypoints)
        shown = None
        if self._cut_for_teacher:
            shown = patches if self._cut_for_teacher is self._cut else self._cut_for_teacher(image, keypoints)
        halves = patches.chunk(2)
        return Batch(halves[0], halves[1], excluded, shown)

    def _alter_second(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Images (pairs, 2), by number, with some second ones replaced by their altered copies."""
        copies = self._data.copies
        originals = len(self._data.pyramids) // (copies + 1)
        lottery, choice = torch.rand(2, len(images), generator=generator, device=images.device)
        copy = 1 + (choice * copies).long().clamp(max=copies - 1)
        offset = torch.where(lottery < self.augmentation.altered, copy * originals, 0)
        return torch.stack([images[:, 0], images[:, 1] + offset], dim=1)


def _cutter(data: TrainingData, pattern: Pattern, fuse: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Samples patches of images, given by number, at keypoints (N, 4)."""

    def cut(image: Tensor, keypoints: Tensor) -> Tensor:
        return data.pyramids.sample(image, keypoints[:, :2], keypoints[:, 2], keypoints[:, 3], pattern)

    return torch.compile(cut) if fuse else cut


class _Source:
    """Image pairs of one source on the device."""

    def __init__(self, table: PairTable, count: int, device: torch.device) -> None:
        _, starts, sizes = np.unique(table.group, return_index=True, return_counts=True)
        self.count = count
        self.most = int(np.diff(table.rows, axis=1).max())
        self._images, self._rows, self._group, self._starts, self._sizes = (
            torch.from_numpy(values).to(device) for values in (table.images, table.rows, table.group, starts, sizes)
        )

    def draw(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Images (count, 2), rows (count, 2) and groups (count,) of pairs drawn at random."""
        device, groups = self._starts.device, len(self._starts)
        rounds = -(-self.count // groups)
        order = torch.rand(groups, generator=generator, device=device).argsort()
        group = order.repeat(rounds)[: self.count]
        start = torch.rand(min(self.count, groups), generator=generator, device=device).repeat(rounds)[: self.count]
        size = self._sizes[group]
        # A group drawn from again yields a pair some way further on: never the same twice, if it has enough.
        repeat = torch.arange(self.count, device=device) // groups
        number = (start * size).long().minimum(size - 1) + repeat * (size // rounds).clamp(min=1)
        pair = self._starts[group] + number % size
        return self._images[pair], self._rows[pair], self._group[pair]


def excluded_negatives(first: Tensor, second: Tensor, group: Tensor, options: BatchOptions) -> Tensor:
    """(N, N): entries that must not count as negatives, for keypoints (pairs, per_pair, 4) of image pairs.

    Within an image pair: keypoints close to the true one in either image. Between pairs of one group, which may show
    the same place: everything. The diagonal, the positives, is marked as well.
    """
    pairs, per_pair = first.shape[:2]
    excluded = (group[:, None] == group[None, :])[:, None, :, None].expand(-1, per_pair, -1, per_pair).clone()
    own = torch.arange(pairs, device=group.device)
    excluded[own, :, own, :] = _near(first, options) | _near(second, options)
    return excluded.reshape(pairs * per_pair, pairs * per_pair)


def _near(keypoints: Tensor, options: BatchOptions) -> Tensor:
    """(pairs, per_pair, per_pair): keypoints of one image too close to each other to be negatives."""
    xy, size = keypoints[..., :2], keypoints[..., 2]
    limit = (options.near_sizes * torch.maximum(size[:, :, None], size[:, None, :])).clamp(min=options.near)
    distance = (xy[:, :, None] - xy[:, None, :]).square().sum(dim=3)
    return distance < limit.square()


def fix_shapes(
    first: Tensor,
    second: Tensor,
    rotation: Tensor,
    log_zoom: Tensor,
    options: AugmentationOptions,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Keypoints (pairs, per_pair, 4), with one size and angle per image for a random ``fixed`` of the image pairs.

    They imitate detectors without scale and orientation. ``rotation`` in degrees and ``log_zoom`` (pairs, per_pair)
    are of the warp from the first image to the second. The two sizes agree with the warp up to a random factor. The
    angles are 0, or one random angle, in both images; a rotation between the images counts only above 30 degrees,
    beyond which viewers would have rotated one of them.
    """
    upright, angle, mismatch, lottery = torch.rand(4, len(first), generator=generator, device=first.device)
    noise = torch.randn(2, len(first), generator=generator, device=first.device)
    radians = torch.deg2rad(rotation)
    between = torch.rad2deg(torch.atan2(radians.sin().mean(dim=1), radians.cos().mean(dim=1)))
    between = torch.where(between.abs() < _UPRIGHT, 0.0, between) + options.angle_jitter * noise[0]
    angle = torch.where(upright < 0.5, 0.0, 360 * angle)
    log_size = math.log(options.fixed_size) + _SIZE_SPREAD * noise[1]
    half = (log_zoom.mean(dim=1) + math.log(options.fixed_mismatch) * (2 * mismatch - 1)) / 2
    wanted = (lottery < options.fixed)[:, None, None]

    def fixed(keypoints: Tensor, log_size: Tensor, angle: Tensor) -> Tensor:
        shape = torch.stack([log_size.exp(), angle], dim=1)[:, None].expand(-1, keypoints.shape[1], -1)
        return torch.where(wanted, torch.cat([keypoints[..., :2], shape], dim=2), keypoints)

    return fixed(first, log_size - half, angle), fixed(second, log_size + half, angle + between)


def apportion(total: int, shares: Sequence[float]) -> list[int]:
    """Integers in proportion to the shares that sum to ``total`` (largest remainders)."""
    exact = np.asarray(shares, np.float64) * total / sum(shares)
    counts = np.floor(exact).astype(int)
    for index in np.argsort(counts - exact, kind="stable")[: total - counts.sum()]:
        counts[index] += 1
    return [int(count) for count in counts]
