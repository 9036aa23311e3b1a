"""Files of learned matchers: the format of model files, with the graphs of a matcher's three pieces.

``graph`` holds, as JSON, the ONNX graphs of the pieces in base64. They have no weights: those are inputs, named as in
the piece, so that one graph runs every layer, and a layer is run only if it is needed.

    encode   descriptors, table                                        -> states, phases within and across images
    within   states, phases, states and phases of the whole image      -> states
    across   states, phases, states and phases of the other image      -> states, and what ``Head`` makes of them

``states`` may be some rows of an image, which bounds the memory of attention.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from logpolar.errors import MissingExtraError, ModelError
from logpolar.models.files import Weights, read_parts, write_parts
from logpolar.models.graphs import check_piece
from logpolar.models.matcher_cards import MatcherCard

if TYPE_CHECKING:
    from logpolar.models.matcher_network import MatcherNetwork

_FORMAT, _VERSION = "logpolar-matcher", "1"
_SUFFIX = ".safetensors"

DEFAULT_MATCHER = "logpolar-96-matcher"
"""The shipped matcher that ``learned`` names."""

PIECES = {
    "encode": (
        ("descriptors", "table"),
        ("states", "own_cosine", "own_sine", "across_cosine", "across_sine"),
    ),
    "within": (("states", "cosine", "sine", "keys", "key_cosine", "key_sine"), ("new_states",)),
    "across": (
        ("states", "cosine", "sine", "keys", "key_cosine", "key_sine"),
        ("new_states", "vectors", "matchability", "confidence"),
    ),
}
"""Inputs, without the weights, and outputs of each graph."""


@dataclass(frozen=True, eq=False)
class MatcherModel:
    """A loaded file of a learned matcher."""

    card: MatcherCard
    weights: Weights
    graphs: dict[str, bytes]
    digest: str  # SHA-256 of the file

    def piece_weights(self, piece: str, layer: int = 0) -> Weights:
        """Weights of a piece by the names in its graph."""
        prefix = "encoder." if piece == "encode" else f"layers.{layer}."
        named = {name[len(prefix) :]: values for name, values in self.weights.items() if name.startswith(prefix)}
        if piece == "encode":
            return named
        return {name: values for name, values in named.items() if name.startswith("within.") == (piece == "within")}

    def check_graphs(self) -> None:
        """Raise ``ModelError`` unless all graphs are there, take these weights and have only harmless operators."""
        for piece, (inputs, outputs) in PIECES.items():
            try:
                check_piece(self.graphs[piece], [*inputs, *sorted(self.piece_weights(piece))], outputs)
            except (ValueError, KeyError) as error:
                raise ModelError(f"matcher '{self.card.name}': damaged graph '{piece}' ({error})") from error

    def network(self) -> MatcherNetwork:
        """The network in torch, in evaluation mode."""
        try:
            import torch

            from logpolar.models.matcher_network import MatcherNetwork
        except ImportError as error:
            raise MissingExtraError("the torch runtime", "torch") from error
        network = MatcherNetwork(self.card.network)
        try:
            network.load_state_dict({name: torch.tensor(values) for name, values in self.weights.items()})
        except RuntimeError as error:
            raise ModelError(f"matcher '{self.card.name}': the weights do not fit the network on its card") from error
        return network.eval()


def shipped_matchers() -> list[str]:
    """Names of the matchers in the package."""
    folder = resources.files("logpolar.models") / "matchers"
    names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
    return sorted(name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX))


def load_matcher(name_or_path: str | Path) -> MatcherModel:
    """Load a shipped matcher by name (``learned``: the default), or the file of one by path."""
    name = DEFAULT_MATCHER if str(name_or_path) == "learned" else str(name_or_path)
    if name in shipped_matchers():
        with resources.as_file(resources.files("logpolar.models") / "matchers" / f"{name}{_SUFFIX}") as path:
            return _read(path, name)
    if Path(name).is_file():
        return _read(Path(name), name)
    known = ", ".join(["nearest", "learned", *shipped_matchers()])
    raise ModelError(f"no matcher '{name}': neither a file nor one of {known}")


def _read(path: Path, source: str) -> MatcherModel:
    weights, content, text = read_parts(path, source, _FORMAT, (_VERSION,))
    try:
        card = MatcherCard.from_json(text)
        graphs = {str(name): base64.b64decode(graph, validate=True) for name, graph in json.loads(content).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise ModelError(f"{source}: damaged model file: {error}") from error
    return MatcherModel(card, weights, graphs, hashlib.sha256(path.read_bytes()).hexdigest())


def write_matcher(path: str | Path, weights: Weights, graphs: dict[str, bytes], card: MatcherCard) -> None:
    """Write the file of a matcher from its parts; see ``matcher_export.save_matcher`` for a network of torch."""
    content = json.dumps({name: base64.b64encode(graph).decode() for name, graph in sorted(graphs.items())})
    write_parts(path, weights, content.encode(), card.to_json(), (_FORMAT, _VERSION))
