"""Model files: weights together with their sampling, their graph and their card.

A model file is a safetensors file. Its tensors are the network's weights (float16; batch normalisation statistics
float32), its metadata

    format   "logpolar-model"
    version  "3"
    card     JSON: name, description, sampling, network, training, figures, licence; variant, if it is one
    graph    base64: the ONNX graph of the network without its weights, which are the tensors of this file
    hash     SHA-256 of the tensors and the graph, checked on load; files of earlier versions have none

A variant in fewer bits (``quantisation.py``) stores the weights of its own graph, int8 ones as int8, and another
tensor, ``check``: descriptors of known patches that a runtime must reproduce.

So weights always run with their own sampling, and torch and onnxruntime share the same weights. No pickles.

Detectors have the same layout, the format "logpolar-detector" and a ``DetectorCard``; matchers: ``matcher_files``.

Version 2 can be read: its cards lack channels and strides, which were the default ones.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import resources
from importlib.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as safetensors_bytes

from logpolar.errors import MissingExtraError, ModelError
from logpolar.models.cards import DetectorCard, ModelCard
from logpolar.models.graphs import check_graph
from logpolar.models.matcher_cards import MatcherCard
from logpolar.sampling.patterns import Pattern
from logpolar.storage.atomic_io import write_whole
from logpolar.storage.inputs import MAX_BYTES, check_regular
from logpolar.types import FloatArray

if TYPE_CHECKING:
    import onnx

    from logpolar.models.detector_network import DetectorNetwork
    from logpolar.models.network import DescriptorNetwork

_FORMAT, _DETECTOR_FORMAT, MATCHER_FORMAT, _VERSION = "logpolar-model", "logpolar-detector", "logpolar-matcher", "3"
_FORMATS: dict[type, str] = {ModelCard: _FORMAT, DetectorCard: _DETECTOR_FORMAT, MatcherCard: MATCHER_FORMAT}
_READABLE = ("2", "3")
_SUFFIX = ".safetensors"
_CHECK = "check"

PAIRS = {
    "logpolar-sf": ("logpolar-96-upright", "logpolar"),
    "logpolar-sf-int8": ("logpolar-96-upright-int8", "logpolar-int8"),
}
"""Descriptor and detector that one name stands for wherever features of images are extracted."""

Weights: TypeAlias = dict[str, NDArray[Any]]
"""float32; in int8 variants also int8, uint8 and int32."""


@dataclass(frozen=True, eq=False)
class Model:
    """A loaded model file."""

    card: ModelCard
    weights: Weights
    graph: bytes  # ONNX, without the weights
    digest: str  # SHA-256 of the model file
    check: FloatArray | None = None  # of a variant: descriptors of ``runtimes.base.check_patches``

    @property
    def name(self) -> str:
        return self.card.name

    @property
    def sampling(self) -> Pattern:
        return self.card.sampling

    def network(self) -> DescriptorNetwork:
        """The network in torch, in evaluation mode."""
        if self.card.variant:
            raise ModelError(
                f"model '{self.name}': torch does not run {self.card.precision} variants; use its parent "
                f"'{self.card.variant.parent}', or the runtime onnxruntime or openvino"
            )
        try:
            import torch

            from logpolar.models.network import DescriptorNetwork
        except ImportError as error:
            raise MissingExtraError("the torch runtime", "torch") from error
        with torch.device("meta"):  # without memory: initialising random weights is slow
            network = DescriptorNetwork(self.card.network)
        try:
            weights = {name: torch.tensor(values) for name, values in self.weights.items()}
            network.load_state_dict(weights, assign=True)
        except RuntimeError as error:
            raise ModelError(f"model '{self.name}': the weights do not fit the network on its card") from error
        return network.eval()

    def check_graph(self) -> None:
        """Raise ``ModelError`` unless the graph is the network of the card, with these weights; see ``graphs``."""
        _check_graph(self)

    def onnx_graph(self) -> onnx.ModelProto:
        """The ONNX graph with the weights inside (needs onnx)."""
        return onnx_graph(self)


@dataclass(frozen=True, eq=False)
class DetectorModel:
    """A loaded model file of a detector: convolutions without batch normalisation, which is folded into them."""

    card: DetectorCard
    weights: Weights
    graph: bytes
    digest: str
    check: FloatArray | None = None  # of a variant: scores of ``detectors.check_image``

    @property
    def name(self) -> str:
        return self.card.name

    def check_graph(self) -> None:
        """Raise ``ModelError`` unless the graph is the network of the card, with these weights; see ``graphs``."""
        _check_graph(self)

    def network(self) -> DetectorNetwork:
        """The network in torch, in evaluation mode."""
        if self.card.variant:
            raise ModelError(
                f"detector '{self.name}': torch does not run it; use its parent '{self.card.variant.parent}'"
            )
        try:
            import torch

            from logpolar.models.detector_network import DetectorNetwork
        except ImportError as error:
            raise MissingExtraError("the torch runtime", "torch") from error
        network = DetectorNetwork(self.card.network)
        weights = {name: torch.tensor(values).float() for name, values in self.weights.items()}
        network.unfold(weights, torch.zeros(1, 64, 64))
        return network.eval()


def onnx_graph(model: Model | DetectorModel) -> onnx.ModelProto:
    """The ONNX graph with the weights inside (needs onnx)."""
    import onnx

    model.check_graph()
    file = onnx.load_model_from_string(model.graph)
    for tensor in file.graph.initializer:
        if tensor.name in model.weights:
            tensor.CopyFrom(onnx.numpy_helper.from_array(model.weights[tensor.name], tensor.name))
    return file


def _check_graph(model: Model | DetectorModel) -> None:
    try:
        check_graph(model.graph, model.card.network, {name: values.shape for name, values in model.weights.items()})
    except (ValueError, KeyError) as error:
        raise ModelError(
            f"model '{model.name}': the graph does not belong to the network on its card ({error})"
        ) from error


Card = TypeVar("Card")
Loaded = TypeVar("Loaded")


def shipped_models() -> list[str]:
    """Names of the descriptor models in the package."""
    return list(shipped_files("weights"))


def shipped_files(folder: str) -> dict[str, Traversable]:
    """Model files in a folder of the package, by name."""
    place = resources.files("logpolar.models") / folder
    files = {file.name[: -len(_SUFFIX)]: file for file in place.iterdir() if file.name.endswith(_SUFFIX)}
    return dict(sorted(files.items()))


def load_model(name_or_path: str | Path) -> Model:
    """Load a shipped model by name, or a model file by path.

    A shipped model that a later one replaced keeps its file, and so its hash, under a new name.
    """
    name = str(name_or_path)
    if name in PAIRS:
        raise ModelError(f"model '{name}' has its own keypoints; for given ones use its descriptor '{PAIRS[name][0]}'")
    model = load_named(name, "model", shipped_files("weights"), _read)
    return replace(model, card=replace(model.card, name=name)) if name in shipped_models() else model


def take_apart(model: str | Path, detector: object = None) -> tuple[str | Path, str | None]:
    """Names of the descriptor and, of a pair, its detector; a pair refuses another ``detector``."""
    if str(model) not in PAIRS:
        return model, None
    if detector is not None:
        raise ModelError(
            f"model '{model}' has its own detector; for another one use its descriptor '{PAIRS[str(model)][0]}'"
        )
    return PAIRS[str(model)]


def shipped_detectors() -> list[str]:
    """Names of the detector models in the package."""
    return list(shipped_files("detector_weights"))


def is_detector(name_or_path: str | Path) -> bool:
    """Whether this is a shipped detector's name, or the model file of a detector."""
    if str(name_or_path) in shipped_detectors():
        return True
    return stored_format(name_or_path) == _DETECTOR_FORMAT


