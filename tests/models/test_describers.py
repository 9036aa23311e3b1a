from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from helpers import trained_models
from logpolar.errors import KeypointError, LogpolarError, MissingExtraError
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector
from logpolar.models import load_model
from logpolar.models.describers import open_describer
from logpolar.models.runtimes.onnxruntime_cpu import OnnxruntimeDescriber
from logpolar.models.runtimes.openvino_cpu import OpenVinoDescriber
from logpolar.models.runtimes.torch_device import TorchDescriber
from logpolar.sampling import ImagePyramid, sample_patches
from logpolar.settings import DEFAULT_MODEL


@pytest.fixture(scope="module")
def model():
    return load_model(DEFAULT_MODEL)


@pytest.fixture(scope="module")
def patches(gray, model):
    """257 patches: of keypoints of a photo, as many as there are, and noise."""
    keypoints = SiftDetector(max_keypoints=250)(gray)
    noise = np.random.default_rng(0).random((257 - len(keypoints), 32, 32), np.float32)
    return np.concatenate([sample_patches(gray, keypoints, model.sampling), noise])


@pytest.fixture(scope="module", params=["onnxruntime", "torch"])
def make_describer(request, model):
    """Opens either runtime with a chunk size."""
    return lambda chunk: {"onnxruntime": OnnxruntimeDescriber, "torch": in_torch}[request.param](model, chunk)


def in_torch(model, chunk=256):
    return TorchDescriber(model.network(), model.sampling, chunk=chunk)


@pytest.fixture(scope="module")
def describers(model):
    return OnnxruntimeDescriber(model), in_torch(model, 128)


class TestAgreement:
    @pytest.mark.parametrize("count", [0, 1, 7, 256, 257])
    def test_onnxruntime_and_torch(self, describers, patches, count):
        first, second = (describer.describe_patches(patches[:count]) for describer in describers)
        assert first.shape == second.shape == (count, 128)
        assert first.dtype == second.dtype == np.float32
        np.testing.assert_allclose(first, second, atol=1e-4)
        np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-5)

    @pytest.mark.parametrize("name", trained_models())
    def test_every_shipped_model(self, patches, name):
        model = load_model(name)
        first, second = (
            open_describer(model, runtime=kind).describe_patches(patches[:20]) for kind in ("onnxruntime", "torch")
        )
        np.testing.assert_allclose(first, second, atol=1e-4)

    def test_torch_is_the_network_itself(self, model, patches):
        with torch.inference_mode():
            expected = model.network()(torch.from_numpy(patches[:9])).numpy()
        np.testing.assert_allclose(in_torch(model, 4).describe_patches(patches[:9]), expected, atol=1e-5)

    def test_threads_do_not_matter(self, model, patches):
        one, two = (open_describer(model, threads=threads).describe_patches(patches[:40]) for threads in (1, 2))
        np.testing.assert_allclose(one, two, atol=1e-6)


class TestBatches:
    def test_chunk_size_does_not_matter(self, make_describer, patches):
        expected = make_describer(16).describe_patches(patches[:40])
        for chunk in (1, 7, 40, 64):
            np.testing.assert_allclose(make_describer(chunk).describe_patches(patches[:40]), expected, atol=1e-6)

    def test_company_does_not_matter(self, make_describer, patches):
        describer = make_describer(16)
        expected = describer.describe_patches(patches[:40])
        order = np.random.default_rng(0).permutation(40)
        np.testing.assert_allclose(describer.describe_patches(patches[:40][order]), expected[order], atol=1e-6)
        np.testing.assert_allclose(describer.describe_patches(patches[17:18])[0], expected[17], atol=1e-6)
        strange = np.concatenate([patches[:5], np.full((11, 32, 32), 1e4, np.float32)])
        np.testing.assert_allclose(describer.describe_patches(strange)[:5], expected[:5], atol=1e-6)

    def test_any_array_of_patches(self, make_describer, patches):
        describer = make_describer(16)
        expected = describer.describe_patches(patches[:6:2])
        np.testing.assert_array_equal(describer.describe_patches(patches[:6:2].astype(np.float64)), expected)
        np.testing.assert_array_equal(describer.describe_patches(np.asfortranarray(patches[:6:2])), expected)

    def test_different_patches_have_different_descriptors(self, make_describer, patches):
        descriptors = make_describer(16).describe_patches(patches[:16])
        assert (descriptors @ descriptors.T - np.eye(16)).max() < 0.999

    @pytest.mark.parametrize("level", [0, 0.1, 0.5, 0.91, 1])
    def test_blank_patches_have_descriptors(self, make_describer, level):
        descriptors = make_describer(4).describe_patches(np.full((2, 32, 32), level, np.float32))
        assert np.isfinite(descriptors).all()
        np.testing.assert_allclose(np.linalg.norm(descriptors, axis=1), 1, atol=1e-5)


