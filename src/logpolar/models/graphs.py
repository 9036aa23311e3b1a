"""ONNX graphs of model files, checked before a runtime sees them: the network of the card, and nothing else.

A graph from a stranger could loop for ever or ask for files by name. What is checked is read from the bytes themselves,
since onnx is not part of every install: ONNX is protobuf, fields of a number and a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from logpolar.models.cards import DetectorOptions, NetworkOptions
from logpolar.settings import DESCRIPTOR_SIZE
from logpolar.storage.inputs import parse_json

_OPERATORS = frozenset(
    {
        *(
            "Conv",
            "BatchNormalization",
            "Relu",
            "Pad",
            "Concat",
            "Slice",
            "Constant",
            "Shape",
            "Gather",
            "Cast",
            "Clip",
            "DepthToSpace",
        ),
        *("Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "ReduceMean", "ReduceSum", "ReduceL2", "LpNormalization", "Clip"),
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "QuantizeLinear", "DequantizeLinear"),
    }
)
"""No control flow, and nothing that makes large tensors out of small ones but for ``_GROWING``."""

_GROWING = {"Concat", "Pad", "MatMul"}
"""One after the other, they could take any amount of memory: there may be as many as a network has layers, and one."""

_IN_MATCHERS = 4
"""Most of one of them in a piece of a matcher."""

_MATCHER_OPERATORS = frozenset({"MatMul", "Gemm", "Softmax", "LayerNormalization", "Erf", "Cos", "Sin", "Split"})

_MAX_NODES = 1000

# Numbers of the fields, by message.
_MODEL_OPSETS, _MODEL_GRAPH, _MODEL_METADATA, _MODEL_TRAINING, _MODEL_FUNCTIONS = 8, 7, 14, 20, 25
_GRAPH_NODES, _GRAPH_WEIGHTS, _GRAPH_INPUTS, _GRAPH_OUTPUTS, _GRAPH_SPARSE = 1, 5, 11, 12, 15
_NODE_INPUTS, _NODE_OUTPUTS, _NODE_OPERATOR, _NODE_ATTRIBUTES, _NODE_DOMAIN = 1, 2, 4, 5, 7
_ATTRIBUTE_TENSOR, _ATTRIBUTE_GRAPH, _ATTRIBUTE_INTS, _ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS = 5, 6, 8, 10, 11
_TENSOR_SHAPE, _TENSOR_NAME, _TENSOR_FILES, _TENSOR_PLACE = 1, 8, 13, 14


def check_graph(graph: bytes, network: NetworkOptions | DetectorOptions, weights: Mapping[str, Sequence[int]]) -> None:
    """Raise ``ValueError`` unless a graph is that of a network, with these weights, by shape, supplied from outside."""
    given, wanted = ("patches", "descriptors") if isinstance(network, NetworkOptions) else ("image", "scores")
    body, nodes, described = _checked_body(graph, [given], [wanted], _OPERATORS)
    _check_growth(nodes, len(_expected_layers(network)) + 1)
    if type(network).from_dict(parse_json(described)) != network:
        raise ValueError("it is of another network")
    if _layers(nodes, _shapes(body, weights)) != _expected_layers(network):
        raise ValueError("its convolutions are not those of the network")


def check_piece(graph: bytes, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Raise ``ValueError`` unless a graph of a matcher has these inputs and outputs and only harmless operators."""
    body, nodes, _ = _checked_body(graph, inputs, outputs, _OPERATORS | _MATCHER_OPERATORS)
    _check_growth(nodes, _IN_MATCHERS)
    _shapes(body, {})


def _check_growth(nodes: Sequence[_Message], most: int) -> None:
    for operator, count in Counter(node.text(_NODE_OPERATOR) for node in nodes).items():
        if operator in _GROWING and count > most:
            raise ValueError(f"it has {count} operators '{operator}'")


def _checked_body(
    graph: bytes, inputs: Sequence[str], outputs: Sequence[str], operators: Collection[str]
) -> tuple[_Message, list[_Message], str]:
    """The graph itself, its nodes, and what the metadata say of the network."""
    model = _Message(graph)
    if model.all(_MODEL_TRAINING) or model.all(_MODEL_FUNCTIONS):
        raise ValueError("it has functions of its own")
    if any(each.text(1) for each in model.messages(_MODEL_OPSETS)):
        raise ValueError("it has operators of other libraries")
    (body,) = model.messages(_MODEL_GRAPH)
    names = [[each.text(1) for each in body.messages(kind)] for kind in (_GRAPH_INPUTS, _GRAPH_OUTPUTS)]
    if names != [list(inputs), list(outputs)] or body.all(_GRAPH_SPARSE):
        raise ValueError(f"it does not turn {', '.join(inputs)} into {', '.join(outputs)}")
    nodes = body.messages(_GRAPH_NODES)
    if len(nodes) > _MAX_NODES:
        raise ValueError(f"it has {len(nodes)} operators")
    for node in nodes:
        _check_node(node, operators)
    described = {each.text(1): each.text(2) for each in model.messages(_MODEL_METADATA)}.get("network", "null")
    return body, nodes, described


