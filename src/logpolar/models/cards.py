"""Model cards: what a network is like, what it was trained on, what was measured."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from logpolar.sampling.patterns import Pattern, check_entries, pattern_from_dict, pattern_to_dict
from logpolar.settings import DESCRIPTOR_SIZE

ModelPrecision: TypeAlias = Literal["float32", "bfloat16", "int8"]
_VARIANT_PRECISIONS = ("bfloat16", "int8")


class PatchSizeError(ValueError):
    """A patch that the strides of a network do not divide."""


@dataclass(frozen=True)
class NetworkOptions:
    """What distinguishes one descriptor network from another."""

    rows: int = 32  # patch size; a multiple of all strides multiplied
    columns: int = 32
    circular: bool = False  # rows (angles) continue from the last to the first in every convolution
    dropout: float = 0.1  # while training, before the last convolution
    channels: tuple[int, ...] = (32, 32, 64, 64, 128, 128)  # of each 3 x 3 convolution
    strides: tuple[int, ...] = (1, 1, 2, 1, 2, 1)  # of each, 1 or 2

    def __post_init__(self) -> None:
        if not isinstance(self.circular, bool):
            raise ValueError(f"circular must be true or false, not {self.circular!r}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), not {self.dropout}")
        _check_layers(self.channels, self.strides)
        sides, step = (self.rows, self.columns), self.reduction
        if not all(isinstance(side, int) and side >= step and side % step == 0 for side in sides):
            raise PatchSizeError(f"rows and columns must be multiples of {step}, not {self.rows} x {self.columns}")

    @property
    def reduction(self) -> int:
        """How many times fewer rows and columns the last convolution sees than the patch has."""
        return math.prod(self.strides)

    @property
    def multiply_adds(self) -> int:
        """Multiplications, each with its addition, in all convolutions for one patch."""
        inputs, places, total = 1, self.rows * self.columns, 0
        for outputs, stride in zip(self.channels, self.strides, strict=True):
            places //= stride**2
            total += 9 * inputs * outputs * places
            inputs = outputs
        return total + inputs * places * DESCRIPTOR_SIZE

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> NetworkOptions:
        """The inverse of ``to_json``, of what version 2 wrote as well; raises ``ValueError`` for anything else."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, values: Any) -> NetworkOptions:
        if isinstance(values, dict):
            values = dict(values)
            if values.pop("normalisation", "patch") != "patch":  # version 2 and 3 state the only one there is
                raise ValueError("the card's network has an unknown normalisation (known: patch)")
            if not values.keys() & {"channels", "strides"}:  # version 2
                values |= {"channels": list(cls.channels), "strides": list(cls.strides)}
        check_entries(values, cls, "card's network")
        lists = {key: tuple(values[key]) for key in ("channels", "strides") if isinstance(values[key], list)}
        return cls(**{**values, **lists})


def _check_layers(channels: Any, strides: Any) -> None:
    for name, values in (("channels", channels), ("strides", strides)):
        if not isinstance(values, tuple) or not values or not all(type(value) is int for value in values):
            raise ValueError(f"{name} must be a list of whole numbers, not {values!r}")
    if len(channels) != len(strides):
        raise ValueError(f"there are {len(channels)} channels, but {len(strides)} strides")
    if min(channels) < 1:
        raise ValueError(f"channels must be 1 or more, not {min(channels)}")
    if not set(strides) <= {1, 2}:
        raise ValueError(f"strides must be 1 or 2, not {', '.join(map(str, strides))}")


@dataclass(frozen=True)
class Variant:
    """What tells a variant from the model it was made of."""

    precision: ModelPrecision  # of the arithmetic
    parent: str  # the model's name
    parent_hash: str  # SHA-256 of its file
    calibration: dict[str, Any] = field(default_factory=dict)  # patches that ranges were fitted to, and their source

    def __post_init__(self) -> None:
        if self.precision not in _VARIANT_PRECISIONS:
            raise ValueError(f"unknown precision {self.precision!r} (known: {', '.join(_VARIANT_PRECISIONS)})")


@dataclass(frozen=True)
class ModelCard:
    """What a model is, what it was trained on and what was measured."""

    name: str
    description: str
    sampling: Pattern
    network: NetworkOptions
    training: dict[str, Any] = field(default_factory=dict)  # data and their sources, recipe, seed, versions
    figures: dict[str, Any] = field(default_factory=dict)  # measured results, each with its N
    licence: str = "Apache-2.0"
    variant: Variant | None = None  # None: the trained model itself, in float32

    def __post_init__(self) -> None:
        if (self.sampling.rows, self.sampling.columns) != (self.network.rows, self.network.columns):
            raise ValueError("the network's patch size is not that of the sampling pattern")

    @property
    def precision(self) -> ModelPrecision:
        return self.variant.precision if self.variant else "float32"

    def to_json(self, indent: int | None = None) -> str:
        values = {**asdict(self), "sampling": pattern_to_dict(self.sampling)}
        if self.variant is None:
            del values["variant"]
        return json.dumps(values, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> ModelCard:
        """The inverse of ``to_json``; raises ``ValueError`` for anything else."""
        values = json.loads(text)
        if isinstance(values, dict):
            values.setdefault("variant", None)
        check_entries(values, cls, "card")
        if not isinstance(values["training"], dict) or not isinstance(values["figures"], dict):
            raise ValueError("the card's training and figures must be tables")
        network, sampling = NetworkOptions.from_dict(values.pop("network")), pattern_from_dict(values.pop("sampling"))
        variant = values.pop("variant")
        if variant is not None:
            check_entries(variant, Variant, "card's variant")
            variant = Variant(**variant)
        return cls(network=network, sampling=sampling, variant=variant, **values)
