"""Detector networks to model files (needs onnx; a network of torch)."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from logpolar.errors import MissingExtraError
from logpolar.models.cards import DetectorCard, DetectorOptions
from logpolar.models.files import write_model

try:
    from onnx import NodeProto, TensorProto, helper

    from logpolar.models.export import leave_out
except ImportError as missing:
    raise MissingExtraError("writing model files", "onnx") from missing

if TYPE_CHECKING:
    from logpolar.models.detector_network import DetectorNetwork

_OPSET, _IR_VERSION = 18, 9


def save_detector(path: str | Path, network: DetectorNetwork, card: DetectorCard) -> None:
    """Write a model file: the network's folded weights as float16, biases as float32, its graph, and the card."""
    if card.network != network.options:
        raise ValueError("the card is that of another network")
    weights = {
        name: values.cpu().contiguous().numpy().astype(np.float16 if name.endswith("weight") else np.float32)
        for name, values in network.folded().items()
    }
    write_model(path, weights, detector_graph(network.options), card)


def detector_graph(options: DetectorOptions) -> bytes:
    """ONNX graph ``image`` (1, 1, height, width) -> ``scores`` of the same shape, the weights left out.

    The layers of ``DetectorNetwork``, without batch normalisation; see ``export.export_graph`` for the weights.
    """
    nodes: list[NodeProto] = []

    def apply(operator: str, *inputs: str, to: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [to], name=to, **attributes))
        return to

    def convolve(name: str, values: str, relu: bool = True) -> str:
        side, stride = options.layers[name].shape[2], options.layers[name].stride
        shape: dict[str, Any] = {"kernel_shape": [side, side], "pads": [side // 2] * 4, "strides": [stride, stride]}
        values = apply("Conv", values, f"{name}.weight", f"{name}.bias", to=name, **shape)
        return apply("Relu", values, to=f"{name}_relu") if relu else values

    def enlarge(values: str, to: str) -> str:
        return apply("DepthToSpace", values, to=to, blocksize=2, mode="CRD")

    values, levels = "image", []
    for level, count in enumerate(options.blocks):
        values = convolve(f"down{level}", values)
        for number in range(count):
            values = convolve(f"block{level}_{number}", values)
        levels.append(values)
    for level in (1, 0):
        values = enlarge(convolve(f"up{level}", values, relu=False), f"enlarged{level}")
        values = apply("Add", levels[level], values, to=f"sum{level}")
        values = convolve(f"merge{level}", apply("Relu", values, to=f"sum{level}_relu"))
    enlarge(convolve("head", values, relu=False), "scores")
    shape: list[str | int | None] = [1, 1, "height", "width"]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, shape)],
        _weights(options),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)
    helper.set_model_props(model, {"network": json.dumps(asdict(options))})
    return bytes(model.SerializeToString())


def _weights(options: DetectorOptions) -> list[TensorProto]:
    """Initializers of the right shape, without data."""
    tensors = []
    for name, layer in options.layers.items():
        for part, shape in (("weight", layer.shape), ("bias", layer.shape[:1])):
            tensor = TensorProto(name=f"{name}.{part}", data_type=TensorProto.FLOAT, dims=shape)
            leave_out(tensor)
            tensors.append(tensor)
    return tensors
