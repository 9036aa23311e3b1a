from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from logpolar.keypoints import Keypoints
from logpolar.sampling import Cartesian, ImagePyramid, LogPolar, sample_patches
from logpolar.sampling.onnx_arrays import Graph
from logpolar.sampling.onnx_lookup import make_pyramid, sample

INPUTS = {"image": ("height", "width"), "keypoints": ("count", 4)}


def run(build, **given):
    """What the arrays are worth that ``build`` makes of a graph and its inputs."""
    graph = Graph()
    results = build(graph, *(graph.named(name) for name in given))
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, INPUTS[name]) for name in given]
    outputs = [helper.make_tensor_value_info(each.name, each.kind, None) for each in results]
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "test", inputs, outputs), opset_imports=opset, ir_version=10
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, given)


def random_keypoints(count=40, reach=300.0, largest=100.0):
    random = np.random.default_rng(0)
    size = np.exp(random.uniform(0, np.log(largest), count))
    return Keypoints.from_points(
        random.uniform(-0.3 * reach, 1.3 * reach, (count, 2)), size, random.uniform(0, 360, count)
    )


@pytest.mark.parametrize("shape", [(1, 1), (1, 7), (2, 2), (5, 3), (64, 64), (65, 130), (511, 77)])
def test_pyramid(shape):
    image = np.random.default_rng(0).random(shape, np.float32)
    pixels, table = run(lambda graph, image: make_pyramid(graph, image, True), image=image)
    expected = ImagePyramid(image)
    assert len(table) == expected.top + 1
    for number, (offset, width, height) in enumerate(table.tolist()):
        found = pixels[offset : offset + width * height].reshape(height, width)
        np.testing.assert_allclose(found, np.atleast_2d(expected.level(number)), atol=1e-6)
    assert len(pixels) == (table[:, 1] * table[:, 2]).sum()


def test_without_antialiasing_there_is_one_level():
    image = np.random.default_rng(0).random((5, 7), np.float32)
    pixels, table = run(lambda graph, image: make_pyramid(graph, image, False), image=image)
    np.testing.assert_array_equal(pixels, image.ravel())
    assert table.tolist() == [[0, 7, 5]]


@pytest.mark.parametrize(
    "pattern",
    [
        LogPolar(),
        LogPolar(24, 16, 8, inner_radius="paper", antialias=False),
        LogPolar(48, 8, 16, inner_radius=0.5, outside="mean"),
        Cartesian(),
        Cartesian(30, 12, 16, antialias=False, outside="mean"),
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(301, 222), (31, 90), (1, 40), (1, 1)])
def test_patches_are_those_of_numpy(gray, pattern, shape):
    image = np.ascontiguousarray(gray[: shape[0], 100 : 100 + shape[1]])
    keypoints = random_keypoints()
    (found,) = run(
        lambda graph, image, keypoints: [
            sample(graph, make_pyramid(graph, image, pattern.antialias), keypoints, pattern)
        ],
        image=image,
        keypoints=keypoints.table,
    )
    np.testing.assert_allclose(found, sample_patches(image, keypoints, pattern), atol=1e-3)
    assert np.abs(found - sample_patches(image, keypoints, pattern)).mean() < 1e-5


def test_arrays_index_and_count_as_numpy_s():
    image = np.random.default_rng(0).random((4, 6), np.float32)
    results = run(
        lambda graph, image: [
            image[:, 2, None],
            image[None, :, :],
            (image >= 0.5).sum((0, 1), keepdims=True),
            1 - image,
            graph.log2(image + 1),
        ],
        image=image,
    )
    expected = [
        image[:, 2, None],
        image[None],
        (image >= 0.5).sum((0, 1), keepdims=True),
        1 - image,
        np.log2(image + 1),
    ]
    for found, truth in zip(results, expected, strict=True):
        np.testing.assert_allclose(found, truth, atol=1e-6)
    with pytest.raises(IndexError):
        Graph().named("image")[1:3,]
