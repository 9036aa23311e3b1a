from __future__ import annotations

import re
from dataclasses import replace

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from logpolar.features.extractor import Extractor
from logpolar.keypoints import Keypoints
from logpolar.models import load_model, shipped_models
from logpolar.models.cards import ModelCard, NetworkOptions
from logpolar.models.export import end_to_end_file, largest_difference, network_file, save_model
from logpolar.models.network import DescriptorNetwork
from logpolar.models.runtimes.onnxruntime_cpu import OnnxruntimeDescriber
from logpolar.sampling import Cartesian, LogPolar


def open_file(content):
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def describe(session, image, keypoints):
    (descriptors,) = session.run(["descriptors"], {"image": image, "keypoints": keypoints.table})
    assert descriptors.dtype == np.float32
    return descriptors


def random_keypoints(count, image, largest=60.0):
    """In the image and a little beyond it."""
    random = np.random.default_rng(count)
    reach = np.array(image.shape[::-1])
    size = np.exp(random.uniform(0, np.log(largest), count))
    return Keypoints.from_points(random.uniform(-0.1, 1.1, (count, 2)) * reach, size, random.uniform(0, 360, count))


@pytest.fixture(scope="module", params=shipped_models())
def shipped(request):
    """A shipped model, and its end-to-end file opened."""
    model = load_model(request.param)
    return model, open_file(end_to_end_file(model))


@pytest.fixture(scope="module")
def tiny_session(tiny_model):
    return open_file(end_to_end_file(tiny_model))


class TestEndToEnd:
    @pytest.mark.parametrize("shape", [(64, 64), (97, 65), (333, 500), (1203, 1600)])
    def test_shipped_models_on_images_of_several_sizes(self, shipped, gray, shape):
        model, session = shipped
        image = np.clip(cv2.resize(gray, shape[::-1], interpolation=cv2.INTER_CUBIC), 0, 1)
        keypoints = random_keypoints(16, image)
        expected = Extractor(model, max_size=None).extract(image, keypoints).descriptors
        # In 8 bit the smallest difference of two samplers may round otherwise, differently on each processor.
        tolerance = 2e-2 if model.card.variant else 1e-3
        np.testing.assert_allclose(describe(session, image, keypoints), expected, atol=tolerance)

    @pytest.mark.parametrize("count", [0, 1, 32, 33, 1025])
    def test_any_number_of_keypoints(self, tiny_model, tiny_session, gray, count):
        keypoints = random_keypoints(count, gray)
        found = describe(tiny_session, gray, keypoints)
        assert found.shape == (count, 128)
        expected = Extractor(tiny_model, max_size=None).extract(gray, keypoints).descriptors
        np.testing.assert_allclose(found, expected, atol=1e-3)

    @pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (2, 3)])
    def test_tiny_images(self, tiny_model, tiny_session, gray, shape):
        image = np.ascontiguousarray(gray[: shape[0], 200 : 200 + shape[1]])
        keypoints = random_keypoints(5, image, largest=5)
        expected = Extractor(tiny_model, max_size=None).extract(image, keypoints).descriptors
        np.testing.assert_allclose(describe(tiny_session, image, keypoints), expected, atol=1e-3)

    @pytest.mark.parametrize(
        "sampling",
        [LogPolar(30, 8, 16), LogPolar(96, 8, 16, inner_radius="paper", antialias=False), Cartesian(12, 8, 16)],
        ids=["covariant", "paper", "cartesian"],
    )
    def test_patterns(self, tiny_model, gray, sampling):
        model = replace(tiny_model, card=replace(tiny_model.card, sampling=sampling))
        keypoints = random_keypoints(50, gray)
        expected = Extractor(model, max_size=None).extract(gray, keypoints).descriptors
        np.testing.assert_allclose(describe(open_file(end_to_end_file(model)), gray, keypoints), expected, atol=1e-3)

    @pytest.mark.parametrize("sampling", [LogPolar(24, 8, 16, outside="mean"), Cartesian(12, 8, 16)])
    def test_keypoints_that_are_none_are_nan_and_leave_the_others_alone(self, tiny_model, gray, sampling):
        session = open_file(end_to_end_file(replace(tiny_model, card=replace(tiny_model.card, sampling=sampling))))
        keypoints = random_keypoints(12, gray)
        expected = describe(session, gray, keypoints)
        for row, column, value in [
            (1, 0, np.nan),
            (2, 1, np.inf),
            (4, 2, 0),
            (5, 2, -3),
            (7, 2, np.nan),
            (9, 3, np.nan),
        ]:
            [keypoints.xy[:, 0], keypoints.xy[:, 1], keypoints.size, keypoints.angle][column][row] = value
            expected[row] = np.nan
        np.testing.assert_allclose(describe(session, gray, keypoints), expected, atol=1e-6)


