"""Look-up as an ONNX graph: a pyramid built in a loop, and bilinear look-up by ``Gather``.

The same convention as ``numpy_lookup``; ``tests/sampling/test_onnx_arrays_and_lookup.py`` holds the two together.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from onnx import TensorProto, helper

from logpolar.sampling.onnx_arrays import Graph, OnnxArray
from logpolar.sampling.patterns import Pattern, fill_outside, inside, pyramid_level, reflect

_INT64 = TensorProto.INT64
_DEEPEST = 62
"""More levels than any image has."""


class Pyramid(NamedTuple):
    """All levels one after another in ``pixels``; row l of ``table``: first pixel, width and height of level l."""

    pixels: OnnxArray
    table: OnnxArray


def make_pyramid(graph: Graph, image: OnnxArray, antialias: bool) -> Pyramid:
    """Of an image (height, width); without ``antialias`` only the image itself is needed."""
    shape = graph.node("Shape", image, kind=_INT64)
    row = graph.node("Concat", graph.integers(0), _side(shape, 1), _side(shape, 0), axis=0)
    whole = Pyramid(image.reshape(-1), row.reshape(1, 3))
    if not antialias:
        return whole
    carried = [graph.named(name) for name in ("level", "pixels")] + [graph.named("table", _INT64)]
    with graph.body() as nodes:
        level, pixels, table = carried
        halved = _halve(graph, level)
        size = graph.node("Shape", halved, kind=_INT64)
        offset = graph.node("Shape", pixels, kind=_INT64)
        row = graph.node("Concat", offset, _side(size, 1), _side(size, 0), axis=0)
        results = [
            _more_than_a_pixel(graph, size),
            halved,
            graph.node("Concat", pixels, halved.reshape(-1), axis=0),
            graph.node("Concat", table, row.reshape(1, 3), axis=0),
        ]
    body = helper.make_graph(
        nodes,
        "halve",
        [
            helper.make_tensor_value_info("halvings", _INT64, []),
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            *(helper.make_tensor_value_info(each.name, each.kind, None) for each in carried),
        ],
        [helper.make_tensor_value_info(each.name, each.kind, None) for each in results],
    )
    start = (None, _more_than_a_pixel(graph, shape), image, *whole)
    _, pixels, table = graph.outputs("Loop", start, [TensorProto.FLOAT, TensorProto.FLOAT, _INT64], body=body)
    return Pyramid(pixels, table)


def sample(graph: Graph, pyramid: Pyramid, keypoints: OnnxArray, pattern: Pattern) -> OnnxArray:
    """Patches (N, rows, columns) of keypoints (N, 4) = (x, y, size, angle).

    What is not finite, or has no positive size, becomes NaN: a graph cannot refuse.
    """
    xy = keypoints.take(graph.integers(0, 1), axis=1)
    size = graph.where(keypoints[:, 2] > 0, keypoints[:, 2], graph.constant(np.nan))
    points = pattern.locate(xy, size, keypoints[:, 3])
    width, height = (pyramid.table[0, column].cast(TensorProto.FLOAT) for column in (1, 2))
    x, y = reflect(points.x, width), reflect(points.y, height)
    if pattern.antialias:
        last = (graph.node("Shape", pyramid.table, kind=_INT64, end=1) - 1).reshape()
        level = graph.clip(pyramid_level(points.spacing), None, last)
        fine, coarse = (_at_level(graph, pyramid, last, level, above, x, y) for above in (0, 1))
        weight = (level - graph.node("Floor", level))[:, None, :]
        patches = fine + weight * (coarse - fine)
    else:
        patches = _bilinear(graph, pyramid, pyramid.table[0, :], x, y)
    return fill_outside(patches, inside(points, width, height)) if pattern.outside == "mean" else patches


def _at_level(
    graph: Graph, pyramid: Pyramid, last: OnnxArray, level: OnnxArray, above: int, x: OnnxArray, y: OnnxArray
) -> OnnxArray:
    number = graph.clip(level.cast(_INT64) + above, 0, last)  # also of NaN, which has no level
    scale = graph.constant(0.5 ** np.arange(_DEEPEST)).take(number)[:, None, :]
    return _bilinear(graph, pyramid, pyramid.table.take(number)[:, None, :, :], x * scale, y * scale)


def _bilinear(graph: Graph, pyramid: Pyramid, place: OnnxArray, x: OnnxArray, y: OnnxArray) -> OnnxArray:
    """Values at (x, y) of the level that ``place`` (..., 3), a row of the table, describes; edges are continued."""
    offset, width, height = (place.take(graph.constant(column, _INT64), axis=-1) for column in range(3))
    x, y = graph.clip(x, None, width - 1), graph.clip(y, None, height - 1)
    left, upper = graph.clip(x.cast(_INT64), 0, width - 1), graph.clip(y.cast(_INT64), 0, height - 1)
    right, lower = graph.clip(left + 1, None, width - 1), graph.clip(upper + 1, None, height - 1)
    weight_x, weight_y = x - left, y - upper
    row_above, row_below = offset + upper * width, offset + lower * width

    def between(row: OnnxArray) -> OnnxArray:
        first, second = pyramid.pixels.take(row + left), pyramid.pixels.take(row + right)
        return first + weight_x * (second - first)

    above = between(row_above)
    return above + weight_y * (between(row_below) - above)


def _halve(graph: Graph, image: OnnxArray) -> OnnxArray:
    """What ``cv2.pyrDown`` does: the filter (1 4 6 4 1) / 16 both ways, then every second pixel from the first on."""
    shape = graph.node("Shape", image, kind=_INT64)
    for axis in (0, 1):
        length = shape[axis,]
        period = graph.clip((length - 1) * 2, 1, None)
        step = graph.constant(1, _INT64)
        kept = graph.node("Range", graph.constant(0, _INT64), (length + 1) // 2, step) * 2
        parts = []
        for tap, weight in zip(range(-2, 3), (1, 4, 6, 4, 1), strict=True):
            # Reflection about the first and the last pixel; Mod has the sign of its divisor.
            folded = (kept + tap) % period
            parts.append(image.take(graph.clip(folded, None, period - folded), axis) * (weight / 16))
        image = graph.node("Sum", *parts)
    return image


def _side(shape: OnnxArray, axis: int) -> OnnxArray:
    return shape.take(shape.graph.integers(axis))


def _more_than_a_pixel(graph: Graph, shape: OnnxArray) -> OnnxArray:
    return graph.node("ReduceMax", shape, graph.integers(0), keepdims=0) > 1
