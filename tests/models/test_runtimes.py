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
from logpolar.models.runtimes import RUNTIME_NAMES, DeviceRuntime, OnnxRuntime, TorchRuntime, open_runtime
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
def make_runtime(request, model):
    """Opens a runtime of either kind with a chunk size."""
    return lambda chunk: {"onnxruntime": OnnxRuntime, "torch": TorchRuntime}[request.param](model, chunk=chunk)


@pytest.fixture(scope="module")
def runtimes(model):
    return OnnxRuntime(model), TorchRuntime(model, chunk=128)


class TestAgreement:
    @pytest.mark.parametrize("count", [0, 1, 7, 256, 257])
    def test_onnxruntime_and_torch(self, runtimes, patches, count):
        first, second = (runtime.describe(patches[:count]) for runtime in runtimes)
        assert first.shape == second.shape == (count, 128)
        assert first.dtype == second.dtype == np.float32
        np.testing.assert_allclose(first, second, atol=1e-4)
        np.testing.assert_allclose(np.linalg.norm(first, axis=1), 1, atol=1e-5)

    @pytest.mark.parametrize("name", trained_models())
    def test_every_shipped_model(self, patches, name):
        model = load_model(name)
        first, second = (open_runtime(model, kind).describe(patches[:20]) for kind in ("onnxruntime", "torch"))
        np.testing.assert_allclose(first, second, atol=1e-4)

    def test_torch_is_the_network_itself(self, model, patches):
        with torch.inference_mode():
            expected = model.network()(torch.from_numpy(patches[:9])).numpy()
        np.testing.assert_allclose(TorchRuntime(model, chunk=4).describe(patches[:9]), expected, atol=1e-5)

    def test_threads_do_not_matter(self, model, patches):
        one, two = (open_runtime(model, threads=threads).describe(patches[:40]) for threads in (1, 2))
        np.testing.assert_allclose(one, two, atol=1e-6)


class TestBatches:
    def test_chunk_size_does_not_matter(self, make_runtime, patches):
        expected = make_runtime(16).describe(patches[:40])
        for chunk in (1, 7, 40, 64):
            np.testing.assert_allclose(make_runtime(chunk).describe(patches[:40]), expected, atol=1e-6)

    def test_company_does_not_matter(self, make_runtime, patches):
        runtime = make_runtime(16)
        expected = runtime.describe(patches[:40])
        order = np.random.default_rng(0).permutation(40)
        np.testing.assert_allclose(runtime.describe(patches[:40][order]), expected[order], atol=1e-6)
        np.testing.assert_allclose(runtime.describe(patches[17:18])[0], expected[17], atol=1e-6)
        strange = np.concatenate([patches[:5], np.full((11, 32, 32), 1e4, np.float32)])
        np.testing.assert_allclose(runtime.describe(strange)[:5], expected[:5], atol=1e-6)

    def test_any_array_of_patches(self, make_runtime, patches):
        runtime = make_runtime(16)
        expected = runtime.describe(patches[:6:2])
        np.testing.assert_array_equal(runtime.describe(patches[:6:2].astype(np.float64)), expected)
        np.testing.assert_array_equal(runtime.describe(np.asfortranarray(patches[:6:2])), expected)

    def test_different_patches_have_different_descriptors(self, make_runtime, patches):
        descriptors = make_runtime(16).describe(patches[:16])
        assert (descriptors @ descriptors.T - np.eye(16)).max() < 0.999

    @pytest.mark.parametrize("level", [0, 0.1, 0.5, 0.91, 1])
    def test_blank_patches_have_descriptors(self, make_runtime, level):
        descriptors = make_runtime(4).describe(np.full((2, 32, 32), level, np.float32))
        assert np.isfinite(descriptors).all()
        np.testing.assert_allclose(np.linalg.norm(descriptors, axis=1), 1, atol=1e-5)


