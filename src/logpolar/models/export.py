"""Networks to model files, and models to ONNX files for any runtime: the network alone, or end to end.

The ONNX files hold the weights, the card, the model's hash and the convention below in their metadata. End to end the
image is used at full size, as by ``Extractor(max_size=None)``, and keypoints are rows of ``Keypoints.table``.
"""

from __future__ import annotations

import copy
import logging
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
import onnxruntime

from logpolar.errors import MissingExtraError
from logpolar.keypoints import Keypoints
from logpolar.models.cards import ModelCard, NetworkOptions
from logpolar.models.files import Model, write_model
from logpolar.models.runtimes.onnxruntime_cpu import OnnxruntimeDescriber
from logpolar.sampling import Pattern, sample_patches
from logpolar.settings import DESCRIPTOR_SIZE, VERSION

try:
    import onnx
    from onnx import TensorProto, compose, helper

    from logpolar.sampling.onnx_arrays import Graph, OnnxArray
    from logpolar.sampling.onnx_lookup import make_pyramid, sample
except ImportError as missing:
    raise MissingExtraError("writing ONNX files", "onnx") from missing

if TYPE_CHECKING:
    from torch import nn

    from logpolar.models.network import DescriptorNetwork

_CHUNK = 32
"""Keypoints at a time, so that memory stays bounded and values stay in the processor's cache."""

_NETWORK_CONVENTION = (
    "patches (count, rows, columns), float32, intensities in [0, 1], cut as the card's sampling says "
    f"-> descriptors (count, {DESCRIPTOR_SIZE}) of unit length"
)
_END_TO_END_CONVENTION = (
    "image (height, width), float32, gray in [0, 1], and keypoints (count, 4), float32: x, y in pixels with the centre "
    "of the top-left pixel at (0, 0), size = diameter in pixels as in OpenCV, angle in degrees clockwise on the screen "
    f"-> descriptors (count, {DESCRIPTOR_SIZE}) of unit length; NaN for keypoints that are not finite or have no size"
)


def save_model(path: str | Path, network: DescriptorNetwork, card: ModelCard) -> None:
    """Write a model file: the network's weights as float16, its graph, and the card (needs torch)."""
    if card.variant:
        raise ValueError("a torch network is not a variant; use save_variant")
    weights = {
        # Batch normalisation statistics are few and may be small: they stay in float32. The memory layout must be the
        # plain one, unlike that of a network trained in channels-last order.
        name: values.detach().cpu().contiguous().numpy().astype(np.float16 if name.endswith("weight") else np.float32)
        for name, values in network.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    write_model(path, weights, export_graph(network), card)


def export_graph(network: DescriptorNetwork) -> bytes:
    """ONNX graph ``patches`` (count, rows, columns) -> ``descriptors`` (count, 128), the weights left out.

    Weights are initializers under their own names with external data: whoever runs the graph supplies them. The
    metadata hold the network's options.
    """
    graph = _exported(network, network.options)
    _strip(graph, set(network.state_dict()))
    del graph.metadata_props[:]
    graph.metadata_props.add(key="network", value=network.options.to_json())  # to be compared with the card
    return bytes(graph.SerializeToString())


def own_network_file(network: nn.Module, card: ModelCard) -> bytes:
    """The ONNX file of a network that is not ours, weights inside, with the card in its metadata."""
    file = _exported(network, card.network)
    file.doc_string = f"{card.name}: {_NETWORK_CONVENTION}"
    helper.set_model_props(file, {"card": card.to_json(), "convention": _NETWORK_CONVENTION})
    return bytes(file.SerializeToString())


def _exported(network: nn.Module, options: NetworkOptions) -> onnx.ModelProto:
    import torch
    from onnxscript import optimizer

    example = torch.zeros(2, options.rows, options.columns)
    exporter_log = logging.getLogger("torch.onnx")
    previous = exporter_log.level
    try:
        exporter_log.setLevel(logging.ERROR)  # it complains about operators of packages not used here
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                copy.deepcopy(network).cpu().eval(),
                (example,),
                input_names=["patches"],
                output_names=["descriptors"],
                dynamic_shapes=({0: torch.export.Dim("count")},),
                opset_version=18,
                dynamo=True,
                optimize=False,  # would fold the batch normalisation into new, unnamed weights
                verbose=False,
            )
    finally:
        exporter_log.setLevel(previous)
    assert program is not None
    # Runtimes fold a batch normalisation into its convolution only if all its parameters are plain constants.
    optimizer.fold_constants(program.model)
    optimizer.remove_unused_nodes(program.model)
    graph: onnx.ModelProto = program.model_proto
    return graph


def _strip(model: onnx.ModelProto, weights: set[str]) -> None:
    """Remove the data of these weights and the exporter's notes, source paths among them."""
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        del value.metadata_props[:]
    for tensor in model.graph.initializer:
        del tensor.metadata_props[:]
        if tensor.name in weights:
            leave_out(tensor)