def stored_format(path: str | Path) -> str | None:
    """The format of a model file; None for anything else."""
    with suppress(SafetensorError, OSError):
        if Path(path).is_file():
            with safe_open(path, framework="numpy") as file:
                return (file.metadata() or {}).get("format")
    return None


def load_detector(name_or_path: str | Path) -> DetectorModel:
    """Load a shipped detector by name, or a model file by path."""
    return load_named(str(name_or_path), "detector", shipped_files("detector_weights"), _read_detector)


def load_named(name: str, what: str, shipped: Mapping[str, Traversable], read: Callable[[Path, str], Loaded]) -> Loaded:
    """What ``read`` makes of a shipped file, by its name, or of one by its path."""
    if name in shipped:
        with resources.as_file(shipped[name]) as path:
            return read(path, name)
    if Path(name).is_file():
        return read(Path(name), name)
    if Path(name).is_dir():
        raise ModelError(f"{name}: is a folder; name the model file ({_SUFFIX}) in it")
    known = f"nor one of {', '.join(shipped)}" if shipped else f"nor shipped; name the file ({_SUFFIX}) of one"
    raise ModelError(f"no {what} '{name}': neither a file {known}")


def save_variant(
    path: str | Path, weights: Weights, graph: bytes, card: ModelCard | DetectorCard, check: FloatArray
) -> None:
    """Write the model file of a variant; ``check``: its descriptors of ``check_patches``, or scores."""
    if card.variant is None:
        raise ValueError("the card is not that of a variant")
    write_model(path, {**_halved(weights), _CHECK: check}, graph, card)


