"""Models: weights that carry their sampling, their graph and their history in one file.

A model file is a safetensors file. Its tensors are the network's weights (float16; the statistics of the batch
normalisation float32), its metadata hold

    format   "logpolar-model"
    version  "2"
    card     JSON: name, description, sampling, network, training, figures, licence
    graph    base64: the ONNX graph of the network, its weights left out: they are the tensors of this file

so weights cannot be run with the wrong patches, nor torch and onnxruntime with different weights. No pickles.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as safetensors_bytes

from logpolar.errors import MissingExtraError, ModelError
from logpolar.keypoints import FloatArray
from logpolar.outputs import write_whole
from logpolar.sampling.patterns import Pattern, check_entries, pattern_from_dict, pattern_to_dict

if TYPE_CHECKING:
    from logpolar.network import DescriptorNetwork

_FORMAT, _VERSION = "logpolar-model", "2"
_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class NetworkOptions:
    """What distinguishes one descriptor network from another."""

    rows: int = 32  # patch size; a multiple of 4
    columns: int = 32
    circular: bool = False  # rows (angles) continue from the last to the first in every convolution
    dropout: float = 0.1  # while training, before the last convolution
    normalisation: Literal["patch"] = "patch"  # each patch to zero mean and unit standard deviation

    def __post_init__(self) -> None:
        if self.normalisation != "patch":
            raise ValueError(f"unknown normalisation {self.normalisation!r} (known: patch)")
        if not isinstance(self.circular, bool):
            raise ValueError(f"circular must be true or false, not {self.circular!r}")
        sides = (self.rows, self.columns)
        if not all(isinstance(side, int) and side >= 4 and side % 4 == 0 for side in sides):
            raise ValueError(f"rows and columns must be multiples of 4, not {self.rows} x {self.columns}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must lie in [0, 1), not {self.dropout}")

    def to_json(self) -> str:
        return json.dumps(asdict(self))


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

    def __post_init__(self) -> None:
        if (self.sampling.rows, self.sampling.columns) != (self.network.rows, self.network.columns):
            raise ValueError("the network's patch size is not that of the sampling pattern")

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps({**asdict(self), "sampling": pattern_to_dict(self.sampling)}, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> ModelCard:
        """The inverse of ``to_json``; raises ``ValueError`` for anything else."""
        values = json.loads(text)
        check_entries(values, cls, "card")
        check_entries(values["network"], NetworkOptions, "card's network")
        if not isinstance(values["training"], dict) or not isinstance(values["figures"], dict):
            raise ValueError("the card's training and figures must be tables")
        network, sampling = NetworkOptions(**values.pop("network")), pattern_from_dict(values.pop("sampling"))
        return cls(network=network, sampling=sampling, **values)


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model: card, weights in float32, the ONNX graph without weights, and the hash of the file."""

    card: ModelCard
    weights: dict[str, FloatArray]
    graph: bytes
    digest: str  # SHA-256 of the model file

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def sampling(self) -> Pattern:
        return self.card.sampling

    def network(self) -> DescriptorNetwork:
        """The network in torch, ready to describe."""
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

    weights = {
        # The statistics of the batch normalisation are few and may be small: they stay in float32. The memory layout
        # must be the plain one, which a network trained in channels-last order does not have.
        name: values.detach().cpu().contiguous().numpy().astype(np.float16 if name.endswith("weight") else np.float32)
        for name, values in network.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    metadata = {
        "format": _FORMAT,
        "version": _VERSION,
        "card": card.to_json(),
        "graph": base64.b64encode(export_graph(network)).decode(),
    }
    write_whole(Path(path), _in_order(safetensors_bytes(weights, metadata)))


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
            weights = {name: file.get_tensor(name).astype(np.float32) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, TypeError) as error:
        raise ModelError(f"{source}: not a safetensors file, or a damaged one ({error})") from error
    try:
        card = ModelCard.from_json(metadata["card"])
        graph = base64.b64decode(metadata["graph"], validate=True)
    except ValueError as error:
        raise ModelError(f"{source}: damaged model file: {error}") from error
    if not all(np.isfinite(values).all() for values in weights.values()):
        raise ModelError(f"{source}: some of the weights are not finite")
    return Model(card, weights, graph, hashlib.sha256(path.read_bytes()).hexdigest())


def _check_metadata(metadata: dict[str, str], source: str) -> None:
    if metadata.get("format") != _FORMAT:
        raise ModelError(f"{source}: not a logpolar model (its metadata do not say format = {_FORMAT})")
    if metadata.get("version") != _VERSION:
        found = metadata.get("version")
        raise ModelError(f"{source}: model format version {found}, but this logpolar reads version {_VERSION}")
    missing = [key for key in ("card", "graph") if key not in metadata]
    if missing:
        raise ModelError(f"{source}: the model file has no {' and no '.join(missing)}")
