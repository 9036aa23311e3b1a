"""Models: weights that carry their sampling, their graph and their history in one file.

A model file is a safetensors file. Its tensors are the network's weights (float16; the statistics of the batch
normalisation float32), its metadata hold

    format   "logpolar-model"
    version  "3"
    card     JSON: name, description, sampling, network, training, figures, licence; of a variant also what it is one of
    graph    base64: the ONNX graph of the network, its weights left out: they are the tensors of this file

A variant in fewer bits (``logpolar.quantisation``) has the weights of its own graph, int8 ones as int8, and one more
tensor, ``check``: descriptors of known patches, which a runtime must reproduce before it is let loose on others.

So weights cannot be run with the wrong patches, nor torch and onnxruntime with different weights. No pickles.

Version 2 is read as well: its cards say nothing of channels and strides, for all its networks had the default ones.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as safetensors_bytes

from logpolar.errors import MissingExtraError, ModelError
from logpolar.sampling.patterns import Pattern, check_entries, pattern_from_dict, pattern_to_dict
from logpolar.settings import DESCRIPTOR_SIZE
from logpolar.storage.atomic_io import write_whole
from logpolar.types import FloatArray

if TYPE_CHECKING:
    from logpolar.network import DescriptorNetwork

_FORMAT, _VERSION = "logpolar-model", "3"
_READABLE = ("2", "3")
_SUFFIX = ".safetensors"
_CHECK = "check"

Weights: TypeAlias = dict[str, NDArray[Any]]
"""float32, and in an int8 variant also int8, uint8 and int32."""

Precision: TypeAlias = Literal["float32", "bfloat16", "int8"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "int8")


class PatchSizeError(ValueError):
    """A patch that the strides of a network do not divide."""


@dataclass(frozen=True)
class NetworkOptions:
    """What distinguishes one descriptor network from another."""

    rows: int = 32  # patch size; a multiple of all strides multiplied
    columns: int = 32
    circular: bool = False  # rows (angles) continue from the last to the first in every convolution
    dropout: float = 0.1  # while training, before the last convolution
    normalisation: Literal["patch"] = "patch"  # each patch to zero mean and unit standard deviation
    channels: tuple[int, ...] = (32, 32, 64, 64, 128, 128)  # of each 3 x 3 convolution
    strides: tuple[int, ...] = (1, 1, 2, 1, 2, 1)  # of each, 1 or 2

    def __post_init__(self) -> None:
        if self.normalisation != "patch":
            raise ValueError(f"unknown normalisation {self.normalisation!r} (known: patch)")
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
        if isinstance(values, dict) and not values.keys() & {"channels", "strides"}:  # version 2
            values = {**values, "channels": list(cls.channels), "strides": list(cls.strides)}
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

    precision: Precision  # of the arithmetic
    parent: str  # the model's name
    parent_hash: str  # SHA-256 of its file
    calibration: dict[str, Any] = field(default_factory=dict)  # patches that ranges were fitted to, and their source

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS[1:]:
            raise ValueError(f"unknown precision {self.precision!r} (known: {', '.join(PRECISIONS[1:])})")


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
    def precision(self) -> Precision:
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


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model: card, weights, the ONNX graph without weights, and the hash of the file."""

    card: ModelCard
    weights: Weights
    graph: bytes
    digest: str  # SHA-256 of the model file
    check: FloatArray | None = None  # of a variant: descriptors (K, 128) of the patches of ``logpolar.runtimes``

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def sampling(self) -> Pattern:
        return self.card.sampling

    def network(self) -> DescriptorNetwork:
        """The network in torch, ready to describe."""
        if self.card.variant:
            raise ModelError(
                f"model '{self.name}': torch does not run {self.card.precision} variants; take its parent "
                f"'{self.card.variant.parent}', or the runtime onnxruntime or openvino"
            )
        try:
            import torch

            from logpolar.network import DescriptorNetwork
        except ImportError as error:
            raise MissingExtraError("the torch runtime", "torch") from error
        with torch.device("meta"):  # without memory: its random weights, which take long to make, are not wanted
            network = DescriptorNetwork(self.card.network)
        try:
            weights = {name: torch.tensor(values) for name, values in self.weights.items()}
            network.load_state_dict(weights, assign=True)
        except RuntimeError as error:
            raise ModelError(f"model '{self.name}': the weights do not fit the network its card describes") from error
        return network.eval()