class TestNetworkAlone:
    @pytest.mark.parametrize("name", shipped_models())
    def test_is_the_library_s(self, name):
        model = load_model(name)
        session = open_file(network_file(model))
        patches = np.random.default_rng(0).random((9, 32, 32), np.float32)
        (found,) = session.run(["descriptors"], {"patches": patches})
        np.testing.assert_allclose(found, OnnxruntimeDescriber(model).describe_patches(patches), atol=1e-6)
        assert session.run(["descriptors"], {"patches": patches[:0]})[0].shape == (0, 128)


@pytest.mark.parametrize("end_to_end", [False, True], ids=["network", "end-to-end"])
class TestBoth:
    @pytest.fixture
    def content(self, tiny_model, end_to_end):
        return (end_to_end_file if end_to_end else network_file)(tiny_model)

    def test_metadata_say_what_a_user_must_know(self, tiny_model, content, end_to_end):
        session = open_file(content)
        words = session.get_modelmeta().custom_metadata_map
        assert ModelCard.from_json(words["card"]) == tiny_model.card
        assert words["model_hash"] == tiny_model.digest
        assert ("clockwise" in words["convention"]) == end_to_end
        assert "[0, 1]" in words["convention"]
        inputs = {each.name: each.shape for each in session.get_inputs()}
        expected = (
            {"image": ["height", "width"], "keypoints": ["count", 4]} if end_to_end else {"patches": ["count", 8, 16]}
        )
        assert inputs == expected

    def test_no_names_of_machines(self, content):
        assert b"/root" not in content
        assert b"site-packages" not in content

    def test_difference_is_small_and_would_be_seen(self, tiny_model, content, end_to_end):
        assert largest_difference(tiny_model, content, end_to_end) < 1e-5
        spoilt = replace(
            tiny_model, weights={**tiny_model.weights, "head.weight": tiny_model.weights["head.weight"][::-1].copy()}
        )
        assert largest_difference(spoilt, content, end_to_end) > 1e-2


class TestGraph:
    @pytest.fixture
    def initializers(self, tiny_model):
        return {tensor.name: tensor for tensor in onnx.load_from_string(tiny_model.graph).graph.initializer}

    def test_weights_are_left_out(self, tiny_model, tiny_network, initializers):
        assert len(tiny_model.graph) < 60_000
        for name, values in tiny_network.state_dict().items():
            if name in initializers:
                assert not initializers[name].raw_data
                assert not initializers[name].float_data
                assert list(initializers[name].dims) == list(values.shape)
        assert {name for name, _ in tiny_network.named_parameters()} <= set(initializers)
        # What the graph has of its own are sizes, and the ones and zeros of normalisations that learn no scale.
        others = [tensor for name, tensor in initializers.items() if name not in tiny_network.state_dict()]
        values = [onnx.numpy_helper.to_array(tensor) for tensor in others]
        assert all(each.size <= 16 or set(each.tolist()) <= {0.0, 1.0} for each in values)

    def test_no_paths_and_no_notes(self, tiny_model, initializers):
        assert not re.findall(rb"[\w.~-]+[/\\][\w.-]+|\w+\.py\b|site-packages", tiny_model.graph)
        assert {entry.value for tensor in initializers.values() for entry in tensor.external_data} == {"weights"}
        nodes = onnx.load_from_string(tiny_model.graph).graph.node
        assert not any(node.doc_string or node.metadata_props for node in nodes)

    def test_saving_leaves_the_network_as_it_was(self, tmp_path):
        network = DescriptorNetwork(NetworkOptions(4, 4, channels=(4,), strides=(1,)))
        before = {name: values.clone() for name, values in network.state_dict().items()}
        save_model(tmp_path / "m.safetensors", network, ModelCard("m", "", LogPolar(96, 4, 4), network.options))
        assert network.training
        assert all(torch.equal(values, before[name]) for name, values in network.state_dict().items())

    @pytest.mark.parametrize("count", [1, 2, 5])
    def test_with_the_weights_it_is_the_network(self, tiny_model, tiny_network, tiny_patches, count):
        found = OnnxruntimeDescriber(tiny_model).describe_patches(tiny_patches[:count])
        with torch.no_grad():
            expected = tiny_network(torch.from_numpy(tiny_patches[:count])).numpy()
        np.testing.assert_allclose(found, expected, atol=5e-3)
