"""What a config refers to: a teacher, a model to start from, a network and a loss of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from logpolar.errors import LogpolarError, ModelError, in_one_line
from logpolar.evaluation.descriptors.python_functions import PythonFunction, load_python
from logpolar.models import Model, load_model
from logpolar.models.cards import NetworkOptions
from logpolar.models.network import DescriptorNetwork
from logpolar.settings import DESCRIPTOR_SIZE
from logpolar.training.options import TrainingConfig

OwnLoss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(anchors, positives, excluded) -> a number: descriptors (N, 128) twice, and the mask of ``descriptor_loss``."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Loaded and checked before the data are read."""

    teacher: Model | None
    init: Model | None
    network: PythonFunction | None
    loss: PythonFunction | None

    @classmethod
    def load(cls, config: TrainingConfig) -> Parts:
        """Raises ``LogpolarError``, in one line, for anything that cannot be used."""
        parts = cls(
            _load_model(config.distillation.teacher, "[distillation] teacher") if config.distillation.wanted else None,
            _load_model(config.init, "init") if config.init else None,
            _load_python(config.own_network, "own_network"),
            _load_python(config.own_loss, "own_loss"),
        )
        if parts.init:
            _check_architecture(parts.init, config.network)
        if parts.network:
            _check_network(parts.network, config.network)
        return parts

    def make_network(self, options: NetworkOptions) -> Any:
        """The network to train: a fresh one, or one with the weights of ``init``."""
        if self.network:
            return self.network.call(options)
        network = DescriptorNetwork(options)
        if self.init:
            network.load_state_dict(self.init.network().state_dict(), strict=False)  # the count of batches is not kept
        return network

    def identity(self, config: TrainingConfig) -> dict[str, Any]:
        """By hash rather than by path, for cards and checkpoints."""
        found: dict[str, Any] = {}
        if self.teacher:
            weight = config.distillation.weight
            found["distillation"] = {"teacher": self.teacher.name, "digest": self.teacher.digest, "weight": weight}
        if self.init:
            found["init"] = {"model": self.init.name, "digest": self.init.digest}
        for key, function in (("own_network", self.network), ("own_loss", self.loss)):
            if function:
                found[key] = {"function": function.name, "digest": function.digest}
        return found


def _load_model(name: str, key: str) -> Model:
    try:
        model = load_model(name)
        model.network()  # raises for weights that do not fit the card, and for variants
    except ModelError as error:
        raise LogpolarError(f"{key}: {error}") from error
    return model


def _load_python(text: str, key: str) -> PythonFunction | None:
    try:
        return load_python(text) if text else None
    except LogpolarError as error:
        raise LogpolarError(f"{key}: {error}") from error


def _check_architecture(init: Model, wanted: NetworkOptions) -> None:
    theirs = replace(init.card.network, dropout=wanted.dropout)
    for key in ("rows", "columns", "circular", "channels", "strides"):
        ours, other = getattr(wanted, key), getattr(theirs, key)
        if ours != other:
            words = f"{key} {_plain(other)}, not {_plain(ours)} as in this config"
            raise LogpolarError(f"init: {init.name} has another architecture: {words}")


def _plain(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def _check_network(function: PythonFunction, options: NetworkOptions) -> None:
    """One run on two patches, before the data are read."""
    count = 2
    try:
        network = function.call(options).eval()
        found = network(torch.rand(count, options.rows, options.columns))
        shape, length = tuple(found.shape), found.norm(dim=1)
    except Exception as error:
        raise LogpolarError(f"own_network: {function.name}: failed: {in_one_line(error)}") from error
    if shape != (count, DESCRIPTOR_SIZE) or not torch.allclose(length, torch.ones(count), atol=1e-3):
        words = f"must map patches (N, rows, columns) to vectors (N, {DESCRIPTOR_SIZE}) of unit length"
        raise LogpolarError(f"own_network: {function.name}: {words}, not to {shape}")