def leave_out(tensor: TensorProto) -> None:
    """Remove an initializer's data: whoever runs the graph supplies them."""
    for content in ("raw_data", "float_data", "int32_data", "int64_data"):
        tensor.ClearField(content)
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value="weights")


def network_file(model: Model) -> bytes:
    """The ONNX file of the network alone."""
    return _with_metadata(_checked_graph(model), model, _NETWORK_CONVENTION)


def end_to_end_file(model: Model) -> bytes:
    """The ONNX file of sampler and network."""
    network = compose.add_prefix(_checked_graph(model), "network_")
    graph = Graph()
    descriptors = _describe_in_chunks(graph, model.sampling, network.graph)
    graph.nodes.append(helper.make_node("Identity", [descriptors.name], ["descriptors"]))
    inputs: dict[str, tuple[str | int, ...]] = {"image": ("height", "width"), "keypoints": ("count", 4)}
    whole = helper.make_graph(
        graph.nodes,
        "logpolar",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("descriptors", TensorProto.FLOAT, ("count", DESCRIPTOR_SIZE))],
        list(network.graph.initializer),
    )
    file = helper.make_model(whole, opset_imports=list(network.opset_import), ir_version=network.ir_version)
    return _with_metadata(file, model, _END_TO_END_CONVENTION)


def largest_difference(model: Model, file: bytes, end_to_end: bool) -> float:
    """Largest difference between the file's descriptors, run by onnxruntime, and the library's, on smooth noise."""
    random = np.random.default_rng(0)
    noise = np.asarray(cv2.GaussianBlur(random.random((150, 211), np.float32), (0, 0), 2), np.float32)
    xy, size = random.uniform(0, 150, (_CHUNK + 1, 2)), random.uniform(2, 20, _CHUNK + 1)
    keypoints = Keypoints.from_points(xy, size, random.uniform(0, 360, _CHUNK + 1))
    patches = sample_patches(noise, keypoints, model.sampling)
    given = {"image": noise, "keypoints": keypoints.table} if end_to_end else {"patches": patches}
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return float(np.abs(session.run(None, given)[0] - OnnxruntimeDescriber(model).describe_patches(patches)).max())


def _describe_in_chunks(graph: Graph, pattern: Pattern, network: onnx.GraphProto) -> OnnxArray:
    """Descriptors (count, 128) of the inputs ``image`` and ``keypoints``."""
    keypoints = graph.named("keypoints")
    pyramid = make_pyramid(graph, graph.named("image"), pattern.antialias)
    count = graph.node("Shape", keypoints, kind=TensorProto.INT64, end=1)
    chunks = (count + (_CHUNK - 1)) // _CHUNK
    with graph.body() as nodes:
        # All chunks have the same size: the last is padded with the last keypoint.
        places = graph.named("chunk", TensorProto.INT64) * _CHUNK + np.arange(_CHUNK)
        patches = sample(graph, pyramid, keypoints.take(graph.clip(places, None, count - 1)), pattern)
        nodes.append(helper.make_node("Identity", [patches.name], [network.input[0].name]))
        nodes.extend(network.node)
        nodes.append(helper.make_node("Identity", ["before"], ["again"]))
    body = helper.make_graph(
        nodes,
        "describe",
        [
            helper.make_tensor_value_info("chunk", TensorProto.INT64, ()),
            helper.make_tensor_value_info("before", TensorProto.BOOL, ()),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, ()),
            helper.make_tensor_value_info(network.output[0].name, TensorProto.FLOAT, (_CHUNK, DESCRIPTOR_SIZE)),
        ],
    )
    parts = graph.node("Loop", chunks.reshape(), None, kind=TensorProto.FLOAT, body=body)
    shape = graph.node("Concat", chunks * _CHUNK, graph.integers(DESCRIPTOR_SIZE), axis=0)
    filled = graph.node("Reshape", parts, shape, allowzero=1)  # no keypoints: no rows
    return graph.node("Slice", filled, graph.integers(0), count)


def _checked_graph(model: Model) -> onnx.ModelProto:
    OnnxruntimeDescriber(model, threads=1)  # raises if graph and weights do not fit
    return model.onnx_graph()


def _with_metadata(file: onnx.ModelProto, model: Model, convention: str) -> bytes:
    """The file's content, with the card and the convention in its metadata."""
    file.producer_name, file.producer_version = "logpolar", VERSION
    file.doc_string = f"{model.name}: {convention}"
    words = {"card": model.card.to_json(), "model_hash": model.digest, "convention": convention}
    helper.set_model_props(file, {**words, "network": model.card.network.to_json()})
    onnx.checker.check_model(file, full_check=True)
    return bytes(file.SerializeToString())
