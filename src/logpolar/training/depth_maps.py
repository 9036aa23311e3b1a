"""Inverse depths of many images on the device, of any resolution, packed one after another; 0 is unknown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_EDGE = 0.05
"""Largest relative difference of neighbouring inverse depths on one surface."""


class DepthMaps:
    """Maps by number; those without a pixel are of images without known depth."""

    def __init__(self, maps: Sequence[NDArray[np.floating]], device: torch.device) -> None:
        ends = np.cumsum([each.size for each in maps])
        table = [(end - each.size, each.shape[1], each.shape[0]) for end, each in zip(ends, maps, strict=True)]
        self._table = torch.tensor(table, dtype=torch.int64, device=device).reshape(-1, 3)
        unknown = np.zeros(1, maps[0].dtype)  # the last value, for those without a map
        self._values = torch.from_numpy(np.concatenate([*(each.reshape(-1) for each in maps), unknown])).to(device)

    def nearest(self, image: Tensor, xy: Tensor, sizes: Tensor) -> Tensor:
        """(N, K) of the nearest known pixel of images (N,) of ``sizes`` (N, 2) at positions (N, K, 2)."""
        place = self._place(image, xy, sizes).round().long()
        return self._at(image, place.clamp(min=0))

    def on_surface(self, image: Tensor, xy: Tensor, sizes: Tensor) -> Tensor:
        """Likewise, bilinear where all four neighbours are known and lie on one surface; 0 elsewhere."""
        place = self._place(image, xy, sizes)
        corner = place.floor()
        across, down = (place - corner).unbind(-1)
        _, width, height = (column[:, None] for column in self._table[image].unbind(1))
        column, row = corner.long().unbind(-1)
        within = (column >= 0) & (row >= 0) & (column + 1 < width) & (row + 1 < height)
        corners = [
            self._at(image, torch.stack([column + right, row + below], dim=-1).clamp(min=0))
            for below in (0, 1)
            for right in (0, 1)
        ]
        above = torch.lerp(corners[0], corners[1], across)
        mean = torch.lerp(above, torch.lerp(corners[2], corners[3], across), down)
        four = torch.stack(corners)
        least, most = four.amin(dim=0), four.amax(dim=0)
        return torch.where(within & (least > 0) & (most - least <= _EDGE * most), mean, 0.0)

    def _place(self, image: Tensor, xy: Tensor, sizes: Tensor) -> Tensor:
        return (xy + 0.5) * (self._table[image, 1:] / sizes)[:, None] - 0.5

    def _at(self, image: Tensor, place: Tensor) -> Tensor:
        offset, width, height = (column[:, None] for column in self._table[image].unbind(1))
        x, y = (torch.minimum(each, side - 1) for each, side in zip(place.unbind(-1), (width, height), strict=True))
        return self._values[torch.where(width > 0, offset + y * width + x, -1)].float()
