"""A small network as if trained, and models made of it; not to be changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logpolar.models import Model, load_model
from logpolar.models.cards import ModelCard, NetworkOptions
from logpolar.models.export import save_model
from logpolar.models.network import DescriptorNetwork
from logpolar.models.quantisation import make_variant
from logpolar.sampling import LogPolar

OPTIONS = NetworkOptions(8, 16, circular=True)
SAMPLING = LogPolar(40, 8, 16, inner_radius=0.5, outside="mean")


@pytest.fixture(scope="session")
def tiny_patches() -> np.ndarray:
    smooth = np.cumsum(np.random.default_rng(0).normal(size=(600, 8, 16)), axis=2) / 8
    return (0.5 + 0.1 * smooth).astype(np.float32)


@pytest.fixture(scope="session")
def tiny_network(tiny_patches) -> DescriptorNetwork:
    torch.manual_seed(0)
    network = DescriptorNetwork(OPTIONS)
    for _ in range(20):  # moves the statistics of the batch normalisation to where they belong
        network(torch.from_numpy(tiny_patches[:100]))
    return network.eval()


@pytest.fixture(scope="session")
def tiny_model(tiny_network, tmp_path_factory, export_once) -> Model:
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    card = ModelCard("tiny", "A test.", SAMPLING, OPTIONS, {"data": "none"}, {"old": {"a": 1}})
    with export_once():
        save_model(path, tiny_network, card)
    return load_model(path)


@pytest.fixture(scope="session")
def tiny_int8(tiny_model, tiny_patches, tmp_path_factory) -> Model:
    path = tmp_path_factory.mktemp("variant") / "tiny-int8.safetensors"
    return make_variant(path, tiny_model, "int8", tiny_patches, "noise")
