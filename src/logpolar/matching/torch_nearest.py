"""Nearest neighbours on a torch device, in blocks of bounded memory: what ``match_descriptors`` uses on a GPU."""

from __future__ import annotations

from typing import Any

from logpolar.errors import MissingExtraError

try:
    import torch
    from torch import Tensor
except ImportError as error:
    raise MissingExtraError("matching on a GPU", "torch") from error

from logpolar.matching.nearest import Neighbours
from logpolar.models.runtimes.torch_device import find_device as find_device

_BLOCK_VALUES = 2**24
"""Dot products in memory at a time: 64 MB."""


def nearest_on_device(first: Any, second: Any, device: str) -> Neighbours:
    """Nearest neighbours among descriptors (N, D) and (M, D), arrays or tensors, neither of them empty.

    Dot products are computed in float32; half precision descriptors are converted without loss.
    """
    place = find_device(device)
    with torch.inference_mode():
        return _nearest(*(torch.as_tensor(each, dtype=torch.float32, device=place) for each in (first, second)))


def _nearest(first: Tensor, second: Tensor) -> Neighbours:
    rows = max(_BLOCK_VALUES // len(second), 1)
    back_best = torch.full((len(second),), -torch.inf, device=second.device)
    index, best, runner_up = [], [], []
    for start in range(0, len(first), rows):
        block = first[start : start + rows] @ second.T
        torch.maximum(back_best, block.amax(dim=0), out=back_best)
        largest = block.amax(dim=1)
        # torch.max may return any of equal values: the first is wanted.
        where = (block == largest[:, None]).to(torch.uint8).argmax(dim=1)
        block.scatter_(1, where[:, None], -torch.inf)
        index.append(where)
        best.append(largest)
        runner_up.append(block.amax(dim=1))
    return Neighbours(*(each.cpu().numpy() for each in (*map(torch.cat, (index, best, runner_up)), back_best)))
