"""The training step, and the state that resumes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.parallel import DistributedDataParallel

from logpolar.models.cards import NetworkOptions
from logpolar.models.network import DescriptorNetwork
from logpolar.models.runtimes.processor import prepare_torch_bfloat16
from logpolar.training.batches import BatchSampler
from logpolar.training.cuda_graphs import ReplayedStep
from logpolar.training.loss import descriptor_loss, distillation_loss
from logpolar.training.optimisation import learning_rate, make_optimizer
from logpolar.training.options import TrainingConfig
from logpolar.training.parts import OwnLoss
from logpolar.training.processes import World


class Trainer:
    """A network in training. What step n draws depends on the seed, the process and n alone, so that no random state
    is needed to resume.

    Several processes draw a batch each; their gradients are averaged. Negatives are mined within a process.
    """

    def __init__(
        self,
        config: TrainingConfig,
        sampler: BatchSampler,
        device: torch.device,
        world: World | None = None,
        teacher: DescriptorNetwork | None = None,
        make_network: Callable[[NetworkOptions], Any] = DescriptorNetwork,
        own_loss: OwnLoss | None = None,
    ) -> None:
        """``teacher`` is a frozen network in evaluation mode; it is not part of the state. ``own_loss`` is added."""
        self.config, self.step, self._sampler, self._device = config, 0, sampler, device
        self._world = world or World()
        torch.manual_seed(config.run.seed)
        network: DescriptorNetwork = make_network(config.network).to(device).train()
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._network, self._own_loss = network, own_loss
        self._rate = torch.zeros((), device=device)
        self._optimizer = make_optimizer(network, config.optimisation, self._rate)
        self._generator = torch.Generator(device)
        run: torch.nn.Module = network
        if self._world.size > 1:
            run = DistributedDataParallel(network, [device] if device.type == "cuda" else None)
        self._fused = config.run.compile and device.type == "cuda"
        self._run = torch.compile(run) if self._fused else run
        self._teacher = self._prepare(teacher) if teacher else None
        self._replayed = ReplayedStep(self._compute, self._generator)
        self._updating, self._given_up = threading.Lock(), False
        self._statistics: dict[str, torch.Tensor] = {}  # before the step that a CPU is at
        wanted = config.run.precision
        self._half = device.type == "cuda" if wanted == "auto" else wanted == "bfloat16"
        if self._half and device.type == "cpu":
            prepare_torch_bfloat16()

    def _prepare(self, teacher: DescriptorNetwork) -> torch.nn.Module:
        """On the device, without gradients."""
        teacher = teacher.to(self._device).requires_grad_(False)
        teacher.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return torch.compile(teacher) if self._fused else teacher  # type: ignore[return-value]

    @property
    def rate(self) -> float:
        """The learning rate of the next step."""
        return learning_rate(self.step, self.config.optimisation)

    def advance(self) -> torch.Tensor:
        """One step; its loss, still on the device."""
        seed = int(np.random.SeedSequence((self.config.run.seed, self._world.rank, self.step)).generate_state(1)[0])
        torch.manual_seed(seed)  # for dropout
        self._generator.manual_seed(seed)
        self._rate.fill_(self.rate)
        if self._device.type == "cpu":
            self._statistics = {name: values.clone() for name, values in self._network.named_buffers()}
        loss = self._replayed() if self._fused and self._world.size == 1 else self._compute()
        self.step += 1
        return loss

    def give_up(self) -> bool:
        """Return to the state before the step that another thread is at, on a CPU, unless it is as good as done."""
        with self._updating:
            self._given_up = bool(self._statistics)
            return self._given_up

    def _compute(self) -> torch.Tensor:
        """Draw a batch and optimise on it."""
        batch = self._sampler.draw(self._generator)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            descriptors = self._run(torch.cat([batch.first, batch.second])).float()
        anchors, positives = descriptors.chunk(2)
        loss = descriptor_loss(anchors, positives, batch.excluded, self.config.loss)
        if self._own_loss is not None:
            loss = loss + self._own_loss(anchors, positives, batch.excluded)
        if self._teacher is not None:
            with torch.no_grad(), torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
                targets = self._teacher(batch.shown).float()
            loss = loss + self.config.distillation.weight * distillation_loss(descriptors, targets)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        with self._updating:
            if self._given_up:
                raise RuntimeError("this step was given up")
            self._optimizer.step()
            self._statistics = {}
        return loss.detach()

    @property
    def result(self) -> DescriptorNetwork:
        """The network in evaluation mode, until ``resume_training``."""
        return self._network.eval()

    def resume_training(self) -> None:
        self._network.train()

    @property
    def is_finite(self) -> bool:
        """Whether all weights are finite."""
        return all(bool(values.isfinite().all()) for values in self._network.state_dict().values())

    def state(self) -> dict[str, Any]:
        """Everything that training changes."""
        network = self._network.state_dict()
        return {
            "step": self.step,
            "network": {name: self._statistics.get(name, values) for name, values in network.items()},
            "optimizer": self._optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Resume from a state; raises whatever torch does if it is of another network."""
        self._network.load_state_dict(state["network"])
        self._optimizer.load_state_dict(state["optimizer"])
        for group in self._optimizer.param_groups:
            self._rate.fill_(float(group["lr"]))
            group["lr"] = self._rate
        self.step = int(state["step"])
