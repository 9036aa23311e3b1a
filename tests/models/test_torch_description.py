"""Describing on a torch device: against the library's own way, image by image."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from logpolar.errors import LogpolarError
from logpolar.features.extractor import Extractor
from logpolar.keypoints import Keypoints
from logpolar.models import load_model
from logpolar.models.torch_description import TorchDescriber, full_float32, network_on
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
    describer = TorchDescriber(network_on(model, "cpu"), model.sampling, chunk=16)
    number = torch.cat([torch.full((len(each),), k) for k, each in enumerate(keypoints)])
    table = torch.from_numpy(np.concatenate([each.table for each in keypoints]))
    found = describer.describe(TorchPyramids([torch.from_numpy(each.copy()) for each in images]), number, table)
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
    found = TorchDescriber(lambda patches: patches, pattern).describe(pyramids, number, table)
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
    found = TorchDescriber(network, model.sampling, chunk=4).describe(
        pyramids, torch.zeros(11, dtype=torch.long), table
    )
    assert seen == [4, 4, 4]
    assert len(found) == 11


def test_no_keypoints():
    model = load_model("logpolar-96")
    describer = TorchDescriber(network_on(model, "cpu"), model.sampling)
    found = describer.describe(TorchPyramids([torch.rand(9, 9)]), torch.zeros(0, dtype=torch.long), torch.zeros(0, 4))
    assert found.shape == (0, 128)


def test_full_float32_allows_no_tf32():
    torch.backends.cudnn.allow_tf32 = True
    allowed = full_float32(lambda patches: torch.tensor(torch.backends.cudnn.allow_tf32))(torch.zeros(1))
    assert not bool(allowed)
    assert torch.backends.cudnn.allow_tf32


def test_half_precision_without_triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "logpolar.models.triton_network", raising=False)
    with pytest.raises(LogpolarError, match="needs Triton: pip install triton, or use another runtime"):
        network_on(load_model("logpolar-96"), "cpu", "float16")
