"""The optimiser and its learning rate schedule."""

from __future__ import annotations

import math

import torch
from torch import nn

from logpolar.training.options import OptimisationOptions


def make_optimizer(
    network: nn.Module, options: OptimisationOptions, rate: torch.Tensor
) -> torch.optim.SGD | torch.optim.AdamW:
    """The optimiser; ``rate`` is the learning rate, a tensor on the network's device to be set before each step."""
    if options.optimiser == "sgd":
        return torch.optim.SGD(
            network.parameters(),
            lr=rate,
            momentum=options.momentum,
            dampening=options.momentum,
            weight_decay=options.weight_decay,
            fused=True,
        )
    return torch.optim.AdamW(
        network.parameters(), lr=rate, weight_decay=options.weight_decay, fused=True, capturable=rate.is_cuda
    )


def learning_rate(step: int, options: OptimisationOptions) -> float:
    """Of step 0, 1, ...: linear warm-up, then decay to 0 at the last step."""
    if step < options.warm_up:
        return options.learning_rate * (step + 1) / options.warm_up
    passed = (step - options.warm_up) / max(options.steps - options.warm_up, 1)
    left = 1 - passed if options.schedule == "linear" else (1 + math.cos(math.pi * passed)) / 2
    return options.learning_rate * left
