"""Variants of a model in fewer bits: int8, calibrated on patches, and bfloat16 (needs onnx).

Convention of int8:
    Batch normalisations are folded into their convolutions. Every convolution but the first, whose single input channel
    is the patch itself, takes 8 bit inputs and weights: a value v is stored as round(v / scale) + zero, weights with a
    scale for each output channel and zero = 0 in [-127, 127], inputs with one scale for the whole tensor in [0, 255].
    Sums are whole numbers of 32 bits, biases included. The range of an input is the one that loses the least square
    error over the calibration's patches. All else, the unit length included, is float32.

Convention of bfloat16:
    Graph and weights are those of the model; the runtime computes in bfloat16 where it gains by that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnxruntime

from logpolar.errors import MissingExtraError
from logpolar.models import Model
from logpolar.models.files import Weights
from logpolar.types import FloatArray

try:
    import onnx
    from onnx import helper

    from logpolar.models.onnx_graphs import filled_graph, initializers, leave_out, remove_unused, set_initializer
except ImportError as missing:
    raise MissingExtraError("making a variant of a model", "onnx") from missing

_INPUT_LEVELS, _WEIGHT_LEVELS = 255, 127
_VALUES = 200_000
"""Values of a tensor, drawn from those of all patches, that its range is fitted to."""

_SHARES = np.geomspace(0.2, 1, 60)
"""Ranges that are tried, as shares of that from the smallest to the largest value."""

_MOVING = {"Slice": slice(0, 1), "Concat": slice(None)}
"""Operators that move values and do not change them, and can so move 8 bit ones; which of their inputs hold them."""

_SMALL = 64
"""Constants of up to so many values stay in the graph."""


@dataclass(frozen=True)
class _Range:
    """How values of a tensor become whole numbers from 0 to 255."""

    scale: float
    zero: int

    def rounded(self, values: FloatArray) -> FloatArray:
        steps = np.clip(np.rint(values / self.scale) + self.zero, 0, _INPUT_LEVELS)
        return np.asarray((steps - self.zero) * self.scale, np.float32)


def to_int8(model: Model, patches: FloatArray) -> tuple[Weights, bytes]:
    """Weights and graph of the model in int8, its ranges fitted to patches (N, rows, columns), a thousand or more."""
    file = filled_graph(model)
    _fold_norms(file)
    remove_unused(file)
    weights = initializers(file)
    chosen = [node for node in file.graph.node if node.op_type == "Conv" and _inputs(node, weights) > 1]
    makers = {output: node for node in file.graph.node for output in node.output}
    roots = {node.name: _root(node.input[0], makers) for node in chosen}
    ranges = _fitted_ranges(file, sorted(set(roots.values())), patches)
    _rewrite(file, {name: (root, ranges[root]) for name, root in roots.items()}, weights)
    remove_unused(file)
    large = {name: values for name, values in initializers(file).items() if values.size >= _SMALL}
    for tensor in file.graph.initializer:
        if tensor.name in large:
            leave_out(tensor)
    return large, bytes(file.SerializeToString())


def _inputs(node: onnx.NodeProto, weights: Weights) -> int:
    """Input channels of a convolution."""
    groups = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
    return int(weights[node.input[1]].shape[1] * groups)


def _fold_norms(file: onnx.ModelProto) -> None:
    """Batch normalisations become scales of the weights and biases of the convolutions before them."""
    weights = initializers(file)
    convolutions = {node.output[0]: node for node in file.graph.node if node.op_type == "Conv"}
    for norm in [node for node in file.graph.node if node.op_type == "BatchNormalization"]:
        convolution = convolutions[norm.input[0]]
        scale, shift, mean, variance = (weights[name].astype(np.float64) for name in norm.input[1:])
        epsilon = next((attribute.f for attribute in norm.attribute if attribute.name == "epsilon"), 1e-5)
        gain = scale / np.sqrt(variance + epsilon)
        weight = weights[convolution.input[1]]
        bias = weights[convolution.input[2]] if len(convolution.input) > 2 else np.zeros(len(weight))
        name = convolution.input[1]
        set_initializer(file, name, (weight * gain.reshape(-1, 1, 1, 1)).astype(np.float32))
        set_initializer(file, f"{name}.bias", ((bias - mean) * gain + shift).astype(np.float32))
        del convolution.input[1:]
        convolution.input.extend([name, f"{name}.bias"])
        convolution.output[0] = norm.output[0]
        file.graph.node.remove(norm)


def _root(name: str, makers: dict[str, onnx.NodeProto]) -> str:
    """The tensor whose values, only moved about, make up the named one."""
    maker = makers.get(name)
    if maker is None or maker.op_type not in _MOVING:
        return name
    roots = {_root(source, makers) for source in maker.input[_MOVING[maker.op_type]]}
    return roots.pop() if len(roots) == 1 else name


def _fitted_ranges(file: onnx.ModelProto, names: list[str], patches: FloatArray) -> dict[str, _Range]:
    probe = onnx.ModelProto.FromString(file.SerializeToString())
    probe.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    session = onnxruntime.InferenceSession(probe.SerializeToString(), providers=["CPUExecutionProvider"])
    random = np.random.default_rng(0)
    found: dict[str, list[FloatArray]] = {name: [] for name in names}
    chunks = np.array_split(patches, max(len(patches) // 64, 1))
    for chunk in chunks:
        for name, values in zip(names, session.run(names, {"patches": chunk}), strict=True):
            found[name].append(random.choice(values.ravel(), min(_VALUES // len(chunks), values.size), replace=False))
    return {name: _fit(np.concatenate(values)) for name, values in found.items()}


def _fit(values: FloatArray) -> _Range:
    """The range with the least square error; it always holds 0, which is then exact."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 1e-6)
    ranges = []
    for share in _SHARES.tolist():
        scale = share * (high - low) / _INPUT_LEVELS
        ranges.append(_Range(scale, round(-share * low / scale)))
    errors = [float(np.square(each.rounded(values) - values).mean()) for each in ranges]
    return ranges[int(np.argmin(errors))]


