"""Describing on a torch device: against the library's own way, image by image."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from logpolar.errors import KeypointError, LogpolarError
from logpolar.features.extractor import Extractor
from logpolar.keypoints import Keypoints
from logpolar.models import load_model
from logpolar.models.describers import open_describer
from logpolar.models.runtimes.torch_device import TorchDescriber, find_device, network_on
from logpolar.sampling import ImagePyramid, LogPolar
from logpolar.sampling.torch_lookup import TorchPyramids


def some_keypoints(count: int, seed: int, side: int) -> Keypoints:
    random = np.random.default_rng(seed)
    xy, size = random.uniform(0, side, (count, 2)), np.exp(random.uniform(0, 2, count))
    return Keypoints.from_points(xy, size, random.uniform(0, 360, count))


def test_images_of_different_sizes_are_described_together_as_each_alone(gray):
    model = load_model("logpolar-96")
    images = [gray[:200, :260], gray[150:250, 100:260], gray[40:300, 80:200]]
    keypoints = [some_keypoints(count, seed, 100) for seed, count in enumerate((7, 0, 20))]
    describer = TorchDescriber(model.network(), model.sampling, chunk=16)
    number = torch.cat([torch.full((len(each),), k) for k, each in enumerate(keypoints)])
    table = torch.from_numpy(np.concatenate([each.table for each in keypoints]))
    found = describer.describe_on_device(
        TorchPyramids([torch.from_numpy(each.copy()) for each in images]), number, table
    )
    alone = Extractor(model, max_size=None)
    expected = [alone.extract(image, each).descriptors for image, each in zip(images, keypoints, strict=True)]
    np.testing.assert_allclose(found.numpy(), np.concatenate(expected), atol=2e-5)


def test_samples_on_the_very_edge_of_an_image_fall_to_the_same_side_as_on_the_cpu(gray):
    pattern = LogPolar(outside="mean")
    keypoints = some_keypoints(64, 0, 100)
    columns = [values.astype(np.float64) for values in (keypoints.xy, keypoints.size, keypoints.angle)]
    offset = pattern.locate(0 * columns[0], *columns[1:]).x[:, 9, 28]
    xy = np.stack([-0.5 - offset, keypoints.xy[:, 1]], axis=1)  # sample (9, 28) is at x = -0.5, but for rounding
    keypoints = Keypoints.from_points(xy, keypoints.size, keypoints.angle)
    pyramids, number = TorchPyramids([torch.from_numpy(gray)]), torch.zeros(64, dtype=torch.long)
    table = torch.from_numpy(keypoints.table)
    found = TorchDescriber(lambda patches: patches, pattern).describe_on_device(pyramids, number, table)
    expected = ImagePyramid(gray).sample(keypoints, pattern)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-4)
    single = pyramids.sample(number, table[:, :2], table[:, 2], table[:, 3], pattern)
    assert np.abs(single.numpy() - expected).max() > 0.01  # in float32 some fall to the other


def test_chunks_are_filled_up():
    seen = []

    def network(patches: torch.Tensor) -> torch.Tensor:
        seen.append(len(patches))
        return patches.flatten(1)

    model = load_model("logpolar-96")
    pyramids = TorchPyramids([torch.rand(50, 60)])
    table = torch.from_numpy(some_keypoints(11, 0, 50).table)
    found = TorchDescriber(network, model.sampling, chunk=4).describe_on_device(
        pyramids, torch.zeros(11, dtype=torch.long), table
    )
    assert seen == [4, 4, 4]
    assert len(found) == 11


def test_no_keypoints():
    model = load_model("logpolar-96")
    describer = TorchDescriber(model.network(), model.sampling)
    found = describer.describe_on_device(
        TorchPyramids([torch.rand(9, 9)]), torch.zeros(0, dtype=torch.long), torch.zeros(0, 4)
    )
    assert found.shape == (0, 128)


def test_networks_run_without_tf32_and_gradients():
    torch.backends.cudnn.allow_tf32 = True
    seen = []

    def network(patches: torch.Tensor) -> torch.Tensor:
        seen.append((torch.backends.cudnn.allow_tf32, torch.is_inference_mode_enabled()))
        return patches.flatten(1)

    TorchDescriber(network, LogPolar()).describe_patches(np.zeros((1, 32, 32), np.float32))
    assert seen == [(False, True)]
    assert torch.backends.cudnn.allow_tf32


class OnOtherDevice(TorchDescriber):
    """On the CPU, by the way of a GPU."""

    def __init__(self, model):
        super().__init__(model.network(), model.sampling, "cpu", chunk=4)
        self._device = OtherDevice()


class OtherDevice(str):
    type = "other"

    def __new__(cls):
        return super().__new__(cls, "cpu")


@pytest.fixture(scope="module")
def describer():
    return OnOtherDevice(load_model("logpolar-96"))


class TestGpuPath:
    """In float32 on the CPU; half precision is tested in test_triton_network.py."""

    @pytest.mark.parametrize("count", [0, 1, 9])
    def test_keypoints_are_described_as_by_any_describer(self, describer, gray, count):
        keypoints = some_keypoints(count, 0, 300)
        expected = open_describer("logpolar-96").describe(gray, keypoints)
        found = describer.describe(gray, keypoints)
        assert found.shape == (count, 128)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=2e-5)

    @pytest.mark.parametrize(("xy", "size"), [((np.nan, 3), 4), ((3, np.inf), 4), ((3, 3), 0), ((3, 3), 1e9)])
    def test_keypoints_that_cannot_be_described_are_refused(self, describer, gray, xy, size):
        with pytest.raises(KeypointError, match="1 of 1 keypoints"):
            describer.describe(gray, Keypoints.from_points([xy], size))

    def test_an_image_that_is_a_view(self, describer, gray):
        keypoints, view = Keypoints.from_points([(30, 40)]), gray[::2, ::-1]
        expected = describer.describe(view.copy(), keypoints)
        np.testing.assert_array_equal(describer.describe(view, keypoints), expected)

    def test_patches(self, describer):
        patches = np.random.default_rng(1).random((6, 32, 32), np.float32)
        expected = open_describer("logpolar-96").describe_patches(patches)
        np.testing.assert_allclose(describer.describe_patches(patches), expected, atol=1e-4)


def test_descriptors_of_any_length(gray):
    describer = TorchDescriber(lambda patches: patches.mean(dim=(1, 2))[:, None], LogPolar(12, 2, 2), chunk=64)
    keypoints = some_keypoints(150, 0, 100)
    found = describer.describe(gray, keypoints)
    assert found.shape == (150, 1)
    expected = ImagePyramid(gray).sample(keypoints, describer.sampling).mean(axis=(1, 2))
    np.testing.assert_allclose(found[:, 0], expected, atol=1e-6)


def test_a_device_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert find_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(LogpolarError, match="no device 'cuda:2': torch finds only 2 CUDA devices"):
        find_device("cuda:2")


def test_half_precision_without_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "logpolar.models.runtimes.triton_network", raising=False)
    with pytest.raises(LogpolarError, match="needs Triton: pip install triton, or choose precision float32"):
        network_on(load_model("logpolar-96"), torch.device("cpu"), half=True)
