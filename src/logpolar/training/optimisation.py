"""The optimiser, how its learning rate changes, and the running mean of the weights."""

from __future__ import annotations

import copy
import math

import torch
from torch import nn

from logpolar.training.options import OptimisationOptions


def make_optimizer(
    network: nn.Module, options: OptimisationOptions, rate: torch.Tensor
) -> torch.optim.SGD | torch.optim.AdamW:
    """The optimiser; ``rate`` is the learning rate, on the network's device, to be filled before each step."""
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
    """Of step 0, 1, ...: a linear rise over the warm-up, then a fall to 0 at the end."""
    if step < options.warm_up:
        return options.learning_rate * (step + 1) / options.warm_up
    passed = (step - options.warm_up) / max(options.steps - options.warm_up, 1)
    left = 1 - passed if options.schedule == "linear" else (1 + math.cos(math.pi * passed)) / 2
    return options.learning_rate * left


class RunningMean:
    """Exponential mean of a network's weights and statistics; with decay 0 it is the network itself.

    The decay rises to its value, so that the first steps, far from anything good, are soon forgotten:
    min(decay, (1 + n) / (10 + n)) at the n-th update.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self._source, self._decay = network, decay
        self.network = copy.deepcopy(network).eval() if decay else network
        self.network.requires_grad_(not decay)
        self._pairs = [
            (mean, value.detach())
            for mean, value in zip(_values(self.network), _values(network), strict=True)
            if decay and value.is_floating_point()
        ]

    @torch.no_grad()
    def update(self, step: int) -> None:
        if self._pairs:
            means, values = (list(each) for each in zip(*self._pairs, strict=True))
            torch._foreach_lerp_(means, values, 1 - min(self._decay, (1 + step) / (10 + step)))


def _values(network: nn.Module) -> list[torch.Tensor]:
    return [*network.parameters(), *network.buffers()]
