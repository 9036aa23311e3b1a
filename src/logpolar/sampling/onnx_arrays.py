"""Arrays that record operations as an ONNX graph, so that the formulas of ``patterns`` are written once.

``OnnxArray`` has the operators and ``Graph`` the functions used there, with numpy's meaning.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

Operand: TypeAlias = "OnnxArray | float | np.ndarray[Any, Any]"

_ALL = slice(None)


class Graph:
    """Nodes in the order of their making. Serves as the namespace (``patterns.namespace``) of its arrays."""

    def __init__(self) -> None:
        self._nodes: list[list[NodeProto]] = [[]]  # the innermost body comes last
        self._count = 0

    @property
    def nodes(self) -> list[NodeProto]:
        return self._nodes[-1]

    @contextlib.contextmanager
    def body(self) -> Iterator[list[NodeProto]]:
        """What is made inside goes to the body of a loop, which may use all that was made before."""
        self._nodes.append([])
        try:
            yield self.nodes
        finally:
            self._nodes.pop()

    def named(self, name: str, kind: int = TensorProto.FLOAT) -> OnnxArray:
        """An array that an input, or another part of the graph, brings."""
        return OnnxArray(self, name, kind)

    def node(self, operator: str, *inputs: OnnxArray | None, kind: int | None = None, **attributes: Any) -> OnnxArray:
        """The one output of a new node, of the first input's kind unless another is named; None leaves an input out."""
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

    def log(self, array: OnnxArray) -> OnnxArray:
        return self.node("Log", array)

    def exp(self, array: OnnxArray) -> OnnxArray:
        return self.node("Exp", array)

    def abs(self, array: OnnxArray) -> OnnxArray:
        return self.node("Abs", array)

    def cos(self, array: OnnxArray) -> OnnxArray:
        return self.node("Cos", array)

    def sin(self, array: OnnxArray) -> OnnxArray:
        return self.node("Sin", array)

    def round(self, array: OnnxArray) -> OnnxArray:
        return self.node("Round", array)

    def _name(self) -> str:
        self._count += 1
        return f"sampling_{self._count}"


class OnnxArray:
    """The value of a node; ``kind`` is its element type."""

    def __init__(self, graph: Graph, name: str, kind: int) -> None:
        self.graph, self.name, self.kind = graph, name, kind
        self.dtype = self.device = None  # asked for where torch needs them

    def __array_namespace__(self) -> Graph:
        return self.graph

    def matching(self, other: Operand) -> OnnxArray:
        """The other operand as an array of this kind."""
        return other.cast(self.kind) if isinstance(other, OnnxArray) else self.graph.constant(other, self.kind)

    def cast(self, kind: int) -> OnnxArray:
        return self if kind == self.kind else self.graph.node("Cast", self, kind=kind, to=kind)

    def sum(self, axis: tuple[int, ...], keepdims: bool) -> OnnxArray:
        """Of truth values: their number."""
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

    def _with(self, operator: str, other: Operand, kind: int | None = None) -> OnnxArray:
        return self.graph.node(operator, self, self.matching(other), kind=kind)

    def __add__(self, other: Operand) -> OnnxArray:
        return self._with("Add", other)

    def __mul__(self, other: Operand) -> OnnxArray:
        return self._with("Mul", other)

    __radd__, __rmul__ = __add__, __mul__

    def __sub__(self, other: Operand) -> OnnxArray:
        return self._with("Sub", other)

    def __rsub__(self, other: Operand) -> OnnxArray:
        return self.matching(other) - self

    def __truediv__(self, other: Operand) -> OnnxArray:
        return self._with("Div", other)

    def __floordiv__(self, other: Operand) -> OnnxArray:
        """Of integers that are not negative."""
        return self._with("Div", other)

    def __mod__(self, other: Operand) -> OnnxArray:
        return self._with("Mod", other)

    def __ge__(self, other: OnnxArray | float) -> OnnxArray:
        return self._with("GreaterOrEqual", other, TensorProto.BOOL)

    def __le__(self, other: OnnxArray | float) -> OnnxArray:
        return self._with("LessOrEqual", other, TensorProto.BOOL)

    def __gt__(self, other: OnnxArray | float) -> OnnxArray:
        return self._with("Greater", other, TensorProto.BOOL)

    def __and__(self, other: OnnxArray) -> OnnxArray:
        return self.graph.node("And", self, other)
