"""Describing with a torch network on its device, sampling included."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from logpolar.defaults import DESCRIPTOR_SIZE
from logpolar.evaluation.pairs import Describe
from logpolar.keypoints import FloatArray, Keypoints
from logpolar.sampling.patterns import Pattern
from logpolar.sampling.torch_lookup import TorchPyramids

_CHUNK = 1024  # patches described at a time; always filled up, so that shapes stay the same on a GPU


def torch_describer(network: Callable[[Tensor], Tensor], pattern: Pattern, device: torch.device | str) -> Describe:
    """The network, patches (N, rows, columns) to (N, D), should be in evaluation mode, on the device."""

    def describe(view: NDArray[np.uint8], keypoints: Keypoints) -> FloatArray:
        pyramids = TorchPyramids([torch.from_numpy(view) / 255], device)
        table = torch.from_numpy(keypoints.table).to(device)
        count = len(table)
        if count == 0:
            return np.zeros((0, DESCRIPTOR_SIZE), np.float32)
        padded = torch.cat([table, table[:1].expand(-count % _CHUNK, -1)])
        image = torch.zeros(_CHUNK, dtype=torch.int64, device=device)
        parts = []
        with torch.inference_mode():
            for part in padded.reshape(-1, _CHUNK, padded.shape[1]):
                parts.append(network(pyramids.sample(image, part[:, :2], part[:, 2], part[:, 3], pattern)))
        return np.asarray(torch.cat(parts)[:count].cpu().numpy(), np.float32)

    return describe
