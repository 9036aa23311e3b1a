"""Batches: images and keypoints live on the device, patches are cut there for every step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from logpolar.sampling.patterns import Pattern
from logpolar.training.augmentation import change_patches
from logpolar.training.data import PairTable, TrainingData
from logpolar.training.options import AugmentationOptions, BatchOptions


@dataclass(frozen=True, eq=False)
class Batch:
    """Corresponding patches (N, rows, columns), and which pairs of them are neither right nor wrong (N, N).

    ``shown`` (2 N, ...) is what a teacher sees of them, the first ones and then the second ones: cut at the same
    keypoints by its own pattern, with nothing changed in the patches.
    """

    first: Tensor
    second: Tensor
    excluded: Tensor
    shown: Tensor | None = None


class BatchSampler:
    """Draws batches of corresponding patches; always ``pairs`` * ``per_pair`` of them.

    Each source gives its share of the image pairs, each of another group while there are any left; a source with fewer
    groups than that gives several pairs of a group. ``fuse`` compiles the cutting of patches into one kernel.
    ``teacher`` is the pattern of the patches that a teacher is shown, if there is one.
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
        if augmentation.altered and self._data.copies:
            images = self._alter_second(images, generator)
        lottery = torch.rand(len(rows), self._most, generator=generator, device=device)
        present = torch.arange(self._most, device=device) < (rows[:, 1] - rows[:, 0])[:, None]
        chosen = rows[:, :1] + (lottery + present).topk(options.per_pair, dim=1).indices
        first, second = self._data.first[chosen], self._data.second[chosen]
        excluded = no_wrong_answers(first, second, group, options)
        if augmentation.aligned:
            second[..., 3] -= self._data.residual[chosen]
        noise = torch.randn(2, *chosen.shape, generator=generator, device=device)
        first[..., 2] *= torch.exp(augmentation.scale_jitter * noise[0])
        first[..., 3] += augmentation.angle_jitter * noise[1]
        if augmentation.fixed:
            rotation = (
                self._data.second[chosen][..., 3] - self._data.residual[chosen] - self._data.first[chosen][..., 3]
            )
            first, second = fix_shapes(first, second, rotation, self._data.log_zoom[chosen], augmentation, generator)
        keypoints = torch.cat([first.flatten(0, 1), second.flatten(0, 1)])
        image = images.T.flatten().repeat_interleave(options.per_pair)
        patches = self._cut(image, keypoints)
        shown = None
        if self._cut_for_teacher:
            shown = patches if self._cut_for_teacher is self._cut else self._cut_for_teacher(image, keypoints)
        patches = change_patches(patches, options.per_pair, augmentation, generator)
        halves = patches.chunk(2)
        return Batch(halves[0], halves[1], excluded, shown)

    def _alter_second(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Numbers of images (pairs, 2), some second ones replaced by copies under other conditions."""
        copies = self._data.copies
        lottery = torch.rand(2, len(images), generator=generator, device=images.device)
        copy = 1 + (lottery[1] * copies).long().clamp(max=copies - 1)
        offset = torch.where(
            lottery[0] < self.augmentation.altered, copy * (len(self._data.pyramids) // (copies + 1)), 0
        )
        return torch.stack([images[:, 0], images[:, 1] + offset], dim=1)


def fix_shapes(
    first: Tensor,
    second: Tensor,
    rotation: Tensor,
    log_zoom: Tensor,
    options: AugmentationOptions,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Keypoints (pairs, per_pair, 4) of which some image pairs have one size and angle in each image.

    So do those of detectors that find neither. ``rotation`` in degrees and ``log_zoom`` (pairs, per_pair) are those of
    the warp from the first image to the second. The two sizes of an image pair cover the same up to a factor that is
    drawn for it. Angles are upright, or both turned by the same; images turned by more than 30 degrees against each
    other are set upright first, as a camera's own sensor would do.
    """
    pairs, device = len(first), first.device
    lottery = torch.rand(4, pairs, generator=generator, device=device)
    noise = torch.randn(2, pairs, generator=generator, device=device)
    radians = torch.deg2rad(rotation)
    turned = torch.rad2deg(torch.atan2(radians.sin().mean(dim=1), radians.cos().mean(dim=1)))
    common = torch.where(lottery[0] < 0.5, 0.0, 360 * lottery[1])
    lean = torch.where(turned.abs() < _UPRIGHT, 0.0, turned) + options.angle_jitter * noise[0]
    middle = math.log(options.fixed_size) + _SIZE_SPREAD * noise[1]
    half = (log_zoom.mean(dim=1) + math.log(options.fixed_mismatch) * (2 * lottery[2] - 1)) / 2
    wanted = (lottery[3] < options.fixed)[:, None, None]
    fixed = []
    for keypoints, size, angle in ((first, middle - half, common), (second, middle + half, common + lean)):
        shape = torch.stack([size.exp(), angle], dim=1)[:, None].expand(-1, keypoints.shape[1], -1)
        fixed.append(torch.where(wanted, torch.cat([keypoints[..., :2], shape], dim=2), keypoints))
    return fixed[0], fixed[1]


_UPRIGHT = 30.0  # degrees by which hand-held photos lean at most
_SIZE_SPREAD = 0.35  # standard deviation of ln(size) between image pairs of fixed-size keypoints


def _cutter(data: TrainingData, pattern: Pattern, fuse: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """Cuts patches of images, by their numbers, at keypoints (N, 4)."""

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
        share = torch.rand(min(self.count, groups), generator=generator, device=device).repeat(rounds)[: self.count]
        size = self._sizes[group]
        # A group that is drawn from again gives a pair some way further on: never the same twice, if it has enough.
        turn = torch.arange(self.count, device=device) // groups
        number = (share * size).long().minimum(size - 1) + turn * (size // rounds).clamp(min=1)
        pair = self._starts[group] + number % size
        return self._images[pair], self._rows[pair], self._group[pair]


def no_wrong_answers(first: Tensor, second: Tensor, group: Tensor, options: BatchOptions) -> Tensor:
    """(N, N): entries that must not count as wrong answers, for keypoints (pairs, per_pair, 4) of image pairs.

    Within an image pair: what is near to the truth in either image. Between pairs of one group, which may show the
    same place: everything. The diagonal, which is right, is marked as well.
    """
    pairs, per_pair = first.shape[:2]
    excluded = (group[:, None] == group[None, :])[:, None, :, None].expand(-1, per_pair, -1, per_pair).clone()
    own = torch.arange(pairs, device=group.device)
    excluded[own, :, own, :] = _near(first, options) | _near(second, options)
    return excluded.reshape(pairs * per_pair, pairs * per_pair)


def _near(keypoints: Tensor, options: BatchOptions) -> Tensor:
    """(pairs, per_pair, per_pair): keypoints of one image nearer to each other than they should be told apart."""
    xy, size = keypoints[..., :2], keypoints[..., 2]
    limit = (options.near_sizes * torch.maximum(size[:, :, None], size[:, None, :])).clamp(min=options.near)
    distance = (xy[:, :, None] - xy[:, None, :]).square().sum(dim=3)
    return distance < limit.square()


def apportion(total: int, shares: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to the shares that add up to ``total`` (largest remainders)."""
    exact = np.asarray(shares, np.float64) * total / sum(shares)
    counts = np.floor(exact).astype(int)
    for index in np.argsort(counts - exact, kind="stable")[: total - counts.sum()]:
        counts[index] += 1
    return [int(count) for count in counts]
