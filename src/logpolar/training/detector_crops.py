"""Pairs of crops to train a detector on, drawn and resampled on the device, and where their pixels correspond.

Convention:
    An image pair has a transfer each way, (3, 4): x' ~ transfer @ (x, y, 1, rho) with the inverse depth rho of the
    pixel, as ``geometry.cameras.Transfer``. Homographies have 0 in the last column, and so need no depth.
    A crop's pixel (x, y) is the image's pixel offset + scale (x, y); ``scale`` above 1 shows the image smaller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from logpolar.sampling.patterns import SamplePoints
from logpolar.sampling.torch_lookup import TorchPyramids
from logpolar.training.depth_maps import DepthMaps
from logpolar.training.detector_options import CropOptions

_TRIES = 16
"""Random centres of a pair, of which the first that both images show is taken."""

_SCALES = (0.7, 2.6)
"""Image pixels for a crop's pixel: enlarged images lack detail, and larger steps leave the image."""

_DEPTH_TOLERANCE = 0.05
"""Relative difference of inverse depths above which a pixel is hidden in the other image."""


@dataclass(frozen=True, eq=False)
class PairList:
    """Image pairs of one source, on the CPU."""

    images: NDArray[np.int64]  # (P, 2)
    transfers: NDArray[np.float32]  # (P, 2, 3, 4): from the first image to the second, and back
    groups: NDArray[np.int64]  # (P,): scenes, which are drawn with equal chance
    has_depth: bool  # otherwise transfers are homographies


class DetectorData:
    """Images with pyramids, inverse depths and pairs on a device.

    ``images``: originals, then as many altered copies of each, all first copies first. ``inverse_depths``: of the
    originals, at any resolution, 0 where unknown; None for images without.
    """

    def __init__(
        self,
        pyramids: TorchPyramids,
        inverse_depths: Sequence[NDArray[np.float16] | None],
        sources: Sequence[PairList],
        device: torch.device,
        copies: int = 0,
    ) -> None:
        self.pyramids, self.copies, self.originals = pyramids, copies, len(inverse_depths)
        maps = [np.zeros((0, 0), np.float16) if each is None else each for each in inverse_depths]
        self._depths = DepthMaps(maps, device)
        self.images = [torch.from_numpy(each.images).to(device) for each in sources]
        self.transfers = [torch.from_numpy(each.transfers).to(device) for each in sources]
        self.has_depth = [each.has_depth for each in sources]
        # Groups with equal chance, and the pairs of a group.
        weights = [1 / np.bincount(each.groups)[each.groups] for each in sources]
        self.chances = [torch.from_numpy(np.cumsum(each) / each.sum()).to(device) for each in weights]

    def sizes(self, image: Tensor) -> Tensor:
        """(N, 2): width and height."""
        return self.pyramids.sizes(image)

    def inverse_depth(self, image: Tensor, xy: Tensor) -> Tensor:
        """(N, K) of the nearest known pixel of originals (N,) at positions (N, K, 2); 0 where unknown."""
        return self._depths.nearest(image % self.originals, xy, self.sizes(image))


