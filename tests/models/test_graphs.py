"""Graphs that are not the network of the card never reach a runtime."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import onnx
import pytest
from onnx import TensorProto, helper

from logpolar.errors import ModelError
from logpolar.models import load_model, shipped_models
from logpolar.models.graphs import check_graph


def changed(model, change):
    """The model with a graph that ``change`` was applied to."""
    file = onnx.load_model_from_string(model.graph)
    change(file)
    return replace(model, graph=file.SerializeToString())


def first(file, operator):
    return next(node for node in file.graph.node if node.op_type == operator)


def loop(file):
    body = helper.make_graph([], "body", [], [])
    file.graph.node.append(helper.make_node("Loop", ["", ""], ["x"], body=body))


def conditional(file):
    first(file, "Relu").attribute.append(helper.make_attribute("then", helper.make_graph([], "g", [], [])))


def other_file(file):
    file.graph.initializer[0].external_data[0].value = "../../etc/passwd"


def tensor_elsewhere(file):
    tensor = TensorProto(name="t", data_type=1, dims=[3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    node = first(file, "Constant")
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("value", tensor))


def foreign_operator(file):
    first(file, "Relu").domain = "com.example"


def foreign_library(file):
    file.opset_import.add(domain="com.example", version=1)


def function(file):
    file.functions.add(name="f")


def other_stride(file):
    strides = next(each for each in first(file, "Conv").attribute if each.name == "strides")
    strides.ints[:] = [3, 3]


def other_shape(file):
    file.graph.initializer[0].dims[0] += 1


def without_a_layer(file):
    file.graph.node.remove(first(file, "Conv"))


def other_output(file):
    file.graph.output[0].name = "patches"


def other_network(file):
    del file.metadata_props[:]


def many_operators(file):
    file.graph.node.extend([helper.make_node("Relu", ["patches"], [f"x{number}"]) for number in range(1000)])


def doubling(file):
    """To 4 GB in 30 steps."""
    names = ["patches", *(f"x{number}" for number in range(30))]
    for before, after in pairwise(names):
        file.graph.node.append(helper.make_node("Concat", [before, before], [after], axis=0))


CHANGES = (
    *(loop, conditional, other_file, tensor_elsewhere, foreign_operator, foreign_library, function, other_stride),
    *(other_shape, without_a_layer, other_output, other_network, many_operators, doubling),
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_graphs_that_are_something_else(tiny_model, change):
    with pytest.raises(ModelError, match="does not belong to the network") as caught:
        changed(tiny_model, change).check_graph()
    assert "\n" not in str(caught.value)


def test_every_shipped_model_passes():
    for name in shipped_models():
        load_model(name).check_graph()


def test_damaged_bytes_are_refused_or_read(tiny_model):
    """Cut anywhere, and with any byte of the first kilobyte changed."""
    graph, network = tiny_model.graph, tiny_model.card.network
    shapes = {name: values.shape for name, values in tiny_model.weights.items()}
    damaged = [graph[:length] for length in range(0, len(graph), 997)]
    damaged += [graph[:place] + b"\xff" + graph[place + 1 :] for place in range(0, 1000, 37)]
    refused = 0
    for each in damaged:
        try:
            check_graph(each, network, shapes)
        except (ValueError, KeyError):
            refused += 1
    assert refused >= len(graph) // 997