def _halved(weights: Weights) -> Weights:
    """In half precision where that is exact."""
    halves = {name: values.astype(np.float16) for name, values in weights.items() if values.dtype == np.float32}
    exact = {name: half for name, half in halves.items() if np.array_equal(half.astype(np.float32), weights[name])}
    return {**weights, **exact}


def write_model(path: str | Path, tensors: Weights, graph: bytes, card: ModelCard | DetectorCard | MatcherCard) -> None:
    """Write a model file from its parts; see ``export.save_model`` for a network of torch."""
    metadata = {
        "format": _FORMATS[type(card)],
        "version": _VERSION,
        "card": card.to_json(),
        "graph": base64.b64encode(graph).decode(),
        "hash": _content_hash(tensors, graph),
    }
    write_whole(Path(path), _in_order(safetensors_bytes(tensors, metadata)))


def _content_hash(tensors: Mapping[str, NDArray[Any]], graph: bytes) -> str:
    digest = hashlib.sha256(graph)
    for name, values in sorted(tensors.items()):
        digest.update(repr((name, str(values.dtype), values.shape)).encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def _in_order(content: bytes) -> bytes:
    """A safetensors file with sorted metadata, which the library writes in any order: equal models, equal files.

    The header is JSON, preceded by its length in 8 bytes and padded with spaces."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


class Parts(NamedTuple):
    """Content of a model file: the card as text."""

    card: str
    weights: Weights
    graph: bytes
    digest: str


def read_parts(path: Path, source: str, kind: str) -> Parts:
    check_regular(path, ModelError, MAX_BYTES)
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            _check_metadata(metadata, source, kind)
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, TypeError) as error:
        raise ModelError(f"{source}: not a safetensors file, or damaged ({error})") from error
    try:
        graph = base64.b64decode(metadata["graph"], validate=True)
    except ValueError as error:
        raise ModelError(f"{source}: damaged model file: {error}") from error
    if metadata.get("hash", "") not in ("", _content_hash(stored, graph)):
        raise ModelError(f"{source}: damaged model file: its weights are not those that were written")
    weights = {name: _as_run(values) for name, values in stored.items()}
    if not all(np.isfinite(values).all() for values in weights.values()):
        raise ModelError(f"{source}: some weights are not finite")
    return Parts(metadata["card"], weights, graph, hashlib.sha256(path.read_bytes()).hexdigest())


def _read(path: Path, source: str) -> Model:
    parts = read_parts(path, source, _FORMAT)
    card = parse_card(ModelCard.from_json, parts, source)
    check = parts.weights.pop(_CHECK, None)
    if card.variant and (check is None or check.ndim != 2):
        raise ModelError(f"{source}: a variant without descriptors to check it against")
    return Model(card, parts.weights, parts.graph, parts.digest, check)


def _read_detector(path: Path, source: str) -> DetectorModel:
    parts = read_parts(path, source, _DETECTOR_FORMAT)
    card = parse_card(DetectorCard.from_json, parts, source)
    check = parts.weights.pop(_CHECK, None)
    if card.variant and (check is None or check.ndim != 2):
        raise ModelError(f"{source}: a variant without scores to check it against")
    return DetectorModel(card, parts.weights, parts.graph, parts.digest, check)


def parse_card(read: Callable[[str], Card], parts: Parts, source: str) -> Card:
    try:
        return read(parts.card)
    except ValueError as error:
        raise ModelError(f"{source}: damaged model file: {error}") from error


def _as_run(values: NDArray[Any]) -> NDArray[Any]:
    """Half precision to single; integers unchanged."""
    return values.astype(np.float32) if np.issubdtype(values.dtype, np.floating) else values


def _check_metadata(metadata: dict[str, str], source: str, kind: str) -> None:
    found = metadata.get("format")
    words = {_FORMAT: "a descriptor", _DETECTOR_FORMAT: "a detector", MATCHER_FORMAT: "a matcher"}
    if found in words and found != kind:
        raise ModelError(f"{source}: is the model of {words[found]}, not of {words[kind]}")
    if found != kind:
        raise ModelError(f"{source}: not a logpolar model (no format = {kind} in its metadata)")
    if metadata.get("version") not in _READABLE:
        found, readable = metadata.get("version"), " and ".join(_READABLE)
        raise ModelError(f"{source}: model format version {found}, but this logpolar reads versions {readable}")
    missing = [key for key in ("card", "graph") if key not in metadata]
    if missing:
        raise ModelError(f"{source}: the model file has no {' and no '.join(missing)}")