@dataclass(frozen=True, eq=False)
class Crops:
    """B pairs of crops; first crops are rows 0 to B - 1, second ones B to 2 B - 1; ``swap`` exchanges them."""

    data: DetectorData
    side: int
    image: Tensor  # (2B,) as it is seen: an original or a copy
    scale: Tensor  # (2B,)
    offset: Tensor  # (2B, 2)
    transfer: Tensor  # (2B, 3, 4) from a crop's image to the other's
    has_depth: Tensor  # (2B,)
    angle: Tensor  # (2B,): degrees by which the crop is rotated against the first of its pair
    usable: Tensor  # (2B,): whether both show the same place

    def render(self) -> Tensor:
        """Pixels (2B, side, side) in [0, 1]; beyond the image its reflection."""
        steps = torch.arange(self.side, device=self.scale.device, dtype=torch.float32)
        x, y = (self.offset[:, axis, None] + self.scale[:, None] * steps for axis in (0, 1))
        shape = len(self.scale), self.side, self.side
        points = SamplePoints(x[:, None, :].expand(shape), y[:, :, None].expand(shape), self.scale[:, None])
        return self.data.pyramids.look_up(self.image, points)

    def in_image(self, xy: Tensor) -> Tensor:
        """Positions (2B, K, 2) of crops in their images."""
        return self.offset[:, None] + self.scale[:, None, None] * xy

    def inside(self, xy: Tensor, margin: float = 0) -> Tensor:
        """(2B, K): whether positions lie within crop and image."""
        within = ((xy >= margin) & (xy <= self.side - 1 - margin)).all(dim=-1)
        place, last = self.in_image(xy), (self.data.sizes(self.image) - 1)[:, None]
        edge = margin * self.scale[:, None, None]
        return within & ((place >= edge) & (place <= last - edge)).all(dim=-1)

    def on_image(self, margin: float = 2) -> Tensor:
        """(2B, side, side): pixels that lie on the image, away from its edge."""
        steps = torch.arange(self.side, device=self.scale.device, dtype=torch.float32)
        grid = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), dim=-1).reshape(1, -1, 2)
        return self.inside(grid.expand(len(self.scale), -1, -1), margin).view(-1, self.side, self.side)

    def send(self, xy: Tensor) -> tuple[Tensor, Tensor]:
        """Positions (2B, K, 2) in the other crop, and (2B, K) whether they are known to be visible there.

        Without a surface below them, or where the other image shows another one, they are not.
        """
        place = self.in_image(xy)
        rho = self.data.inverse_depth(self.image, place)
        homogeneous = torch.cat([place, torch.ones_like(place[..., :1]), rho[..., None]], dim=-1)
        sent = torch.einsum("nij,nkj->nki", self.transfer, homogeneous)
        ahead = sent[..., 2:].clamp(min=1e-6)
        there, other = sent[..., :2] / ahead, swap(self.image)
        met = self.data.inverse_depth(other, there)
        expected = rho / ahead[..., 0]
        surface = (rho > 0) & (met > 0) & ((met - expected).abs() <= _DEPTH_TOLERANCE * expected)
        last = (self.data.sizes(other) - 1)[:, None]
        visible = ((there >= 0) & (there <= last)).all(dim=-1) & (sent[..., 2] > 1e-6) & self.inside(xy)
        arrived = (there - swap(self.offset)[:, None]) / swap(self.scale)[:, None, None]
        within = ((arrived >= 0) & (arrived <= self.side - 1)).all(dim=-1)
        return arrived, visible & within & (surface | ~self.has_depth[:, None]) & self.usable[:, None]


def swap(values: Tensor) -> Tensor:
    """First and second halves exchanged."""
    first, second = values.chunk(2)
    return torch.cat([second, first])


