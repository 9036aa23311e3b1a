"""Files of learned matchers: the format of model files, with the graphs of a matcher's three pieces.

``graph`` holds, as JSON, the ONNX graphs of the pieces in base64. They have no weights: those are inputs, named as in
the piece, so that one graph runs every layer, and a layer is run only if it is needed.

    encode   descriptors, table                                        -> states, phases within and across images
    within   states, phases, states and phases of the whole image      -> states
    across   the same of both images, with their descriptors           -> states, and what ``Head`` makes of them

``states`` may be some rows of an image, which bounds the memory of attention.

Weights are stored as ``matcher_packing`` says, and are float32 here.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from logpolar.errors import MissingExtraError, ModelError
from logpolar.models.files import (
    MATCHER_FORMAT,
    Weights,
    load_named,
    parse_card,
    read_parts,
    shipped_files,
    stored_format,
    write_model,
)
from logpolar.models.graphs import check_piece
from logpolar.models.matcher_cards import MatcherCard
from logpolar.models.matcher_packing import pack, unpack
from logpolar.storage.inputs import parse_json

if TYPE_CHECKING:
    from logpolar.models.matcher_network import MatcherNetwork

_FOLDER = "matcher_weights"

DEFAULT_ALIAS = "learned"

DEFAULT_MATCHER = "logpolar-sf-matcher"
"""The shipped matcher that ``learned`` names."""

PIECES = {
    "encode": (
        ("descriptors", "table"),
        ("states", "own_cosine", "own_sine", "across_cosine", "across_sine"),
    ),
    "within": (("states", "cosine", "sine", "keys", "key_cosine", "key_sine"), ("new_states",)),
    "across": (
        ("states", "cosine", "sine", "keys", "key_cosine", "key_sine", "descriptors", "key_descriptors"),
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
    return list(shipped_files(_FOLDER))


def is_matcher(name_or_path: str | Path) -> bool:
    """Whether this is a shipped matcher's name, or the file of one."""
    return str(name_or_path) in shipped_matchers() or stored_format(name_or_path) == MATCHER_FORMAT


def load_matcher(name_or_path: str | Path) -> MatcherModel:
    """Load a shipped matcher by name (``learned``: the default), or the file of one by path."""
    name = DEFAULT_MATCHER if str(name_or_path) == DEFAULT_ALIAS else str(name_or_path)
    return load_named(name, "matcher", shipped_files(_FOLDER), _read)


def _read(path: Path, source: str) -> MatcherModel:
    parts = read_parts(path, source, MATCHER_FORMAT)
    card = parse_card(MatcherCard.from_json, parts, source)
    try:
        graphs = {str(name): base64.b64decode(graph, validate=True) for name, graph in parse_json(parts.graph).items()}
        weights = unpack(parts.weights)
    except (ValueError, AttributeError, TypeError) as error:
        raise ModelError(f"{source}: damaged model file: {error}") from error
    return MatcherModel(card, weights, graphs, parts.digest)


def write_matcher(path: str | Path, weights: Weights, graphs: dict[str, bytes], card: MatcherCard) -> None:
    """Write the file of a matcher from its parts, weights in float32; ``matcher_export.save_matcher``: of a network."""
    content = json.dumps({name: base64.b64encode(graph).decode() for name, graph in sorted(graphs.items())})
    write_model(path, pack(weights), content.encode(), card)
