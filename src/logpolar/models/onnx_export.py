"""The ONNX graph of a network, with or without its weights (torch and onnx; only needed to write model files)."""

from __future__ import annotations

import copy
import logging
import warnings

import onnx
import torch
from onnxscript import optimizer

from logpolar.models.network import DescriptorNetwork
from logpolar.models.onnx_graphs import leave_out

_OPSET = 18


def export_graph(network: DescriptorNetwork, card: str = "") -> bytes:
    """ONNX graph ``patches`` (count, rows, columns) -> ``descriptors`` (count, 128).

    The network's weights appear as initializers of their own names whose data lie elsewhere: whoever runs the graph
    supplies them. The graph's metadata say which network it is. With a ``card`` the weights are inside, as any ONNX
    runtime wants them, and the card is part of the metadata.
    """
    options = network.options
    example = torch.zeros(2, options.rows, options.columns)
    exporter_log = logging.getLogger("torch.onnx")
    previous = exporter_log.level
    try:
        exporter_log.setLevel(logging.ERROR)  # it complains about operators of packages that are not used here
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                copy.deepcopy(network).cpu().eval(),
                (example,),
                input_names=["patches"],
                output_names=["descriptors"],
                dynamic_shapes=({0: torch.export.Dim("count")},),
                opset_version=_OPSET,
                dynamo=True,
                optimize=False,  # it would fold the batch normalisation into new weights without names
                verbose=False,
            )
    finally:
        exporter_log.setLevel(previous)
    assert program is not None
    # What depends on no input is computed now, the weights themselves excepted: a runtime folds a batch normalisation
    # into its convolution only if it finds plain constants there.
    optimizer.fold_constants(program.model)
    optimizer.remove_unused_nodes(program.model)
    graph = program.model_proto
    _strip(graph, set() if card else set(network.state_dict()))
    del graph.metadata_props[:]
    graph.metadata_props.add(key="network", value=options.to_json())  # to be compared with the card
    if card:
        graph.metadata_props.add(key="card", value=card)
    return bytes(graph.SerializeToString())


def _strip(model: onnx.ModelProto, weights: set[str]) -> None:
    """Take the data of these weights out, and the exporter's notes (source paths among them)."""
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output):
        del value.metadata_props[:]
    for tensor in model.graph.initializer:
        del tensor.metadata_props[:]
        if tensor.name in weights:
            leave_out(tensor)
