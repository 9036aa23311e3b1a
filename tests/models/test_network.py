from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from logpolar.models.cards import NetworkOptions
from logpolar.models.network import DescriptorNetwork, normalise_contrast


def make_network(rows: int = 32, columns: int = 32, circular: bool = False, dropout: float = 0.1) -> DescriptorNetwork:
    """A network in eval mode whose batch normalisation has statistics that are not the neutral 0 and 1."""
    torch.manual_seed(0)
    network = DescriptorNetwork(NetworkOptions(rows, columns, circular, dropout)).eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.2, 0.6)
    return network


def random_patches(count: int, rows: int = 32, columns: int = 32) -> torch.Tensor:
    return torch.rand(count, rows, columns, generator=torch.Generator().manual_seed(1))


def trunk(network: DescriptorNetwork, patches: torch.Tensor) -> torch.Tensor:
    values = patches[:, None]
    with torch.no_grad():
        for block in network.blocks:
            values = block(values)
    return values


def block_by_hand(values: np.ndarray, block: nn.Module, stride: int, circular: bool) -> np.ndarray:
    """3 x 3 convolution, then batch normalisation, then ReLU, with loops over the output."""
    weight = block.convolution.weight.detach().numpy().astype(np.float64)
    mean, variance = block.norm.running_mean.numpy(), block.norm.running_var.numpy()
    padded = np.pad(values, ((0, 0), (0, 0), (1, 1)))
    padded = np.pad(padded, ((0, 0), (1, 1), (0, 0)), mode="wrap" if circular else "constant")
    rows, columns = values.shape[1] // stride, values.shape[2] // stride
    result = np.zeros((len(weight), rows, columns))
    for row in range(rows):
        for column in range(columns):
            window = padded[:, row * stride : row * stride + 3, column * stride : column * stride + 3]
            result[:, row, column] = (weight * window).sum(axis=(1, 2, 3))
    return np.maximum((result - mean[:, None, None]) / np.sqrt(variance + 1e-5)[:, None, None], 0)


class TestLayers:
    def test_as_many_parameters_as_the_paper_says(self):
        assert sum(parameter.numel() for parameter in make_network().parameters()) == 1_334_560

    def test_only_convolutions_are_learned(self):
        """Batch normalisation has no scale and shift, convolutions have no bias."""
        network = make_network()
        convolutions = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
        norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
        assert len(convolutions) == len(norms) == 7
        assert {id(p) for p in network.parameters()} == {id(c.weight) for c in convolutions}

    @pytest.mark.parametrize("circular", [False, True])
    @pytest.mark.parametrize(("number", "stride"), [(0, 1), (1, 1), (2, 2), (4, 2)])
    def test_a_block_by_hand(self, number, stride, circular):
        block = make_network(circular=circular).blocks[number]
        values = np.random.default_rng(0).normal(size=(block.convolution.in_channels, 8, 12))
        with torch.no_grad():
            found = block(torch.from_numpy(values.astype(np.float32))[None])[0].numpy()
        np.testing.assert_allclose(found, block_by_hand(values, block, stride, circular), atol=1e-4)

    @pytest.mark.parametrize("circular", [False, True])
    def test_blocks_end_with_relu(self, circular):
        values = trunk(make_network(circular=circular), random_patches(4))
        assert values.shape == (4, 128, 8, 8)
        assert values.min() == 0 < values.max()

    def test_dropout_only_while_training(self):
        network, patches = make_network(dropout=0.5), random_patches(8)
        with torch.no_grad():
            assert torch.equal(network(patches), network(patches))
            network.train()
            assert (network(patches) - network(patches)).abs().max() > 0.01

    def test_without_dropout_training_passes_agree(self):
        network, patches = make_network(dropout=0).train(), random_patches(8)
        with torch.no_grad():
            assert torch.equal(network(patches), network(patches))


SMALL = NetworkOptions(16, 24, circular=True, channels=(16, 32, 48), strides=(2, 1, 2))


def multiply_adds_by_running(network: DescriptorNetwork) -> int:
    """Of each output of each convolution as many as its kernel has weights."""
    counted = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(
                lambda layer, _, output: counted.append(output[0].numel() * layer.weight[0].numel())
            )
    with torch.no_grad():
        network(random_patches(1, network.options.rows, network.options.columns))
    return sum(counted)


