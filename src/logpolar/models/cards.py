"""Model cards: a network's architecture, its sampling, training data and measured results; of detectors as well."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from logpolar.sampling.patterns import Pattern, check_entries, pattern_from_dict, pattern_to_dict
from logpolar.settings import DESCRIPTOR_SIZE
from logpolar.storage.inputs import parse_json

ModelPrecision: TypeAlias = Literal["float32", "bfloat16", "int8"]
_VARIANT_PRECISIONS = ("bfloat16", "int8")


class PatchSizeError(ValueError):
    """A patch size that a network's strides do not divide."""


_MOST_SIDE, _MOST_CHANNELS, _MOST_WORK = 512, 4096, 10**10
"""Beyond any use; a config or a card that asks for more would take all memory."""


@dataclass(frozen=True)
class NetworkOptions:
    """Architecture of a descriptor network."""

    rows: int = 32  # patch size, a multiple of the strides' product
    columns: int = 32
    circular: bool = False  # convolutions wrap around the rows (angles)
    dropout: float = 0.1  # before the last convolution, in training
    channels: tuple[int, ...] = (32, 32, 64, 64, 128, 128)  # of the 3 x 3 convolutions
    strides: tuple[int, ...] = (1, 1, 2, 1, 2, 1)  # 1 or 2

    def __post_init__(self) -> None:
        if not isinstance(self.circular, bool):
            raise ValueError(f"circular must be true or false, not {self.circular!r}")
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), not {self.dropout!r}")
        _check_layers(self.channels, self.strides)
        sides, step = (self.rows, self.columns), self.reduction
        if not all(isinstance(side, int) and side >= step and side % step == 0 for side in sides):
            raise PatchSizeError(f"rows and columns must be multiples of {step}, not {self.rows} x {self.columns}")
        if max(sides) > _MOST_SIDE or max(self.channels) > _MOST_CHANNELS or self.multiply_adds > _MOST_WORK:
            most = f"{_MOST_SIDE} rows and columns, {_MOST_CHANNELS} channels and {_MOST_WORK:.0e} multiply-adds"
            raise ValueError(f"the network is too large: {most} a patch are the limit")

    @property
    def reduction(self) -> int:
        """Downscaling from the patch to the input of the last convolution."""
        return math.prod(self.strides)

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of all convolutions for one patch."""
        inputs, places, total = 1, self.rows * self.columns, 0
        for outputs, stride in zip(self.channels, self.strides, strict=True):
            places //= stride**2
            total += 9 * inputs * outputs * places
            inputs = outputs
        return total + inputs * places * DESCRIPTOR_SIZE

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_dict(cls, values: Any) -> NetworkOptions:
        """From parsed JSON, of older versions as well; raises ``ValueError`` for anything else."""
        if isinstance(values, dict):
            values = dict(values)
            if values.pop("normalisation", "patch") != "patch":  # versions 2 and 3 name the only one there is
                raise ValueError("the card's network has an unknown normalisation (known: patch)")
            if not values.keys() & {"channels", "strides"}:  # version 2
                values |= {"channels": list(cls.channels), "strides": list(cls.strides)}
        check_entries(values, cls, "card's network")
        lists = {key: tuple(values[key]) for key in ("channels", "strides") if isinstance(values[key], list)}
        return cls(**{**values, **lists})


def _check_layers(channels: Any, strides: Any) -> None:
    for name, values in (("channels", channels), ("strides", strides)):
        if not isinstance(values, tuple) or not values or not all(type(value) is int for value in values):
            raise ValueError(f"{name} must be a list of integers, not {values!r}")
    if len(channels) != len(strides):
        raise ValueError(f"there are {len(channels)} channels, but {len(strides)} strides")
    if min(channels) < 1:
        raise ValueError(f"channels must be at least 1, not {min(channels)}")
    if not set(strides) <= {1, 2}:
        raise ValueError(f"strides must be 1 or 2, not {', '.join(map(str, strides))}")


class Convolution(NamedTuple):
    """A convolution of a detector network."""

    shape: tuple[int, int, int, int]  # of the weights
    stride: int
    pixels: int  # of the image for one of the output


@dataclass(frozen=True)
class DetectorOptions:
    """Architecture of a detector network: an encoder to an eighth of the resolution, and back to the full one."""

    channels: tuple[int, ...] = (16, 48, 64)  # at a half, a quarter and an eighth of the resolution
    blocks: tuple[int, ...] = (1, 2, 2)  # further 3 x 3 convolutions at each of them, on the way down
    window: int = 16  # pixels: contrast is normalised over squares of 2 window + 1; 0 does not

    def __post_init__(self) -> None:
        for name, values, least in (("channels", self.channels, 1), ("blocks", self.blocks, 0)):
            if not isinstance(values, tuple) or not all(type(value) is int and value >= least for value in values):
                raise ValueError(f"{name} must be a list of integers from {least}, not {values!r}")
        if len(self.channels) != 3 or len(self.blocks) != 3 or max(self.channels) > 1024 or sum(self.blocks) > 64:
            raise ValueError("a detector has channels and blocks at three resolutions, at most 1024 and 64")
        if type(self.window) is not int or not 0 <= self.window <= 256:
            raise ValueError(f"window must be an integer from 0 to 256, not {self.window!r}")

    @property
    def layers(self) -> dict[str, Convolution]:
        """Every convolution by name, in the order of computation."""
        half, quarter, eighth = self.channels
        found: dict[str, Convolution] = {}
        inputs = 1
        for level, (width, count) in enumerate(zip(self.channels, self.blocks, strict=True)):
            pixels = 4 ** (level + 1)
            found[f"down{level}"] = Convolution((width, inputs, 3, 3), 2, pixels)
            for number in range(count):
                found[f"block{level}_{number}"] = Convolution((width, width, 3, 3), 1, pixels)
            inputs = width
        return {
            **found,
            "up1": Convolution((4 * quarter, eighth, 1, 1), 1, 64),  # 4 values for each pixel, moved to 2 x 2 pixels
            "merge1": Convolution((quarter, quarter, 3, 3), 1, 16),
            "up0": Convolution((4 * half, quarter, 1, 1), 1, 16),
            "merge0": Convolution((half, half, 3, 3), 1, 4),
            "head": Convolution((4, half, 1, 1), 1, 4),
        }

    @property
    def reach(self) -> int:
        """Pixels on each side of a score that it depends on, a multiple of 8: the overlap of tiles."""
        steps, radius = 1, 0
        for level, count in enumerate(self.blocks):
            radius += steps  # the strided convolution, at the finer resolution
            steps *= 2
            radius += steps * (count + (level < 2))  # the last: merge0, merge1
        return -(-(radius + steps + self.window) // 8) * 8

    @property
    def multiply_adds(self) -> float:
        """Multiply-adds of all convolutions for a pixel of the image."""
        return sum(math.prod(layer.shape) / layer.pixels for layer in self.layers.values())

    @classmethod
    def from_dict(cls, values: Any) -> DetectorOptions:
        """From parsed JSON; raises ``ValueError`` for anything else."""
        check_entries(values, cls, "card's network")
        plain: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
        return cls(**plain)


@dataclass(frozen=True)
class Variant:
    """How a variant differs from the model it was made from."""

    precision: ModelPrecision  # of the arithmetic
    parent: str  # name of that model
    parent_hash: str  # SHA-256 of its file
    calibration: dict[str, Any] = field(default_factory=dict)  # number and source of the patches

    def __post_init__(self) -> None:
        if self.precision not in _VARIANT_PRECISIONS:
            raise ValueError(f"unknown precision {self.precision!r} (known: {', '.join(_VARIANT_PRECISIONS)})")


@dataclass(frozen=True)
class ModelCard:
    """Description of a model, its training data and its results."""

    name: str
    description: str
    sampling: Pattern
    network: NetworkOptions
    training: dict[str, Any] = field(default_factory=dict)  # data, recipe, seed, versions
    figures: dict[str, Any] = field(default_factory=dict)  # results, each with its N
    licence: str = "Apache-2.0"
    variant: Variant | None = None  # None: a trained model, in float32

    def __post_init__(self) -> None:
        if (self.sampling.rows, self.sampling.columns) != (self.network.rows, self.network.columns):
            raise ValueError("the network and the sampling pattern differ in patch size")

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
        values, network, variant = _read_card(text, cls)
        sampling = pattern_from_dict(values.pop("sampling"))
        return cls(network=NetworkOptions.from_dict(network), sampling=sampling, variant=variant, **values)


@dataclass(frozen=True)
class DetectorCard:
    """Description of a detector, its training data and its results."""

    name: str
    description: str
    network: DetectorOptions
    size: float = 6.0  # pixels: of all its keypoints
    min_score: float = -3.0  # peaks below are no keypoints: about the score of a blank image
    training: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    licence: str = "Apache-2.0"
    variant: Variant | None = None  # None: a trained model, in float32

    def __post_init__(self) -> None:
        if not isinstance(self.size, int | float) or not 0.5 <= self.size <= 1000:
            raise ValueError(f"the size of keypoints must lie between 0.5 and 1000 pixels, not {self.size!r}")
        if not isinstance(self.min_score, int | float) or not math.isfinite(self.min_score):
            raise ValueError(f"the lowest score of keypoints must be a number, not {self.min_score!r}")

    def to_json(self, indent: int | None = None) -> str:
        values = asdict(self)
        if self.variant is None:
            del values["variant"]
        return json.dumps(values, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> DetectorCard:
        """The inverse of ``to_json``; raises ``ValueError`` for anything else."""
        values, network, variant = _read_card(text, cls)
        return cls(network=DetectorOptions.from_dict(network), variant=variant, **values)


def _read_card(text: str, kind: type) -> tuple[dict[str, Any], Any, Variant | None]:
    """Entries of a card, its network as parsed JSON, and its variant."""
    values = parse_json(text)
    if isinstance(values, dict):
        values.setdefault("variant", None)
    check_entries(values, kind, "card")
    if not isinstance(values["training"], dict) or not isinstance(values["figures"], dict):
        raise ValueError("the card's training and figures must be tables")
    variant = values.pop("variant")
    if variant is not None:
        check_entries(variant, Variant, "card's variant")
        variant = Variant(**variant)
    return values, values.pop("network"), variant
