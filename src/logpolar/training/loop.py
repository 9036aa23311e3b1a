"""The training loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from logpolar.models import NetworkOptions
from logpolar.network import DescriptorNetwork
from logpolar.training.batches import PairSampler
from logpolar.training.loss import hardest_triplet_loss


@dataclass(frozen=True)
class TrainingOptions:
    """The recipe of the paper's code, shortened: SGD whose momentum is an average (dampening), linear decay to 0."""

    steps: int = 11000
    learning_rate: float = 10.0
    momentum: float = 0.9  # also the dampening: without that a step would be 10 times too long
    weight_decay: float = 1e-4
    margin: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Progress:
    """What is reported now and then while training."""

    step: int
    loss: float  # mean since the last report
    steps_per_second: float


def train(
    sampler: PairSampler,
    network_options: NetworkOptions,
    options: TrainingOptions,
    device: torch.device | str = "cpu",
    report: Callable[[Progress], None] | None = None,
    report_every: int = 250,
) -> DescriptorNetwork:
    """Train a network from scratch. The network runs in bfloat16 on a GPU, in float32 on a CPU."""
    # Every batch has the same shape, so tuning pays. The caller's settings and random numbers are left as they were.
    with torch.backends.cudnn.flags(enabled=True, benchmark=True), torch.random.fork_rng():
        return _train(sampler, network_options, options, torch.device(device), report, report_every)


def _train(
    sampler: PairSampler,
    network_options: NetworkOptions,
    options: TrainingOptions,
    device: torch.device,
    report: Callable[[Progress], None] | None,
    report_every: int,
) -> DescriptorNetwork:
    torch.manual_seed(options.seed)
    generator = torch.Generator(device).manual_seed(options.seed)
    network: DescriptorNetwork = DescriptorNetwork(network_options).to(device).train()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=options.learning_rate,
        momentum=options.momentum,
        dampening=options.momentum,
        weight_decay=options.weight_decay,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / options.steps)
    total, since = torch.zeros((), device=device), time.perf_counter()
    for step in range(1, options.steps + 1):
        patches = torch.cat(sampler.draw(generator))
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            descriptors = network(patches)
        anchors, positives = descriptors.float().chunk(2)
        loss = hardest_triplet_loss(anchors, positives, options.margin)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        total += loss.detach()
        count = step % report_every or report_every
        if count == report_every or step == options.steps:
            mean = float(total) / count
            if math.isnan(mean):
                raise FloatingPointError(f"the loss is not a number after {step} steps")
            if report:
                report(Progress(step, mean, count / (time.perf_counter() - since)))
            total.zero_()
            since = time.perf_counter()
    network.eval()
    return network