def _shapes(body: _Message, weights: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in the graph; those without data must be among the weights."""
    shapes = {}
    for tensor in body.messages(_GRAPH_WEIGHTS):
        name, shape = tensor.text(_TENSOR_NAME), tuple(tensor.numbers(_TENSOR_SHAPE))
        if _is_external(tensor):
            place = {each.text(1): each.text(2) for each in tensor.messages(_TENSOR_FILES)}
            if place != {"location": "weights"} or tuple(weights.get(name, ())) != shape:
                raise ValueError(f"its tensor '{name[:80]}' is not in the model file")
        shapes[name] = shape
    return shapes


def _check_node(node: _Message, operators: Collection[str]) -> None:
    operator = node.text(_NODE_OPERATOR)
    if operator not in operators or node.text(_NODE_DOMAIN):
        raise ValueError(f"it has the operator '{operator[:80]}'")
    for attribute in node.messages(_NODE_ATTRIBUTES):
        tensors = (*attribute.messages(_ATTRIBUTE_TENSOR), *attribute.messages(_ATTRIBUTE_TENSORS))
        if attribute.all(_ATTRIBUTE_GRAPH) or attribute.all(_ATTRIBUTE_GRAPHS) or any(map(_is_external, tensors)):
            raise ValueError("it refers to other graphs or files")


def _is_external(tensor: _Message) -> bool:
    return bool(tensor.all(_TENSOR_FILES)) or tensor.numbers(_TENSOR_PLACE) not in ([], [0])


Layer = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape of a convolution's weights, and strides."""


def _layers(nodes: Sequence[_Message], shapes: Mapping[str, tuple[int, ...]]) -> list[Layer]:
    """The convolutions of a graph, in order; weights may be stored in 8 bits."""
    scaled = {
        node.text(_NODE_OUTPUTS): node.text(_NODE_INPUTS)
        for node in nodes
        if node.text(_NODE_OPERATOR) == "DequantizeLinear"
    }
    layers = []
    for node in nodes:
        if node.text(_NODE_OPERATOR) == "Conv":
            _, weight, *_ = node.texts(_NODE_INPUTS)
            attributes = {
                each.text(1): tuple(each.numbers(_ATTRIBUTE_INTS)) for each in node.messages(_NODE_ATTRIBUTES)
            }
            layers.append((shapes[scaled.get(weight, weight)], attributes.get("strides", (1, 1))))
    return layers


def _expected_layers(network: NetworkOptions | DetectorOptions) -> list[Layer]:
    if isinstance(network, DetectorOptions):
        return [(layer.shape, (layer.stride, layer.stride)) for layer in network.layers.values()]
    layers, inputs = [], 1
    for outputs, stride in zip(network.channels, network.strides, strict=True):
        layers.append(((outputs, inputs, 3, 3), (stride, stride)))
        inputs = outputs
    left = (network.rows // network.reduction, network.columns // network.reduction)
    return [*layers, ((DESCRIPTOR_SIZE, inputs, *left), (1, 1))]


class _Message:
    """A protobuf message; raises ``ValueError`` where it is damaged."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._found: dict[int, list[int | bytes]] | None = None

    def all(self, field: int) -> list[int | bytes]:
        if self._found is None:
            self._found = {}
            for number, value in _fields(self._content):
                self._found.setdefault(number, []).append(value)
        return self._found.get(field, [])

    def messages(self, field: int) -> list[_Message]:
        return [_Message(value) for value in self.all(field) if isinstance(value, bytes)]

    def texts(self, field: int) -> list[str]:
        return [value.decode() for value in self.all(field) if isinstance(value, bytes)]

    def text(self, field: int) -> str:
        """The first value, or nothing."""
        return next(iter(self.texts(field)), "")

    def numbers(self, field: int) -> list[int]:
        """Integers, packed into one field or not."""
        found = []
        for value in self.all(field):
            place = 0
            while isinstance(value, bytes) and place < len(value):
                number, place = _varint(value, place)
                found.append(number)
            if isinstance(value, int):
                found.append(value)
        return found


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    place = 0
    while place < len(content):
        key, place = _varint(content, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(content, place)
            yield key >> 3, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError("damaged protobuf")
        length, place = _varint(content, place) if kind == 2 else (8 if kind == 1 else 4, place)
        if place + length > len(content):
            raise ValueError("damaged protobuf")
        yield key >> 3, content[place : place + length]
        place += length


def _varint(content: bytes, place: int) -> tuple[int, int]:
    """Seven bits per byte, the lowest first; the highest bit says that more follow."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(content):
            break
        byte, place = content[place], place + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
    raise ValueError("damaged protobuf")