class TestKeypoints:
    @pytest.mark.parametrize("name", ["onnxruntime", "openvino", "torch"])
    @pytest.mark.parametrize("count", [0, 3, 300])
    def test_are_described_in_their_order(self, gray, name, count):
        model = load_model("logpolar-96-small")
        random = np.random.default_rng(0)
        keypoints = Keypoints.from_points(random.uniform(0, 512, (count, 2)), random.uniform(1, 9, count))
        describer = open_describer(model, runtime=name)
        expected = describer.describe_patches(sample_patches(gray, keypoints, model.sampling))
        assert expected.shape == (count, 128)
        np.testing.assert_allclose(describer.describe(gray, keypoints), expected, atol=1e-6)

    def test_that_cannot_be_described_are_numbered_in_their_order(self, gray, model):
        keypoints = Keypoints.from_points([(10, 400), (5, 100), (7, 3)], [0, 4, 4])
        with pytest.raises(KeypointError, match="first is number 0"):
            OnnxruntimeDescriber(model).describe(gray, keypoints)
        with pytest.raises(KeypointError, match="first is number 0"):
            sample_patches(gray, keypoints, model.sampling)

    @pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
    def test_an_error_on_the_way_leaves_the_describer_as_it_was(self, gray, monkeypatch, name):
        model = load_model("logpolar-96-small")
        describer = open_describer(model, runtime=name)
        random = np.random.default_rng(0)
        keypoints = Keypoints.from_points(random.uniform(0, 512, (100, 2)))
        expected = describer.describe(gray, keypoints)

        def broken(self, keypoints, pattern):
            yield np.zeros((200, 32, 32), np.float32)
            raise OSError("no more patches")

        with monkeypatch.context() as patched:
            patched.setattr(ImagePyramid, "batches", broken)
            with pytest.raises(OSError, match="no more patches"):
                describer.describe(gray, keypoints)
        np.testing.assert_array_equal(describer.describe(gray, keypoints), expected)

    @pytest.mark.parametrize("name", ["onnxruntime", "openvino", "torch"])
    def test_of_several_threads_are_not_mixed_up(self, gray, name):
        describer = open_describer(load_model("logpolar-96-small"), runtime=name)
        sets = [Keypoints.from_points(np.random.default_rng(seed).uniform(0, 512, (100, 2))) for seed in range(4)]
        expected = [describer.describe(gray, keypoints) for keypoints in sets]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda number: describer.describe(gray, sets[number % 4]), range(12)))
        for number, descriptors in enumerate(found):
            np.testing.assert_allclose(descriptors, expected[number % 4], atol=1e-5)


@pytest.mark.parametrize("level", [0.1, 0.3, 0.91])
def test_describers_agree_on_blank_patches(describers, level):
    first, second = (each.describe_patches(np.full((1, 32, 32), level, np.float32)) for each in describers)
    np.testing.assert_allclose(first, second, atol=1e-4)


class TestOpening:
    @pytest.mark.parametrize(("name", "kind"), [("onnxruntime", OnnxruntimeDescriber), ("torch", TorchDescriber)])
    def test_by_name(self, model, name, kind):
        assert type(open_describer(model, runtime=name)) is kind

    @pytest.mark.parametrize("option", ["runtime", "precision"])
    def test_unknown_names_list_those_there_are(self, model, option):
        with pytest.raises(LogpolarError, match=f"unknown {option} 'tpu' .known: auto, "):
            open_describer(model, **{option: "tpu"})

    def test_a_name_or_a_path(self, model, patches):
        expected = open_describer(model).describe_patches(patches[:2])
        np.testing.assert_array_equal(open_describer(DEFAULT_MODEL).describe_patches(patches[:2]), expected)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"device": "tpu"}, "unknown device 'tpu'"),
            ({"device": "cuda:x"}, "unknown device 'cuda:x'"),
            ({"device": "cuda"}, "no device 'cuda': torch finds no CUDA device"),
            ({"device": "cuda:3"}, "no device 'cuda:3': torch finds no CUDA device"),
            ({"device": "cuda", "runtime": "openvino"}, "runtime openvino is for the CPU"),
            ({"device": "cuda", "precision": "bfloat16"}, "bfloat16 is for the CPU"),
            ({"precision": "float16"}, "float16 needs a GPU"),
            ({"precision": "bfloat16", "runtime": "onnxruntime"}, "onnxruntime has no bfloat16"),
        ],
    )
    def test_what_is_not_there_is_named(self, model, monkeypatch, options, words):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(LogpolarError, match=words):
            open_describer(model, **options)

    def test_int8_has_one_precision(self):
        with pytest.raises(LogpolarError, match="runs in int8 only, not in float32"):
            open_describer("logpolar-96-small-int8", precision="float32")

    @pytest.mark.filterwarnings("ignore:this processor has no bfloat16")
    def test_bfloat16_of_any_float32_model(self, patches):
        describer = open_describer("logpolar-96-small", precision="bfloat16")
        assert isinstance(describer, OpenVinoDescriber)
        expected = open_describer("logpolar-96-small").describe_patches(patches[:20])
        assert (describer.describe_patches(patches[:20]) * expected).sum(axis=1).min() > 0.999

    @pytest.mark.parametrize("options", [{"runtime": "torch"}, {"device": "cuda"}])
    def test_torch_that_is_not_installed(self, model, monkeypatch, options):
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(MissingExtraError, match=r"logpolar\[torch\]"):
            open_describer(model, **options)

    def test_network_without_torch(self, model, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(MissingExtraError, match=r"logpolar\[torch\]"):
            model.network()

    def test_onnxruntime_needs_no_torch(self, model, monkeypatch, patches):
        monkeypatch.setitem(sys.modules, "torch", None)
        assert open_describer(model).describe_patches(patches[:1]).shape == (1, 128)
