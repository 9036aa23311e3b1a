"""Describing with torch, against the numpy look-up and the network itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logpolar.evaluation.descriptors.torch_describer import torch_describer
from logpolar.images import to_bytes
from logpolar.keypoints import Keypoints
from logpolar.models.cards import NetworkOptions
from logpolar.models.network import DescriptorNetwork
from logpolar.sampling import Cartesian, LogPolar, sample_patches


def random_keypoints(count: int, seed: int = 0) -> Keypoints:
    random = np.random.default_rng(seed)
    xy, size = random.uniform(0, 100, (count, 2)), np.exp(random.uniform(0, 2, count))
    return Keypoints.from_points(xy, size, random.uniform(0, 360, count))


@pytest.fixture(scope="module")
def network() -> DescriptorNetwork:
    torch.manual_seed(0)
    return DescriptorNetwork(NetworkOptions(8, 8)).eval()


@pytest.fixture(scope="module")
def view(gray) -> np.ndarray:
    return to_bytes(gray[100:200, 150:250])


class Numbers(torch.nn.Module):
    """In the place of a network: the mean of a patch; remembers how many patches came."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def forward(self, patches):
        self.counts.append(len(patches))
        return patches.mean(dim=(1, 2))[:, None]


@pytest.mark.parametrize("pattern", [LogPolar(rows=8, columns=8), Cartesian(rows=8, columns=8, outside="mean")])
def test_is_the_network_on_numpy_patches(network, view, pattern):
    keypoints = random_keypoints(30)
    found = torch_describer(network, pattern, "cpu")(view, keypoints)
    patches = sample_patches(view.astype(np.float32) / 255, keypoints, pattern)
    with torch.no_grad():
        expected = network(torch.from_numpy(patches)).numpy()
    assert found.shape == (30, 128)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=5e-3)


@pytest.mark.parametrize("count", [1, 1023, 1024, 1025, 2500])
def test_any_number_of_keypoints(view, count):
    """The network always sees the same number of patches; what comes out is for the keypoints, in their order."""
    network, keypoints, pattern = Numbers(), random_keypoints(count), LogPolar(12, 2, 2)
    found = torch_describer(network, pattern, "cpu")(view, keypoints)
    expected = sample_patches(view.astype(np.float32) / 255, keypoints, pattern).mean(axis=(1, 2))
    assert found.shape == (count, 1)
    np.testing.assert_allclose(found[:, 0], expected, atol=2e-4)
    assert set(network.counts) == {1024}
    assert len(network.counts) == -(-count // 1024)


def test_no_keypoints(network, view):
    found = torch_describer(network, LogPolar(rows=8, columns=8), "cpu")(view, Keypoints.empty())
    assert found.shape == (0, 128)
    assert found.dtype == np.float32


def test_nothing_is_remembered_of_another_view(view):
    describe = torch_describer(Numbers(), LogPolar(12, 2, 2), "cpu")
    keypoints = random_keypoints(5)
    before = describe(view, keypoints)
    describe(255 - view, random_keypoints(9, 1))
    np.testing.assert_array_equal(describe(view, keypoints), before)
    np.testing.assert_allclose(describe(255 - view, keypoints), 1 - before, atol=1e-4)


def test_no_gradients_are_kept(network, view):
    torch_describer(network, LogPolar(rows=8, columns=8), "cpu")(view, random_keypoints(3))
    assert all(values.grad is None for values in network.parameters())
    assert not network.training
