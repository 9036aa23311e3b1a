from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import onnxruntime
import pytest
import torch

from logpolar.features.extractor import Extractor
from logpolar.keypoints import Keypoints
from logpolar.models import load_model, save_model, shipped_models
from logpolar.models.cards import ModelCard, NetworkOptions
from logpolar.models.network import DescriptorNetwork
from logpolar.models.onnx_files import end_to_end_file, largest_difference, network_file
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
def small(tmp_path_factory):
    """A model of 8 x 8 patches."""
    torch.manual_seed(0)
    options = NetworkOptions(8, 8, circular=True)
    path = tmp_path_factory.mktemp("models") / "small.safetensors"
    sampling = LogPolar(24, 8, 8, inner_radius=0.5, outside="mean")
    save_model(path, DescriptorNetwork(options).eval(), ModelCard("small", "A test.", sampling, options))
    return load_model(path)


@pytest.fixture(scope="module")
def small_session(small):
    return open_file(end_to_end_file(small))


class TestEndToEnd:
    @pytest.mark.parametrize("shape", [(64, 64), (97, 65), (333, 500), (1203, 1600)])
    def test_shipped_models_on_images_of_several_sizes(self, shipped, gray, shape):
        model, session = shipped
        image = np.clip(cv2.resize(gray, shape[::-1], interpolation=cv2.INTER_CUBIC), 0, 1)
        keypoints = random_keypoints(16, image)
        expected = Extractor(model, max_size=None).extract(image, keypoints).descriptors
        # In 8 bit the smallest difference of two samplers may round otherwise.
        tolerance = 1e-2 if model.card.variant else 1e-3
        np.testing.assert_allclose(describe(session, image, keypoints), expected, atol=tolerance)

    @pytest.mark.parametrize("count", [0, 1, 32, 33, 4097])
    def test_any_number_of_keypoints(self, small, small_session, gray, count):
        keypoints = random_keypoints(count, gray)
        found = describe(small_session, gray, keypoints)
        assert found.shape == (count, 128)
        expected = Extractor(small, max_size=None).extract(gray, keypoints).descriptors
        np.testing.assert_allclose(found, expected, atol=1e-3)

    @pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (2, 3)])
    def test_tiny_images(self, small, small_session, gray, shape):
        image = np.ascontiguousarray(gray[: shape[0], 200 : 200 + shape[1]])
        keypoints = random_keypoints(5, image, largest=5)
        expected = Extractor(small, max_size=None).extract(image, keypoints).descriptors
        np.testing.assert_allclose(describe(small_session, image, keypoints), expected, atol=1e-3)

    @pytest.mark.parametrize(
        "sampling",
        [LogPolar(30, 8, 8), LogPolar(96, 8, 8, inner_radius="paper", antialias=False), Cartesian(12, 8, 8)],
        ids=["covariant", "paper", "cartesian"],
    )
    def test_patterns(self, small, gray, sampling):
        model = replace(small, card=replace(small.card, sampling=sampling))
        keypoints = random_keypoints(50, gray)
        expected = Extractor(model, max_size=None).extract(gray, keypoints).descriptors
        np.testing.assert_allclose(describe(open_file(end_to_end_file(model)), gray, keypoints), expected, atol=1e-3)

    @pytest.mark.parametrize("sampling", [LogPolar(24, 8, 8, outside="mean"), LogPolar(24, 8, 8), Cartesian(12, 8, 8)])
    def test_keypoints_that_are_none_are_nan_and_leave_the_others_alone(self, small, gray, sampling):
        session = open_file(end_to_end_file(replace(small, card=replace(small.card, sampling=sampling))))
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
    def content(self, small, end_to_end):
        return (end_to_end_file if end_to_end else network_file)(small)

    def test_metadata_say_what_a_user_must_know(self, small, content, end_to_end):
        session = open_file(content)
        words = session.get_modelmeta().custom_metadata_map
        assert ModelCard.from_json(words["card"]) == small.card
        assert words["model_hash"] == small.digest
        assert ("clockwise" in words["convention"]) == end_to_end
        assert "[0, 1]" in words["convention"]
        inputs = {each.name: each.shape for each in session.get_inputs()}
        expected = (
            {"image": ["height", "width"], "keypoints": ["count", 4]} if end_to_end else {"patches": ["count", 8, 8]}
        )
        assert inputs == expected

    def test_no_names_of_machines(self, content):
        assert b"/root" not in content
        assert b"site-packages" not in content

    def test_difference_is_small_and_would_be_seen(self, small, content, end_to_end):
        assert largest_difference(small, content, end_to_end) < 1e-5
        spoilt = replace(small, weights={**small.weights, "head.weight": small.weights["head.weight"][::-1].copy()})
        assert largest_difference(spoilt, content, end_to_end) > 1e-2
