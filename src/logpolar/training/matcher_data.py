"""Views on the device, always replaced by new ones, and the pairs of them that batches are drawn from."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from logpolar.errors import LogpolarError
from logpolar.models.matcher_cards import TABLE_COLUMNS
from logpolar.training.matcher_options import MatcherBatch, MatcherConfig
from logpolar.training.matcher_plan import KINDS, ViewPlan
from logpolar.training.matcher_truth import Truth, find_truth, project, transfer
from logpolar.training.matcher_views import ViewMaker, Views

CHUNK = 32
"""Views made at a time."""


class ViewPool:
    """Views of a plan, some of which every step replaces: which, and by what, depends on the seed and the step alone.

    They are made in chunks, round after round in one random order.
    """

    def __init__(self, plan: ViewPlan, maker: ViewMaker, config: MatcherConfig, device: torch.device) -> None:
        self._maker, self._seed, self._device = maker, config.run.seed, device
        self._owners, self._new = torch.from_numpy(plan.owners).to(device), config.views.new
        self.views, count = Views.none(len(self._owners), config.views, device), len(self._owners)
        order = np.random.default_rng(self._seed).permutation(count)
        order = np.resize(order, -(-count // CHUNK) * CHUNK)  # chunks of one size: kernels are tuned to it
        self._chunks = torch.split(torch.from_numpy(order).to(device), CHUNK)
        self._made = 0  # chunks, of all rounds

    def reach(self, step: int) -> Views:
        """The views of a step, from those of an earlier one, or from none."""
        wanted = len(self._chunks) + step * self._new // CHUNK
        for number in range(max(self._made, wanted - len(self._chunks)), wanted):
            self._make(number)
        self._made = wanted
        return self.views

    def _make(self, number: int) -> None:
        chunk = self._chunks[number % len(self._chunks)]
        seed = int(np.random.default_rng((self._seed, number)).integers(2**62))
        generator = torch.Generator(self._device).manual_seed(seed)
        plain = torch.zeros(len(chunk), dtype=torch.bool, device=self._device)
        self.views.store(chunk, self._maker.make(self._owners[chunk], plain, generator))


class Batch(NamedTuple):
    """Stacked views of B pairs (2 B, N), and the truth."""

    descriptors: Tensor
    table: Tensor
    mask: Tensor
    truth: Truth
    xy: Tensor
    rows: Tensor  # places of the keypoints in their views


class PairSampler:
    """Draws pairs of views. Which of them step n draws depends on the seed and n alone."""

    def __init__(self, plan: ViewPlan, config: MatcherConfig) -> None:
        self._config, self._seed = config, config.run.seed
        self._counts = np.array(plan.views)
        self._starts = plan.starts
        data = config.data
        shares = dict(zip(KINDS, (data.scene_share, data.photo_share, data.aligned_share), strict=True))
        self._kinds = [
            (shares[kind], [np.array(pairs) for pairs in groups.values() if pairs])
            for kind, groups in plan.pairs.items()
            if shares[kind] > 0 and any(groups.values())
        ]
        if not self._kinds:
            raise LogpolarError("[data] the shares of all sources that have pairs are 0")

    def choose(self, step: int) -> tuple[NDArray[np.int64], int]:
        """Views (B, 2) of a step, and a seed for the device."""
        random = np.random.default_rng((self._seed, step))
        chances = np.array([share for share, _ in self._kinds])
        kinds = random.choice(len(chances), self._config.batch_at(step).pairs, p=chances / chances.sum())
        images = np.array([self._choose_pair(kind, random) for kind in kinds])
        images = np.where(random.random((len(images), 1)) < 0.5, images, images[:, ::-1])
        return self._starts[images] + self._choose_views(images, random), int(random.integers(2**62))

    def _choose_views(self, images: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
        """A view of each image (B, 2); of one image, two different views."""
        counts = self._counts[images]
        chosen: NDArray[np.int64] = (random.random(images.shape) * counts).astype(np.int64)
        others = (random.random(len(images)) * (counts[:, 0] - 1)).astype(np.int64)
        again = (chosen[:, 0] + 1 + others) % counts[:, 0]
        chosen[:, 1] = np.where(images[:, 0] == images[:, 1], again, chosen[:, 1])
        return chosen

    def _choose_pair(self, kind: int, random: np.random.Generator) -> NDArray[np.int64]:
        groups = self._kinds[kind][1]
        group = groups[random.integers(len(groups))]
        return np.asarray(group[random.integers(len(group))], np.int64)

    def draw(self, step: int, data: Views) -> Batch:
        """The batch of a step, from the views of that step."""
        views, seed = self.choose(step)
        device = data.xy.device
        generator = torch.Generator(device).manual_seed(seed)
        return gather(
            data,
            torch.from_numpy(views).to(device),
            self._config.batch_at(step),
            self._config.views.size,
            generator,
            self._config.run.compile and data.xy.is_cuda,
        )


@lru_cache(maxsize=1)
def _fused_truth() -> Callable[..., Truth]:
    return torch.compile(find_truth, dynamic=False)  # at most two shapes


def gather(
    data: Views,
    views: Tensor,
    options: MatcherBatch,
    side: int,
    generator: torch.Generator | None = None,
    fuse: bool = False,
) -> Batch:
    """Pairs of views (B, 2) of a side as a batch. With a generator half of the pairs have random keypoints; else the
    strongest.

    ``fuse`` compiles the search for the truth, which has many steps on large matrices.
    """
    stacked = views.T.reshape(-1)
    used = data.used[stacked]
    places = used.shape[1]
    order = torch.arange(places, device=used.device).expand(len(stacked), -1) / places
    if generator is not None:
        mixed = torch.rand(len(views), 1, generator=generator, device=used.device).repeat(2, 1) < 0.5
        order = torch.where(mixed, torch.rand(used.shape, generator=generator, device=used.device), order)
    count = min(options.keypoints, places)
    rows = (order + 2.0 * ~used).argsort(dim=1)[:, :count]
    mask = used.gather(1, rows)
    owner = stacked[:, None]
    xy, depth = data.xy[owner, rows], data.depth[owner, rows]
    table, descriptors = _table(xy, side), data.descriptors[owner, rows]
    if generator is not None and options.noise:
        descriptors = _noisy(descriptors, options.noise, generator)
    if generator is not None and options.moved:
        table = move_together(table, options.moved, generator)
    first, second = data.projection[stacked].chunk(2)
    xys, depths, masks, vectors = xy.chunk(2), depth.chunk(2), mask.chunk(2), descriptors.chunk(2)
    there = project(xys[0], depths[0], *transfer(first, second))
    back = project(xys[1], depths[1], *transfer(second, first))
    likeness = (vectors[0] @ vectors[1].transpose(1, 2)).float()
    find = _fused_truth() if fuse else find_truth
    truth = find((xys[0], xys[1]), there, back, (masks[0], masks[1]), likeness, options.positive, options.negative)
    return Batch(descriptors, table, mask, truth, xy, rows)


def _table(xy: Tensor, side: int) -> Tensor:
    """``keypoint_table`` of keypoints without sizes and angles in square views."""
    places = (xy - (side - 1) / 2) / (side / 2)
    return torch.nn.functional.pad(places, (0, TABLE_COLUMNS - 2))


def _noisy(descriptors: Tensor, most: float, generator: torch.Generator) -> Tensor:
    """Unit vectors, each moved by a random vector of a length up to ``most``."""
    shape, device = descriptors.shape, descriptors.device
    step = torch.nn.functional.normalize(torch.randn(shape, generator=generator, device=device), dim=-1)
    length = most * torch.rand((*shape[:-1], 1), generator=generator, device=device)
    return torch.nn.functional.normalize(descriptors.float() + length * step, dim=-1).to(descriptors.dtype)


def move_together(table: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Tables (V, N, 6), of a fraction of the views moved and scaled as a whole: nothing is learned of where things are.

    Views are not rotated: descriptors are of upright patches.
    """

    def uniform(most: float) -> Tensor:
        return most * (2 * torch.rand((len(table), 1), generator=generator, device=table.device) - 1)

    chosen = torch.rand((len(table), 1), generator=generator, device=table.device) < fraction
    scale, x, y = (torch.where(chosen, uniform(most), 0.0) for most in (0.4, 0.3, 0.3))
    moved = [scale.exp() * table[..., 0] + x, scale.exp() * table[..., 1] + y]
    return torch.cat([torch.stack(moved, dim=-1), table[..., 2:]], dim=-1)