class CropSampler:
    """Draws crops; shapes are always the same, so that a step can be recorded as a CUDA graph."""

    def __init__(self, data: DetectorData, shares: Sequence[float], options: CropOptions) -> None:
        self._data, self._options = data, options
        exact = np.array(shares) / sum(shares) * options.pairs
        counts = np.floor(exact).astype(int)
        for index in np.argsort(counts - exact, kind="stable")[: options.pairs - counts.sum()]:
            counts[index] += 1
        self.counts = counts.tolist()

    def draw(self, generator: torch.Generator) -> Crops:
        images, transfers, has_depth = self._pairs(generator)
        count, device = len(images), images.device

        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, device=device)

        first = Crops(  # whole images, to find a place that both show
            self._data,
            1 << 20,
            images.T.reshape(-1),
            torch.ones(2 * count, device=device),
            torch.zeros(2 * count, 2, device=device),
            transfers.transpose(0, 1).reshape(-1, 3, 4),
            has_depth.repeat(2),
            torch.zeros(2 * count, device=device),
            torch.ones(2 * count, dtype=torch.bool, device=device),
        )
        tried = uniform(count, _TRIES, 2) * (self._data.sizes(images[:, 0]) - 1)[:, None]
        sent, seen = (each[:count] for each in first.send(torch.cat([tried, tried])))
        chosen = seen.float().argmax(dim=1)[:, None]
        here, there = (each.take_along_dim(chosen[..., None], 1)[:, 0] for each in (tried, sent))
        zoom, angle = _local_change(first, here)
        scales = self._scales(zoom, uniform(count), uniform(count), uniform(count))
        scale, centre = torch.cat(scales), torch.cat([here, there])
        side = self._options.side
        centre = centre + (uniform(2 * count, 2) - 0.5) * 0.4 * side * scale[:, None]
        image = self._alter(images, uniform(2, count)).T.reshape(-1)
        sizes = self._data.sizes(image).float()
        half = 0.5 * (side - 1) * scale[:, None]
        # Within the image as far as it reaches.
        centre = torch.minimum(torch.maximum(centre, half), (sizes - 1) - half)
        centre = torch.where(sizes - 1 > 2 * half, centre, (sizes - 1) / 2)
        usable = seen.any(dim=1).repeat(2)
        angles = torch.cat([torch.zeros_like(angle), angle])
        return Crops(self._data, side, image, scale, centre - half, first.transfer, has_depth.repeat(2), angles, usable)

    def _pairs(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Images (B, 2), transfers (B, 2, 3, 4), and whether they need depth (B,)."""
        images, transfers, depth = [], [], []
        for number, count in enumerate(self.counts):
            chances = self._data.chances[number]
            lots = torch.rand(count, generator=generator, device=chances.device, dtype=chances.dtype)
            pair = torch.searchsorted(chances, lots).clamp(max=len(chances) - 1)
            images.append(self._data.images[number][pair])
            transfers.append(self._data.transfers[number][pair])
            depth.append(torch.full((count,), self._data.has_depth[number], device=chances.device))
        return torch.cat(images), torch.cat(transfers), torch.cat(depth)

    def _scales(self, zoom: Tensor, lots: Tensor, ratio: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Of both crops; ``zoom``: pixels of the second image for one of the first."""
        low, high = _SCALES
        wanted = (2 * ratio - 1) * math.log(self._options.max_zoom)
        wanted = torch.where(lots < self._options.zoomed, wanted, 0.2 * (2 * ratio - 1)).exp()
        first = low * (2.0**start)
        second = (first * zoom / wanted).clamp(low, high)
        return (second * wanted / zoom).clamp(low, high), second

    def _alter(self, images: Tensor, lots: Tensor) -> Tensor:
        """(B, 2) with some second images replaced by altered copies."""
        copies = self._data.copies
        if not copies:
            return images
        number = 1 + (lots[1] * copies).long().clamp(max=copies - 1)
        shift = torch.where(lots[0] < self._options.altered, number * self._data.originals, 0)
        return torch.stack([images[:, 0], images[:, 1] + shift], dim=1)


def _local_change(crops: Crops, xy: Tensor) -> tuple[Tensor, Tensor]:
    """How many pixels of the second image a pixel of the first is around positions (B, 2), and by how many degrees
    the second is rotated, clockwise; 1 and 0 where that is not known."""
    step = 8.0
    across, down = xy.unbind(1)
    shifted = (across + step, down), (across, down + step), (across - step, down), (across, down - step)
    places = torch.stack([torch.stack(each, dim=1) for each in shifted], dim=1)
    count = len(xy)
    image = crops.image[:count]
    rho = crops.data.inverse_depth(image, xy[:, None]).expand(-1, 4)
    homogeneous = torch.cat([places, torch.ones_like(places[..., :1]), rho[..., None]], dim=-1)
    sent = torch.einsum("nij,nkj->nki", crops.transfer[:count], homogeneous)
    sent = sent[..., :2] / sent[..., 2:].clamp(min=1e-6)
    right, down = (sent[:, 0] - sent[:, 2]) / (2 * step), (sent[:, 1] - sent[:, 3]) / (2 * step)
    area = right[:, 0] * down[:, 1] - right[:, 1] * down[:, 0]
    good = (area > 1e-3) & (area < 1e3)
    angle = torch.atan2(right[:, 1] - down[:, 0], right[:, 0] + down[:, 1]).rad2deg()
    return torch.where(good, area.clamp(1e-3, 1e3).sqrt(), 1.0), torch.where(good, angle, 0.0)


def change_crops(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Other contrast, brightness, gamma and noise of every crop (N, side, side)."""
    normal = torch.randn(len(images), 4, generator=generator, device=images.device)
    contrast, brightness, gamma, noise = (strength * normal).unbind(1)
    values = (images - 0.5) * contrast.exp()[:, None, None] + 0.5 + 0.3 * brightness[:, None, None]
    values = values.clamp(1e-3, 1) ** gamma.exp()[:, None, None]
    grain = torch.randn(images.shape, generator=generator, device=images.device)
    return (values + 0.03 * noise.abs()[:, None, None] * grain).clamp(0, 1)