def _rewrite(file: onnx.ModelProto, chosen: dict[str, tuple[str, _Range]], weights: Weights) -> None:
    """Put 8 bit inputs and weights into the chosen convolutions, by name, each with its root and that one's range."""
    makers = {output: node for node in file.graph.node for output in node.output}
    done: set[str] = set()
    nodes: list[onnx.NodeProto] = []

    def as_bytes(name: str, root: str, within: _Range) -> str:
        """The 8 bit version of a tensor that is made of the root's values."""
        made = f"{name}.bytes"
        if made in done:
            return made
        done.add(made)
        if name == root:
            set_initializer(file, f"{root}.scale", np.array(within.scale, np.float32))
            set_initializer(file, f"{root}.zero", np.array(within.zero, np.uint8))
            nodes.append(helper.make_node("QuantizeLinear", [root, f"{root}.scale", f"{root}.zero"], [made]))
            return made
        copy = onnx.NodeProto.FromString(makers[name].SerializeToString())
        sources = _MOVING[copy.op_type]
        moved = [as_bytes(source, root, within) for source in copy.input[sources]]
        rest = list(copy.input[len(moved) :])
        del copy.input[:]
        copy.input.extend([*moved, *rest])
        copy.output[0], copy.name = made, f"{copy.name}.bytes"
        nodes.append(copy)
        return made

    for node in file.graph.node:
        if node.op_type == "Conv" and node.name in chosen:
            root, within = chosen[node.name]
            inputs = as_bytes(node.input[0], root, within)
            values = f"{node.name}.input"
            nodes.append(helper.make_node("DequantizeLinear", [inputs, f"{root}.scale", f"{root}.zero"], [values]))
            nodes.extend(_quantised_weights(file, node, weights, within.scale))
            node.input[0] = values
        nodes.append(node)
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del file.graph.node[:]
    file.graph.node.extend(copies)


def _quantised_weights(
    file: onnx.ModelProto, node: onnx.NodeProto, weights: Weights, input_scale: float
) -> list[onnx.NodeProto]:
    """Weights and bias of a convolution as whole numbers; the nodes that turn them back."""
    name = node.input[1]
    weight = weights[name].astype(np.float64)
    scale = np.maximum(np.abs(weight).reshape(len(weight), -1).max(axis=1), 1e-12) / _WEIGHT_LEVELS
    scale = scale.astype(np.float32)
    steps = np.rint(weight / scale.reshape(-1, 1, 1, 1)).astype(np.int8)
    bias_scale = scale * np.float32(input_scale)
    bias = weights[node.input[2]] if len(node.input) > 2 else np.zeros(len(weight), np.float32)
    for ending, values in (
        ("", steps),
        (".scale", scale),
        (".zero", np.zeros(len(scale), np.int8)),
        (".bias", np.rint(bias / bias_scale).astype(np.int32)),
        (".bias_scale", bias_scale),
        (".bias_zero", np.zeros(len(scale), np.int32)),
    ):
        set_initializer(file, f"{name}{ending}", values)
    del node.input[1:]
    node.input.extend([f"{name}.float", f"{name}.bias_float"])
    back = [f"{name}.scale", f"{name}.zero"], [f"{name}.bias_scale", f"{name}.bias_zero"]
    return [
        helper.make_node("DequantizeLinear", [name, *back[0]], [f"{name}.float"], axis=0),
        helper.make_node("DequantizeLinear", [f"{name}.bias", *back[1]], [f"{name}.bias_float"], axis=0),
    ]
