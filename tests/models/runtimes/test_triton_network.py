"""The kernels for GPUs against the network itself: on a GPU where there is one, else by Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
pytest.importorskip("triton", reason="Triton comes with torch for CUDA, or by itself")

from logpolar.models import load_model
from logpolar.models.cards import NetworkOptions
from logpolar.models.network import DescriptorNetwork
from logpolar.models.runtimes.triton_network import TritonNetwork

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def with_statistics(network: DescriptorNetwork) -> DescriptorNetwork:
    """As if trained: means and variances of the batch normalisations that are not 0 and 1."""
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
    return network.eval().to(DEVICE)


def assert_same_descriptors(network: DescriptorNetwork, patches: torch.Tensor) -> None:
    patches = patches.to(DEVICE)
    with torch.inference_mode():
        expected, found = network(patches), TritonNetwork(network)(patches)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=0)


def test_default_model():
    assert_same_descriptors(load_model("logpolar-96").network().to(DEVICE), torch.rand(3, 32, 32))


@pytest.mark.parametrize("circular", [True, False])
def test_patches_whose_sides_are_no_powers_of_two(circular):
    torch.manual_seed(0)
    network = with_statistics(DescriptorNetwork(NetworkOptions(24, 12, circular)))
    assert_same_descriptors(network, torch.rand(5, 24, 12))


@pytest.mark.parametrize("channels", [(32, 64, 160), (16, 48, 64), (24, 8, 192), (1, 1, 1)])
def test_channels_that_are_no_powers_of_two(channels):
    torch.manual_seed(0)
    network = with_statistics(DescriptorNetwork(NetworkOptions(8, 8, True, channels=channels, strides=(1, 2, 1))))
    assert_same_descriptors(network, torch.rand(5, 8, 8))


def test_flat_patch_is_no_accident():
    network = load_model("logpolar-96").network().to(DEVICE)
    assert_same_descriptors(network, torch.full((1, 32, 32), 0.3))


def test_too_many_patches():
    network = TritonNetwork(with_statistics(DescriptorNetwork(NetworkOptions(4, 4))))
    with pytest.raises(ValueError, match="more than 16384"):
        network(torch.zeros(16385, 4, 4, device=DEVICE))
