"""The training step of a matcher."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from logpolar.models.matcher_files import MatcherModel
from logpolar.models.matcher_network import MatcherNetwork
from logpolar.training.matcher_checkpoints import load_pieces, save_pieces
from logpolar.training.matcher_data import Batch
from logpolar.training.matcher_loss import matcher_loss
from logpolar.training.matcher_options import MatcherConfig, MatcherOptimisation

_STEPS = 10**7
"""More than any run has: so that no two runs have the same seeds."""


class MatcherTrainer:
    """A matcher in training: bfloat16 and compiled on a GPU, float32 on a CPU."""

    def __init__(self, config: MatcherConfig, draw: Callable[[int], Batch], device: torch.device) -> None:
        """``draw``: the batch of a step."""
        self.config, self.step, self._draw, self._device = config, 0, draw, device
        torch.manual_seed(config.run.seed)
        self.network: MatcherNetwork = MatcherNetwork(
            config.network, config.optimisation.dropout, config.optimisation.blind
        ).to(device)
        self._rate = torch.zeros((), device=device)
        options = config.optimisation
        self.optimiser = torch.optim.AdamW(
            self.network.parameters(), lr=self._rate, weight_decay=options.weight_decay, betas=(0.9, 0.98), fused=True
        )
        fuse = config.run.compile and device.type == "cuda"
        self._loss = torch.compile(self._compute, dynamic=False) if fuse else self._compute  # at most two shapes

    def _compute(self, batch: Batch) -> tuple[Tensor, Tensor]:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            states = self.network(batch.descriptors, batch.table, batch.mask)
            return matcher_loss(self.network, states, batch.descriptors, batch.truth, batch.mask)

    def advance(self) -> tuple[Tensor, Tensor]:
        """One step; its loss and that of the last layer's matches, still on the device."""
        self._rate.fill_(learning_rate(self.step, self.config.optimisation))
        torch.manual_seed((self.config.run.seed * _STEPS + self.step) % 2**63)  # of dropout, also after resuming
        loss, last = self._loss(self._draw(self.step))
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.config.optimisation.clip)
        self.optimiser.step()
        self.step += 1
        return loss.detach(), last

    @property
    def is_finite(self) -> bool:
        return all(bool(values.isfinite().all()) for values in self.network.parameters())

    def start_from(self, matcher: MatcherModel) -> None:
        """Take over the weights of a matcher."""
        self.network.load_state_dict(matcher.network().state_dict())

    def save(self, folder: Path, about: dict[str, Any]) -> list[Path]:
        return save_pieces(folder, self.network, self.optimiser, self.step, about)

    def load(self, folder: Path) -> dict[str, Any]:
        """Resume from a folder, if it has a checkpoint; what was said about it."""
        self.step, about = load_pieces(folder, self.network, self.optimiser)
        return about


def learning_rate(step: int, options: MatcherOptimisation) -> float:
    """Of step 0, 1, ...: linear warm-up, then a cosine down to ``final_rate``."""
    if step < options.warm_up:
        return options.learning_rate * (step + 1) / options.warm_up
    passed = min((step - options.warm_up) / max(options.steps - options.warm_up, 1), 1.0)
    left = (1 + math.cos(math.pi * passed)) / 2
    return options.learning_rate * (options.final_rate + (1 - options.final_rate) * left)
