from __future__ import annotations

import numpy as np
import pytest
import torch

from logpolar.models import detectors
from logpolar.models.cards import DetectorCard, DetectorOptions
from logpolar.models.detector_export import save_detector
from logpolar.models.detector_network import DetectorNetwork, normalise_locally
from logpolar.models.detectors import NetworkDetector


def test_the_file_computes_what_the_network_computes(tmp_path, gray):
    torch.manual_seed(0)
    network = DetectorNetwork(DetectorOptions((4, 6, 8), (1, 1, 1), window=5))
    for _ in range(3):
        network(torch.randn(2, 64, 64))
    network.eval()
    for layer in network.convolutions.values():  # weights are stored in half precision
        layer.weight.data = layer.weight.data.half().float()
    path = tmp_path / "detector.safetensors"
    save_detector(path, network, DetectorCard("detector", "A test.", network.options))
    image = gray[100:164, 200:288]
    with torch.inference_mode():
        expected = network(normalise_locally(torch.from_numpy(image)[None].contiguous(), 5))[0].numpy()
    found = NetworkDetector(path).network_scores(detectors.normalise_locally(image, 5))
    assert np.abs(found - expected).max() < 0.02 * expected.std()


def test_a_card_of_another_network_is_refused(tmp_path):
    network = DetectorNetwork(DetectorOptions((4, 6, 8), (1, 1, 1)))
    with pytest.raises(ValueError, match="another network"):
        save_detector(tmp_path / "x.safetensors", network, DetectorCard("x", "", DetectorOptions()))