def shipped_models() -> list[str]:
    """Names of the models inside the package."""
    folder = resources.files("logpolar") / "weights"
    return sorted(file.name[: -len(_SUFFIX)] for file in folder.iterdir() if file.name.endswith(_SUFFIX))


def load_model(name_or_path: str | Path) -> Model:
    """A shipped model by its name, or a model file by its path."""
    name = str(name_or_path)
    if name in shipped_models():
        with resources.as_file(resources.files("logpolar") / "weights" / f"{name}{_SUFFIX}") as path:
            return _read(path, name)
    if Path(name).is_file():
        return _read(Path(name), name)
    if Path(name).is_dir():
        raise ModelError(f"{name}: is a folder; name the model file ({_SUFFIX}) in it")
    raise ModelError(f"no model '{name}': neither a file nor one of {', '.join(shipped_models())}")


def save_model(path: str | Path, network: DescriptorNetwork, card: ModelCard) -> None:
    """Write a model file: the network's weights as float16, its graph, and the card."""
    from logpolar.onnx_export import export_graph

    if card.variant:
        raise ValueError("a network in torch is no variant; save_variant writes those")

    weights = {
        # The statistics of the batch normalisation are few and may be small: they stay in float32. The memory layout
        # must be the plain one, which a network trained in channels-last order does not have.
        name: values.detach().cpu().contiguous().numpy().astype(np.float16 if name.endswith("weight") else np.float32)
        for name, values in network.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    _write(path, weights, card, export_graph(network))


def save_variant(path: str | Path, weights: Weights, graph: bytes, card: ModelCard, check: FloatArray) -> None:
    """Write the model file of a variant: its weights, the graph that uses them, the card, the check."""
    if card.variant is None:
        raise ValueError("the card says of no model that this is a variant of it")
    _write(path, {**_halved(weights), _CHECK: check}, card, graph)


def _halved(weights: Weights) -> Weights:
    """In half precision where nothing is lost by that."""
    halves = {name: values.astype(np.float16) for name, values in weights.items() if values.dtype == np.float32}
    exact = {name: half for name, half in halves.items() if np.array_equal(half.astype(np.float32), weights[name])}
    return {**weights, **exact}


def _write(path: str | Path, tensors: Weights, card: ModelCard, graph: bytes) -> None:
    metadata = {
        "format": _FORMAT,
        "version": _VERSION,
        "card": card.to_json(),
        "graph": base64.b64encode(graph).decode(),
    }
    write_whole(Path(path), _in_order(safetensors_bytes(tensors, metadata)))


def _in_order(content: bytes) -> bytes:
    """A safetensors file with its header's metadata sorted: the library writes them in any order, and the same model
    shall be the same file. The header is JSON, after its length in 8 bytes, filled up with spaces."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def _read(path: Path, source: str) -> Model:
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            _check_metadata(metadata, source)
            weights = {name: _as_run(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, TypeError) as error:
        raise ModelError(f"{source}: not a safetensors file, or a damaged one ({error})") from error
    try:
        card = ModelCard.from_json(metadata["card"])
        graph = base64.b64decode(metadata["graph"], validate=True)
    except ValueError as error:
        raise ModelError(f"{source}: damaged model file: {error}") from error
    if not all(np.isfinite(values).all() for values in weights.values()):
        raise ModelError(f"{source}: some of the weights are not finite")
    check = weights.pop(_CHECK, None)
    if card.variant and (check is None or check.ndim != 2):
        raise ModelError(f"{source}: a variant without descriptors to check it by")
    return Model(card, weights, graph, hashlib.sha256(path.read_bytes()).hexdigest(), check)


def _as_run(values: NDArray[Any]) -> NDArray[Any]:
    """Stored in half precision, run in single; integers are what they are."""
    return values.astype(np.float32) if np.issubdtype(values.dtype, np.floating) else values


def _check_metadata(metadata: dict[str, str], source: str) -> None:
    if metadata.get("format") != _FORMAT:
        raise ModelError(f"{source}: not a logpolar model (its metadata do not say format = {_FORMAT})")
    if metadata.get("version") not in _READABLE:
        found, readable = metadata.get("version"), " and ".join(_READABLE)
        raise ModelError(f"{source}: model format version {found}, but this logpolar reads versions {readable}")
    missing = [key for key in ("card", "graph") if key not in metadata]
    if missing:
        raise ModelError(f"{source}: the model file has no {' and no '.join(missing)}")