class TestKeypoints:
    @pytest.mark.parametrize("name", ["onnxruntime", "openvino", "torch"])
    @pytest.mark.parametrize("count", [0, 3, 300])
    def test_are_described_in_their_order(self, gray, name, count):
        model = load_model("logpolar-96-small")
        random = np.random.default_rng(0)
        keypoints = Keypoints.from_points(random.uniform(0, 512, (count, 2)), random.uniform(1, 9, count))
        runtime = open_runtime(model, name)
        expected = runtime.describe(sample_patches(gray, keypoints, model.sampling))
        assert expected.shape == (count, 128)
        np.testing.assert_allclose(runtime.describe_keypoints(gray, keypoints), expected, atol=1e-6)

    def test_that_cannot_be_described_are_numbered_in_their_order(self, gray, model):
        keypoints = Keypoints.from_points([(10, 400), (5, 100), (7, 3)], [0, 4, 4])
        with pytest.raises(KeypointError, match="first is number 0"):
            OnnxRuntime(model).describe_keypoints(gray, keypoints)
        with pytest.raises(KeypointError, match="first is number 0"):
            sample_patches(gray, keypoints, model.sampling)

    @pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
    def test_an_error_on_the_way_leaves_the_runtime_as_it_was(self, gray, monkeypatch, name):
        model = load_model("logpolar-96-small")
        runtime = open_runtime(model, name)
        random = np.random.default_rng(0)
        keypoints = Keypoints.from_points(random.uniform(0, 512, (300, 2)))
        expected = runtime.describe_keypoints(gray, keypoints)

        def broken(self, keypoints, pattern):
            yield np.zeros((200, 32, 32), np.float32)
            raise OSError("no more patches")

        with monkeypatch.context() as patched:
            patched.setattr(ImagePyramid, "batches", broken)
            with pytest.raises(OSError, match="no more patches"):
                runtime.describe_keypoints(gray, keypoints)
        np.testing.assert_array_equal(runtime.describe_keypoints(gray, keypoints), expected)

    @pytest.mark.parametrize("name", ["onnxruntime", "openvino", "torch"])
    def test_of_several_threads_are_not_mixed_up(self, gray, name):
        runtime = open_runtime(load_model("logpolar-96-small"), name)
        sets = [Keypoints.from_points(np.random.default_rng(seed).uniform(0, 512, (300, 2))) for seed in range(4)]
        expected = [runtime.describe_keypoints(gray, keypoints) for keypoints in sets]
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda number: runtime.describe_keypoints(gray, sets[number % 4]), range(12)))
        for number, descriptors in enumerate(found):
            np.testing.assert_allclose(descriptors, expected[number % 4], atol=1e-5)


@pytest.mark.parametrize("level", [0.1, 0.3, 0.91])
def test_runtimes_agree_on_blank_patches(model, level):
    blank = np.full((1, 32, 32), level, np.float32)
    np.testing.assert_allclose(OnnxRuntime(model).describe(blank), TorchRuntime(model).describe(blank), atol=1e-4)


class TestOpening:
    @pytest.mark.parametrize(("name", "kind"), [("onnxruntime", OnnxRuntime), ("torch", TorchRuntime)])
    def test_by_name(self, model, name, kind):
        assert type(open_runtime(model, name)) is kind

    def test_unknown_name_lists_those_there_are(self, model):
        with pytest.raises(LogpolarError) as caught:
            open_runtime(model, "tensorflow")
        assert all(name in str(caught.value) for name in ("tensorflow", *RUNTIME_NAMES))

    def test_cuda_without_a_gpu(self, model, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(LogpolarError, match="CUDA"):
            open_runtime(model, "cuda")

    @pytest.mark.parametrize("name", ["torch", "cuda"])
    def test_torch_that_is_not_installed(self, model, monkeypatch, name):
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(MissingExtraError, match=r"logpolar\[torch\]"):
            open_runtime(model, name)

    def test_network_without_torch(self, model, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(MissingExtraError, match=r"logpolar\[torch\]"):
            model.network()

    def test_onnxruntime_needs_no_torch(self, model, monkeypatch, patches):
        monkeypatch.setitem(sys.modules, "torch", None)
        assert open_runtime(model).describe(patches[:1]).shape == (1, 128)


class TestOnADevice:
    """In float32 on the CPU; half precision is tested in test_triton_network.py."""

    @pytest.mark.parametrize("count", [0, 1, 9])
    def test_keypoints_are_described_as_with_any_runtime(self, model, gray, count):
        random = np.random.default_rng(0)
        keypoints = Keypoints.from_points(random.uniform(0, 300, (count, 2)), np.full(count, 3.0), np.arange(count))
        runtime = DeviceRuntime(model, "cpu", "float32", chunk=4)
        found = runtime.describe_keypoints(gray, keypoints)
        expected = OnnxRuntime(model).describe_keypoints(gray, keypoints)
        assert found.shape == (count, 128)
        np.testing.assert_allclose(found, expected, atol=2e-5)

    @pytest.mark.parametrize(("xy", "size"), [((np.nan, 3), 4), ((3, np.inf), 4), ((3, 3), 0), ((3, 3), 1e9)])
    def test_keypoints_that_cannot_be_described_are_refused(self, model, gray, xy, size):
        keypoints = Keypoints.from_points([xy], size)
        with pytest.raises(KeypointError, match="1 of 1 keypoints"):
            DeviceRuntime(model, "cpu", "float32", chunk=4).describe_keypoints(gray, keypoints)

    def test_an_image_that_is_a_view(self, model, gray):
        runtime, keypoints = DeviceRuntime(model, "cpu", "float32", chunk=4), Keypoints.from_points([(30, 40)])
        view = gray[::2, ::-1]
        expected = runtime.describe_keypoints(view.copy(), keypoints)
        np.testing.assert_array_equal(runtime.describe_keypoints(view, keypoints), expected)

    def test_patches(self, model):
        patches = np.random.default_rng(1).random((6, model.sampling.rows, model.sampling.columns), np.float32)
        found = DeviceRuntime(model, "cpu", "float32", chunk=4).describe(patches)
        np.testing.assert_allclose(found, OnnxRuntime(model).describe(patches), atol=1e-4)
