from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from logpolar.models.cards import DetectorOptions
from logpolar.models.detector_network import CONTRAST_FLOOR, DetectorNetwork, normalise_locally

OPTIONS = DetectorOptions((4, 6, 8), (1, 2, 1), window=3)


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    network = DetectorNetwork(OPTIONS)
    network(torch.randn(2, 64, 64))
    return network.eval()


def test_a_score_for_every_pixel(network):
    with torch.inference_mode():
        assert network(torch.randn(2, 24, 40)).shape == (2, 24, 40)


def test_parameters_and_multiply_adds_are_those_of_the_convolutions(network):
    counted = []

    def count(module, inputs, output):
        counted.append(module.weight.numel() * output.shape[2] * output.shape[3])

    hooks = [each.register_forward_hook(count) for each in network.convolutions.values()]
    with torch.inference_mode():
        network(torch.randn(1, 32, 48))
    for hook in hooks:
        hook.remove()
    assert sum(counted) == OPTIONS.multiply_adds * 32 * 48


def test_scores_depend_on_pixels_within_reach_only(network):
    side, middle = 256, 131
    image = torch.randn(1, side, side, dtype=torch.float64, requires_grad=True)
    doubled = network.double()
    doubled(image)[0, middle, middle].backward()
    rows, columns = np.nonzero(image.grad[0].numpy())
    network.float()
    seen = max(np.abs(rows - middle).max(), np.abs(columns - middle).max())
    assert 8 < seen <= OPTIONS.reach - OPTIONS.window


def test_folded_weights_compute_the_same(network):
    weights = network.folded()

    def convolve(name, values):
        layer = OPTIONS.layers[name]
        return functional.conv2d(
            values, weights[f"{name}.weight"], weights[f"{name}.bias"], layer.stride, layer.shape[2] // 2
        )

    image = torch.randn(1, 1, 32, 32)
    values = convolve("down0", image)
    with torch.inference_mode():
        expected = network.norms["down0"](network.convolutions["down0"](image))
    assert torch.allclose(values, expected, atol=1e-5)


def test_local_contrast_against_windows_one_by_one():
    image = np.random.default_rng(0).random((9, 12)).astype(np.float32)
    found = normalise_locally(torch.from_numpy(image)[None], 3)[0].numpy()
    padded = np.pad(image.astype(np.float64), 3, mode="reflect")
    for y, x in ((0, 0), (4, 5), (8, 11), (2, 10)):
        window = padded[y : y + 7, x : x + 7]
        expected = (image[y, x] - window.mean()) / (window.std() + CONTRAST_FLOOR)
        assert found[y, x] == pytest.approx(expected, abs=1e-4)


def test_local_contrast_does_not_depend_on_brightness():
    image = torch.rand(1, 40, 40, generator=torch.Generator().manual_seed(0))
    found, darker = normalise_locally(image, 8), normalise_locally(0.5 * image + 0.1, 8)
    assert torch.corrcoef(torch.stack([found.flatten(), darker.flatten()]))[0, 1] > 0.999


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 2)])
def test_images_smaller_than_the_window(shape):
    assert torch.isfinite(normalise_locally(torch.full((1, *shape), 0.3), 16)).all()


def test_without_a_window_images_are_centred():
    assert normalise_locally(torch.tensor([[[0.0, 1.0]]]), 0).tolist() == [[[-1.0, 1.0]]]