class TestChannelsAndStrides:
    @pytest.mark.parametrize(
        "options",
        [
            NetworkOptions(),
            NetworkOptions(8, 16, circular=True),
            SMALL,
            NetworkOptions(16, 16, channels=(3, 5, 7, 9), strides=(2, 2, 2, 2)),
            NetworkOptions(3, 5, channels=(4,), strides=(1,)),
        ],
    )
    def test_multiply_adds(self, options):
        assert options.multiply_adds == multiply_adds_by_running(DescriptorNetwork(options).eval())

    def test_multiply_adds_of_the_large_one(self):
        assert 39e6 < NetworkOptions().multiply_adds < 39.2e6

    def test_layers_are_those_asked_for(self):
        network = DescriptorNetwork(SMALL)
        layers = [block.convolution for block in network.blocks]
        assert [(layer.in_channels, layer.out_channels, layer.stride[0]) for layer in layers] == [
            *((1, 16, 2), (16, 32, 1), (32, 48, 2)),
        ]
        assert network.head.weight.shape == (128, 48, 4, 6)

    def test_rolled_rows_roll_the_trunk(self):
        network, patches = DescriptorNetwork(SMALL).eval(), random_patches(3, 16, 24)
        rolled = trunk(network, patches.roll(4, dims=1))
        torch.testing.assert_close(rolled, trunk(network, patches).roll(1, dims=2), atol=1e-4, rtol=0)


class TestDescriptors:
    @pytest.mark.parametrize("circular", [False, True])
    @pytest.mark.parametrize(("rows", "columns"), [(32, 32), (24, 48), (4, 4), (16, 8)])
    def test_shape_and_length(self, rows, columns, circular):
        with torch.no_grad():
            descriptors = make_network(rows, columns, circular)(random_patches(5, rows, columns))
        assert descriptors.shape == (5, 128)
        np.testing.assert_allclose(np.linalg.norm(descriptors.numpy(), axis=1), 1, atol=1e-5)

    def test_descriptors_are_the_head_of_the_trunk(self):
        network, patches = make_network(), random_patches(3)
        values = trunk(network, normalise_contrast(patches)).numpy()
        weight = network.head.weight.detach().numpy()
        head = np.einsum("nchw,ochw->no", values, weight)
        head = (head - network.head_norm.running_mean.numpy()) / np.sqrt(network.head_norm.running_var.numpy() + 1e-5)
        with torch.no_grad():
            found = network(patches).numpy()
        np.testing.assert_allclose(found, head / np.linalg.norm(head, axis=1, keepdims=True), atol=1e-5)

    def test_contrast_by_plain_numpy(self):
        patches = random_patches(6, 24, 48).numpy()
        expected = [(patch - patch.mean()) / (patch.std(ddof=1) + 1e-4) for patch in patches.astype(np.float64)]
        np.testing.assert_allclose(normalise_contrast(torch.from_numpy(patches)).numpy(), expected, atol=1e-5)

    def test_contrast_counts_one_less_than_all(self):
        """On a 4 x 4 patch N and N - 1 differ by 3 %."""
        normalised = normalise_contrast(random_patches(1, 4, 4))
        assert normalised.square().sum().item() == pytest.approx(15, rel=2e-3)

    @pytest.mark.parametrize(("gain", "offset", "tolerance"), [(1, 0.3, 1e-4), (0.4, 0, 3e-3), (0.5, 0.4, 3e-3)])
    def test_gain_and_offset_of_a_patch_do_not_matter(self, gain, offset, tolerance):
        """A gain matters a little, by the floor under the contrast."""
        network, patches = make_network(), random_patches(6)
        with torch.no_grad():
            descriptors, changed = network(patches), network(gain * patches + offset)
        assert (descriptors - changed).abs().max() < tolerance
        assert (descriptors - descriptors.roll(1, dims=0)).abs().max() > 0.05


class TestCircularRows:
    def test_rolled_rows_roll_the_trunk(self):
        network, patches = make_network(circular=True), random_patches(3)
        rolled = trunk(network, patches.roll(4, dims=1))
        torch.testing.assert_close(rolled, trunk(network, patches).roll(1, dims=2), atol=1e-4, rtol=0)

    def test_not_without_circular_padding(self):
        network, patches = make_network(circular=False), random_patches(3)
        rolled = trunk(network, patches.roll(4, dims=1))
        assert (rolled - trunk(network, patches).roll(1, dims=2)).abs().max() > 0.1

    def test_columns_do_not_continue(self):
        network, patches = make_network(circular=True), random_patches(3)
        rolled = trunk(network, patches.roll(4, dims=2))
        assert (rolled - trunk(network, patches).roll(1, dims=3)).abs().max() > 0.1
