"""Views described once, on the device, and the pairs of them that batches are drawn from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from logpolar.errors import LogpolarError
from logpolar.models import Model
from logpolar.models.matcher_cards import TABLE_COLUMNS
from logpolar.models.runtimes.torch_device import TorchDescriber, network_on
from logpolar.sampling.torch_lookup import TorchPyramids
from logpolar.settings import DESCRIPTOR_SIZE
from logpolar.training.matcher_options import MatcherBatch, MatcherConfig, ViewsOptions
from logpolar.training.matcher_plan import KINDS, ViewPlan
from logpolar.training.matcher_truth import Truth, find_truth, project, transfer
from logpolar.training.matcher_views import VARIANTS, View

CHUNK = 32
"""Views described at a time."""


@dataclass(frozen=True, eq=False)
class DescribedViews:
    """V views with K places for keypoints each, on the device; those without a keypoint are not ``used``.

    Views can be replaced, see ``ViewStore``.
    """

    xy: Tensor  # (V, K, 2)
    depth: Tensor  # (V, K)
    projection: Tensor  # (V, 3, 4) float64
    used: Tensor  # (V, variants, K)
    table: Tensor  # (V, variants, K, 6)
    descriptors: Tensor  # (V, variants, K, 128) float16

    def __len__(self) -> int:
        return len(self.xy)


class ViewStore:
    """Describes views in the given variants, and stores them by number."""

    def __init__(
        self, count: int, options: ViewsOptions, wanted: Sequence[int], model: Model, device: torch.device
    ) -> None:
        self.views = _no_views(count, options, device)
        half = device.type == "cuda"
        self._describer = TorchDescriber(network_on(model, device, half), model.sampling, device, fuse=half)
        self._options, self._wanted, self._device = options, wanted, device

    def fill(self, views: Iterable[tuple[int, View]]) -> None:
        """Store numbered views, some at a time, as they come."""
        left = iter(views)
        while chunk := list(islice(left, CHUNK)):
            self.store(chunk)

    def store(self, numbered: Sequence[tuple[int, View]]) -> None:
        """Store views at their numbers, in place of what was there."""
        made, device, views = self.views, self._device, [view for _, view in numbered]
        numbers = torch.tensor([number for number, _ in numbered], device=device)
        # Put together here and sent in few pieces: at each one the thread that receives views may take its turn first.
        new = _no_views(len(views), self._options, torch.device("cpu"))
        rows, tables = [], []
        for row, view in enumerate(views):
            count = len(view.keypoints)
            new.projection[row] = torch.from_numpy(view.projection)
            new.xy[row, :count] = torch.from_numpy(view.keypoints.xy)
            new.depth[row, :count] = torch.from_numpy(view.depth)
            for variant in self._wanted:
                keypoints, table, used = view.table(VARIANTS[variant], self._options.fixed_size)
                new.table[row, variant, :count] = torch.from_numpy(table)
                new.used[row, variant, :count] = torch.from_numpy(used)
                tables.append(keypoints.table)
                rows.append(np.stack([np.full(count, row), np.full(count, variant), np.arange(count)], axis=1))
        for field in ("xy", "depth", "projection", "used", "table"):
            getattr(made, field)[numbers] = getattr(new, field).to(device)
        pyramids = TorchPyramids([torch.from_numpy(view.pixels) / 255 for view in views], device, torch.float16)
        where = torch.from_numpy(np.concatenate(rows)).to(device)
        with torch.inference_mode():
            given = torch.from_numpy(np.concatenate(tables)).to(device)
            found = self._describer.describe_on_device(pyramids, where[:, 0], given)
        made.descriptors[numbers[where[:, 0]], where[:, 1], where[:, 2]] = found.to(made.descriptors.dtype)


def _no_views(count: int, options: ViewsOptions, device: torch.device) -> DescribedViews:
    places, variants = options.keypoints, len(VARIANTS)
    return DescribedViews(
        torch.zeros(count, places, 2, device=device),
        torch.full((count, places), float("nan"), device=device),
        torch.zeros(count, 3, 4, dtype=torch.float64, device=device),
        torch.zeros(count, variants, places, dtype=torch.bool, device=device),
        torch.zeros(count, variants, places, TABLE_COLUMNS, device=device),
        torch.zeros(count, variants, places, DESCRIPTOR_SIZE, dtype=torch.float16, device=device),
    )


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

    def __init__(self, plan: ViewPlan, views: DescribedViews, config: MatcherConfig) -> None:
        self._views, self._config, self._seed = views, config, config.run.seed
        self._fuse = config.run.compile and views.xy.is_cuda
        self._counts, self._detectors = np.array(plan.views), len(config.views.detectors)
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

    def choose(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
        """Views (B, 2) and variants (B,) of a step, and a seed for the device."""
        random = np.random.default_rng((self._seed, step))
        chances = np.array([share for share, _ in self._kinds])
        batch = self._config.batch_at(step)
        kinds = random.choice(len(chances), batch.pairs, p=chances / chances.sum())
        images = np.array([self._choose_pair(kind, random) for kind in kinds])
        images = np.where(random.random((len(images), 1)) < 0.5, images, images[:, ::-1])
        chosen = self._choose_views(images, random)
        lottery, upright, fixed = random.random(len(images)), batch.upright, batch.fixed
        variants = np.where(lottery < fixed, 2, np.where(lottery < fixed + upright, 1, 0))
        return self._starts[images] + chosen, variants.astype(np.int64), int(random.integers(2**62))

    def _choose_views(self, images: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
        """A view of each image (B, 2), both by the same detector; of one image, two different views."""
        kinds = self._detectors
        kind = random.integers(kinds, size=len(images))
        counts = (self._counts[images] - kind[:, None] + kinds - 1) // kinds  # of views by that detector
        chosen = (random.random(images.shape) * counts).astype(np.int64)
        others = (random.random(len(images)) * (counts[:, 0] - 1)).astype(np.int64)
        again = (chosen[:, 0] + 1 + others) % counts[:, 0]
        chosen[:, 1] = np.where(images[:, 0] == images[:, 1], again, chosen[:, 1])
        return kind[:, None] + kinds * chosen

    def _choose_pair(self, kind: int, random: np.random.Generator) -> NDArray[np.int64]:
        groups = self._kinds[kind][1]
        group = groups[random.integers(len(groups))]
        return np.asarray(group[random.integers(len(group))], np.int64)

    def draw(self, step: int) -> Batch:
        """The batch of a step."""
        views, variants, seed = self.choose(step)
        device = self._views.xy.device
        generator = torch.Generator(device).manual_seed(seed)
        return gather(
            self._views,
            torch.from_numpy(views).to(device),
            torch.from_numpy(variants).to(device),
            self._config.batch_at(step),
            generator,
            self._fuse,
        )


@lru_cache(maxsize=1)
def _fused_truth() -> Callable[..., Truth]:
    return torch.compile(find_truth, dynamic=False)  # at most two shapes


def gather(
    data: DescribedViews,
    views: Tensor,
    variants: Tensor,
    options: MatcherBatch,
    generator: torch.Generator | None = None,
    fuse: bool = False,
) -> Batch:
    """Pairs of views (B, 2) as a batch. With a generator half of the pairs have random keypoints; else the strongest.

    ``fuse`` compiles the search for the truth, which has many steps on large matrices.
    """
    stacked, kinds = views.T.reshape(-1), variants.repeat(2)
    used = data.used[stacked, kinds]
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
    table, descriptors = (each[owner, kinds[:, None], rows] for each in (data.table, data.descriptors))
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


def _noisy(descriptors: Tensor, most: float, generator: torch.Generator) -> Tensor:
    """Unit vectors, each moved by a random vector of a length up to ``most``."""
    shape, device = descriptors.shape, descriptors.device
    step = torch.nn.functional.normalize(torch.randn(shape, generator=generator, device=device), dim=-1)
    length = most * torch.rand((*shape[:-1], 1), generator=generator, device=device)
    return torch.nn.functional.normalize(descriptors.float() + length * step, dim=-1).to(descriptors.dtype)


def move_together(table: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    """Tables (V, N, 6), of a fraction of the views under a random similarity: nothing is learned of where things are.

    Without angles the image cannot be rotated: descriptors are of upright patches.
    """

    def uniform(most: float) -> Tensor:
        return most * (2 * torch.rand((len(table), 1), generator=generator, device=table.device) - 1)

    chosen = torch.rand((len(table), 1), generator=generator, device=table.device) < fraction
    scale, rotation, x, y = (torch.where(chosen, uniform(most), 0.0) for most in (0.4, torch.pi, 0.3, 0.3))
    rotation = torch.where(table[:, :1, 5] > 0, rotation, 0.0)
    cosine, sine = rotation.cos() * scale.exp(), rotation.sin() * scale.exp()
    moved = [
        cosine * table[..., 0] - sine * table[..., 1] + x,
        sine * table[..., 0] + cosine * table[..., 1] + y,
        table[..., 2] + scale * table[..., 4],
        table[..., 3] + rotation * table[..., 5],
    ]
    return torch.cat([torch.stack(moved, dim=-1), table[..., 4:]], dim=-1)
