"""Matching of descriptors on a torch device, in blocks of bounded memory, with the results of ``nearest.py``."""

from __future__ import annotations

import torch
from torch import Tensor

from logpolar.matching.nearest import Matches, MatchingOptions, Neighbours, choose_matches, no_matches

_BLOCK_VALUES = 2**24
"""Products that exist at the same time: 64 MB."""


def match_tensors(first: Tensor, second: Tensor, options: MatchingOptions | None = None) -> Matches:
    """Match unit-length descriptors (N, D) and (M, D) on one device, as ``match_descriptors`` does.

    Products are computed in float32: on a GPU without TF32, unless torch was told otherwise, and from half precision
    descriptors without further loss.
    """
    if len(first) == 0 or len(second) == 0:
        return no_matches()
    with torch.inference_mode():
        found = _nearest(first.float(), second.float())
    return choose_matches(found, options or MatchingOptions())


def _nearest(first: Tensor, second: Tensor) -> Neighbours:
    rows = max(_BLOCK_VALUES // len(second), 1)
    back_best = torch.full((len(second),), -torch.inf, device=second.device)
    index, best, runner_up = [], [], []
    for start in range(0, len(first), rows):
        block = first[start : start + rows] @ second.T
        torch.maximum(back_best, block.amax(dim=0), out=back_best)
        largest, where = block.max(dim=1)
        # Of equal values max may return any: the first is wanted.
        where = (block == largest[:, None]).to(torch.uint8).argmax(dim=1)
        block.scatter_(1, where[:, None], -torch.inf)
        index.append(where)
        best.append(largest)
        runner_up.append(block.amax(dim=1))
    return Neighbours(
        torch.cat(index).cpu().numpy(),
        *(values.cpu().numpy() for values in (torch.cat(best), torch.cat(runner_up), back_best)),
    )
