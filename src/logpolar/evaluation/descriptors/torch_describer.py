"""Describing with a torch network on its device, sampling included."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from logpolar.evaluation.pairs import Describe
from logpolar.keypoints import Keypoints
from logpolar.models.torch_description import TorchDescriber
from logpolar.sampling.patterns import Pattern
from logpolar.sampling.torch_lookup import TorchPyramids
from logpolar.types import FloatArray

_CHUNK = 1024  # patches described at a time


def torch_describer(network: Callable[[Tensor], Tensor], pattern: Pattern, device: torch.device | str) -> Describe:
    """The network, patches (N, rows, columns) to (N, D), should be in evaluation mode, on the device."""
    describer = TorchDescriber(network, pattern, _CHUNK)

    def describe(view: NDArray[np.uint8], keypoints: Keypoints) -> FloatArray:
        pyramids = TorchPyramids([torch.from_numpy(view) / 255], device)
        table = torch.from_numpy(keypoints.table).to(device)
        image = torch.zeros(len(table), dtype=torch.int64, device=device)
        return np.asarray(describer.describe(pyramids, image, table).cpu().numpy(), np.float32)

    return describe
