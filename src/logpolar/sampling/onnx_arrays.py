"""Arrays that record operations as an ONNX graph, so that the formulas of ``patterns`` are written once.

``OnnxArray`` has the operators and ``Graph`` the functions used there, with numpy's meaning.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

Operand: TypeAlias = "OnnxArray | float | np.ndarray[Any, Any]"

_ALL = slice(None)


def _function(name: str) -> Callable[[Graph, OnnxArray], OnnxArray]:
    return lambda graph, array: graph.node(name, array)


def _operator(name: str, kind: int | None = None) -> Callable[[OnnxArray, Operand], OnnxArray]:
    return lambda array, other: array.graph.node(name, array, array.matching(other), kind=kind)


class Graph:
    """Nodes in order of creation; the namespace (``patterns.namespace``) of its arrays."""

    def __init__(self) -> None:
        self._nodes: list[list[NodeProto]] = [[]]  # the innermost body comes last
        self._count = 0

    @property
    def nodes(self) -> list[NodeProto]:
        return self._nodes[-1]

    @contextlib.contextmanager
    def body(self) -> Iterator[list[NodeProto]]:
        """Nodes created inside belong to the body of a loop, which may use all earlier ones."""
        self._nodes.append([])
        try:
            yield self.nodes
        finally:
            self._nodes.pop()

    def named(self, name: str, kind: int = TensorProto.FLOAT) -> OnnxArray:
        """An array provided by an input or another part of the graph."""
        return OnnxArray(self, name, kind)

    def node(self, operator: str, *inputs: OnnxArray | None, kind: int | None = None, **attributes: Any) -> OnnxArray:
        """The output of a new node, of the first input's kind unless given; None omits an input."""
        return self.outputs(operator, inputs, [kind], **attributes)[0]

    def outputs(
        self, operator: str, inputs: tuple[OnnxArray | None, ...], kinds: list[int | None], **attributes: Any
    ) -> list[OnnxArray]:
        names = [self._name() for _ in kinds]
        given = ["" if each is None else each.name for each in inputs]
        self.nodes.append(helper.make_node(operator, given, names, **attributes))
        like = next((each.kind for each in inputs if each is not None), TensorProto.FLOAT)
        return [OnnxArray(self, name, kind or like) for name, kind in zip(names, kinds, strict=True)]

    def constant(self, value: Any, kind: int = TensorProto.FLOAT) -> OnnxArray:
        array = np.asarray(value, helper.tensor_dtype_to_np_dtype(kind))
        return self.node("Constant", kind=kind, value=numpy_helper.from_array(array))

    def integers(self, *values: int) -> OnnxArray:
        return self.constant(values, TensorProto.INT64)

    def where(self, condition: OnnxArray, yes: OnnxArray, no: OnnxArray) -> OnnxArray:
        return self.node("Where", condition, yes, no, kind=yes.kind)

    def arange(self, count: int, dtype: object = None, device: object = None) -> OnnxArray:
        return self.constant(np.arange(count))

    def clip(self, array: OnnxArray, low: Operand | None, high: Operand | None) -> OnnxArray:
        for operator, bound in (("Max", low), ("Min", high)):
            array = array if bound is None else self.node(operator, array, array.matching(bound))
        return array

    def log2(self, array: OnnxArray) -> OnnxArray:
        return self.log(array) * (1 / math.log(2))

    log, exp, abs = _function("Log"), _function("Exp"), _function("Abs")
    cos, sin, round = _function("Cos"), _function("Sin"), _function("Round")

    def _name(self) -> str:
        self._count += 1
        return f"sampling_{self._count}"


class OnnxArray:
    """The value of a node; ``kind`` is its element type."""

    def __init__(self, graph: Graph, name: str, kind: int) -> None:
        self.graph, self.name, self.kind = graph, name, kind
        self.dtype = self.device = None  # needed by torch tensors

    def __array_namespace__(self) -> Graph:
        return self.graph

    def matching(self, other: Operand) -> OnnxArray:
        """The other operand as an array of this kind."""
        return other.cast(self.kind) if isinstance(other, OnnxArray) else self.graph.constant(other, self.kind)

    def cast(self, kind: int) -> OnnxArray:
        return self if kind == self.kind else self.graph.node("Cast", self, kind=kind, to=kind)

    def sum(self, axis: tuple[int, ...], keepdims: bool) -> OnnxArray:
        """Sum; of booleans, their count."""
        numbers = self.cast(TensorProto.FLOAT) if self.kind == TensorProto.BOOL else self
        return self.graph.node("ReduceSum", numbers, self.graph.integers(*axis), keepdims=int(keepdims))

    def reshape(self, *shape: int) -> OnnxArray:
        return self.graph.node("Reshape", self, self.graph.integers(*shape))

    def take(self, indices: OnnxArray, axis: int = 0) -> OnnxArray:
        return self.graph.node("Gather", self, indices, axis=axis)

    def __getitem__(self, index: tuple[slice | int | None, ...]) -> OnnxArray:
        """Whole axes (:), single places of an axis and new axes (None)."""
        array, axis = self, 0
        for each in index:
            if each is None:
                array = array.graph.node("Unsqueeze", array, array.graph.integers(axis))
            elif isinstance(each, int):
                array = array.take(array.graph.constant(each, TensorProto.INT64), axis)
                continue
            elif each != _ALL:
                raise IndexError(f"only whole axes can be taken, not {each}")
            axis += 1
        return array

    __add__ = __radd__ = _operator("Add")
    __mul__ = __rmul__ = _operator("Mul")
    __sub__ = _operator("Sub")
    __truediv__ = __floordiv__ = _operator("Div")  # // of integers that are not negative
    __mod__ = _operator("Mod")
    __ge__ = _operator("GreaterOrEqual", TensorProto.BOOL)
    __le__ = _operator("LessOrEqual", TensorProto.BOOL)
    __gt__ = _operator("Greater", TensorProto.BOOL)

    def __rsub__(self, other: Operand) -> OnnxArray:
        return self.matching(other) - self

    def __and__(self, other: OnnxArray) -> OnnxArray:
        return self.graph.node("And", self, other)
