"""The ONNX graph of a model file with its weights inside, and the way back (needs onnx)."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from logpolar.models import Model
from logpolar.models.files import Weights


def filled_graph(model: Model) -> onnx.ModelProto:
    """The graph of the model file with the weights in their places."""
    file = onnx.load_model_from_string(model.graph)
    for tensor in file.graph.initializer:
        if tensor.name in model.weights:
            tensor.CopyFrom(numpy_helper.from_array(model.weights[tensor.name], tensor.name))
    return file


def initializers(file: onnx.ModelProto) -> Weights:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in file.graph.initializer}


def set_initializer(file: onnx.ModelProto, name: str, values: np.ndarray) -> None:
    """Add a constant, or give one another value."""
    kept = [tensor for tensor in file.graph.initializer if tensor.name != name]
    del file.graph.initializer[:]
    file.graph.initializer.extend([*kept, numpy_helper.from_array(np.ascontiguousarray(values), name)])


def leave_out(tensor: TensorProto) -> None:
    """Take a constant's data out: whoever runs the graph supplies them."""
    for content in ("raw_data", "float_data", "int32_data", "int64_data"):
        tensor.ClearField(content)
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    tensor.external_data.add(key="location", value="weights")


def remove_unused(file: onnx.ModelProto) -> None:
    """Take out nodes and constants that no output depends on."""
    wanted = {output.name for output in file.graph.output}
    nodes = []
    for node in reversed(file.graph.node):
        if wanted & set(node.output):
            nodes.append(node)
            wanted |= set(node.input)
    constants = [tensor for tensor in file.graph.initializer if tensor.name in wanted]
    for field, kept in ((file.graph.node, nodes[::-1]), (file.graph.initializer, constants)):
        copies = [type(each).FromString(each.SerializeToString()) for each in kept]
        del field[:]
        field.extend(copies)
    del file.graph.value_info[:]
