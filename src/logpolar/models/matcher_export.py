"""A matcher's network to its file: weights, and the ONNX graphs of its pieces.

The graphs are written out here rather than by torch's exporter: it takes minutes, folds weights into constants, and
knows no graph that serves all layers. ``tests/models/test_matcher_export.py`` holds the two together.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from logpolar.errors import MissingExtraError
from logpolar.models.matcher_cards import POSITION_OCTAVES, TABLE_COLUMNS, MatcherCard, MatcherOptions
from logpolar.models.matcher_files import PIECES, write_matcher

try:
    import onnx
    from onnx import TensorProto, helper

    from logpolar.sampling.onnx_arrays import Graph, OnnxArray
except ImportError as missing:
    raise MissingExtraError("writing ONNX files", "onnx") from missing

if TYPE_CHECKING:
    from logpolar.models.matcher_network import MatcherNetwork

_EPSILON = 1e-5
"""Of layer normalisation, as in torch."""


def save_matcher(path: str | Path, network: MatcherNetwork, card: MatcherCard) -> None:
    """Write the file of a matcher: weights, graphs and card."""
    weights = {
        name: values.detach().float().cpu().contiguous().numpy() for name, values in network.state_dict().items()
    }
    shapes = {name: values.shape for name, values in weights.items()}
    write_matcher(path, weights, make_pieces(network.options, network.encoder.multiples.tolist(), shapes), card)


def make_pieces(
    options: MatcherOptions, multiples: list[float], shapes: dict[str, tuple[int, ...]]
) -> dict[str, bytes]:
    """The graphs of ``PIECES``; ``multiples`` of the angles in the phases, ``shapes`` of all weights of the network."""
    makers = {
        "encode": (_Encode(options, multiples), "encoder.", ("",)),
        "within": (_Within(options), "layers.0.", ("within.",)),
        "across": (_Across(options), "layers.0.", ("across.", "lookup.", "norm.", "widen.", "narrow.", "head.")),
    }
    found = {}
    for name, (maker, prefix, kinds) in makers.items():
        own = {each[len(prefix) :]: shape for each, shape in shapes.items() if each.startswith(prefix)}
        found[name] = maker.finish(name, {key: shape for key, shape in own.items() if key.startswith(kinds)})
    return found


class _Piece(ABC):
    """A graph under construction; weights are found by their names in the piece."""

    def __init__(self, options: MatcherOptions) -> None:
        self.options, self.graph = options, Graph()
        self.results = self.build()

    @abstractmethod
    def build(self) -> tuple[OnnxArray, ...]:
        """Its results."""

    def linear(self, values: OnnxArray, name: str) -> OnnxArray:
        weight, bias = (self.graph.named(f"{name}.{kind}") for kind in ("weight", "bias"))
        return self.graph.node("Gemm", values, weight, bias, transB=1)

    def norm(self, values: OnnxArray, name: str) -> OnnxArray:
        weight, bias = (self.graph.named(f"{name}.{kind}") for kind in ("weight", "bias"))
        return self.graph.node("LayerNormalization", values, weight, bias, axis=-1, epsilon=_EPSILON)

    def split(self, values: OnnxArray, count: int, axis: int) -> list[OnnxArray]:
        return self.graph.outputs("Split", (values,), [None] * count, axis=axis, num_outputs=count)

    def attention(self, name: str) -> OnnxArray:
        """``Attention`` of the inputs, without a mask."""
        states, keys = self.graph.named("states"), self.graph.named("keys")
        weights, biases = (
            self.split(self.graph.named(f"{name}.query_key_value.{kind}"), 3, 0) for kind in ("weight", "bias")
        )
        here, there = self.norm(states, f"{name}.norm"), self.norm(keys, f"{name}.norm")
        query, key, value = (
            self.graph.node("Gemm", each, weight, bias, transB=1).reshape(
                0, self.options.heads, self.options.head_width
            )
            for each, weight, bias in zip((here, there, there), weights, biases, strict=True)
        )
        query = self._turned(query, "cosine", "sine") * (1 / math.sqrt(self.options.head_width))
        key = self._turned(key, "key_cosine", "key_sine")
        query, value = (self.graph.node("Transpose", each, perm=[1, 0, 2]) for each in (query, value))
        logits = self.graph.node("MatMul", query, self.graph.node("Transpose", key, perm=[1, 2, 0]))
        found = self.graph.node("MatMul", self.graph.node("Softmax", logits, axis=-1), value)
        flat = self.graph.node("Transpose", found, perm=[1, 0, 2]).reshape(0, self.options.width)
        return states + self.linear(flat, f"{name}.out")

    def _turned(self, values: OnnxArray, cosine: str, sine: str) -> OnnxArray:
        """Rotated by the phases, less the last channel, which holds the mask and here is 0."""
        x, y = self.split(values, 2, 2)
        cos, sin = self.graph.named(cosine), self.graph.named(sine)
        turned = self.graph.node("Concat", x * cos - y * sin, x * sin + y * cos, axis=2)
        return self.graph.node("Slice", turned, *map(self.graph.integers, (0, -1, 2)))

    def finish(self, name: str, weights: dict[str, tuple[int, ...]]) -> bytes:
        """The graph, with its weights as further inputs, sorted by name."""
        inputs, outputs = PIECES[name]
        shapes: dict[str, tuple[int | str, ...]] = {each: self._shape(each) for each in inputs}
        shapes |= {each: tuple(weights[each]) for each in sorted(weights)}
        for result, output in zip(self.results, outputs, strict=True):
            self.graph.nodes.append(helper.make_node("Identity", [result.name], [output]))
        body = helper.make_graph(
            self.graph.nodes,
            name,
            [helper.make_tensor_value_info(each, TensorProto.FLOAT, shape) for each, shape in shapes.items()],
            [helper.make_tensor_value_info(each, TensorProto.FLOAT, self._shape(each)) for each in outputs],
        )
        model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        onnx.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString())

    def _shape(self, name: str) -> tuple[int | str, ...]:
        rows = "others" if name.startswith("key") else "count"
        if name.endswith(("cosine", "sine")):
            return rows, self.options.heads, self.options.head_width // 2
        inputs, width = self.options.inputs, self.options.width
        others = {"descriptors": inputs, "key_descriptors": inputs, "table": TABLE_COLUMNS, "vectors": width + inputs}
        columns = others.get(name, width)
        return (rows,) if name in ("matchability", "confidence") else (rows, columns)


class _Encode(_Piece):
    def __init__(self, options: MatcherOptions, multiples: list[float]) -> None:
        self.multiples = multiples
        super().__init__(options)

    def build(self) -> tuple[OnnxArray, ...]:
        graph, table = self.graph, self.graph.named("table")

        def columns(*numbers: int) -> OnnxArray:
            return table.take(graph.integers(*numbers), 1)

        size, angle, angle_known = columns(2), columns(3), columns(5)
        shape = graph.node(
            "Concat", size, graph.cos(angle) * angle_known, graph.sin(angle) * angle_known, columns(4, 5), axis=1
        )
        states = self.linear(graph.named("descriptors"), "descriptor") + self.linear(shape, "shape")
        octaves = np.exp2(np.arange(POSITION_OCTAVES))[None] * (math.pi / 2)
        phases = [columns(axis) * octaves for axis in (0, 1)]
        waves = graph.node("Concat", *map(graph.cos, phases), *map(graph.sin, phases), axis=1)
        states = states + self.linear(waves, "position")
        phase = angle * np.array([self.multiples])
        of_size = [graph.node("MatMul", size, graph.named("size").take(graph.integers(row), 0)) for row in (0, 1)]
        within = graph.node("MatMul", columns(0, 1), graph.named("place")) + of_size[0] + phase
        return states, *self._turn(within), *self._turn(of_size[1] + phase)

    def _turn(self, phases: OnnxArray) -> tuple[OnnxArray, OnnxArray]:
        phases = phases.reshape(0, self.options.heads, self.options.head_width // 2 - 1)
        phases = self.graph.node("Pad", phases, self.graph.integers(0, 0, 0, 0, 0, 1))
        return self.graph.cos(phases), self.graph.sin(phases)


class _Within(_Piece):
    def build(self) -> tuple[OnnxArray, ...]:
        return (self.attention("within"),)


class _Across(_Piece):
    def build(self) -> tuple[OnnxArray, ...]:
        states = self.lookup(self.attention("across"))
        hidden = self.linear(self.norm(states, "norm"), "widen")
        bent = hidden * 0.5 * (self.graph.node("Erf", hidden * math.sqrt(0.5)) + 1.0)
        states = states + self.linear(bent, "narrow")
        values = self.norm(states, "head.norm")
        learned = self.linear(values, "head.project") * self.options.width**-0.25
        likeness = self.graph.named("descriptors") * self.graph.named("head.sharpness")
        vectors = self.graph.node("Concat", learned, likeness, axis=1)
        logits = (self.linear(values, f"head.{name}").reshape(-1) for name in ("matchability", "confidence"))
        return states, vectors, *logits

    def lookup(self, states: OnnxArray) -> OnnxArray:
        """``Lookup`` of the inputs, without a mask."""
        value = self.linear(self.norm(self.graph.named("keys"), "lookup.norm"), "lookup.value")
        query = self.graph.named("descriptors") * self.graph.named("lookup.sharpness")
        key = self.graph.node("Transpose", self.graph.named("key_descriptors"), perm=[1, 0])
        weights = self.graph.node("Softmax", self.graph.node("MatMul", query, key), axis=-1)
        return states + self.linear(self.graph.node("MatMul", weights, value), "lookup.out")
