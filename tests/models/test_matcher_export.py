"""The ONNX pieces of a matcher, against the network in torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from logpolar.features.features import Features
from logpolar.keypoints import Keypoints
from logpolar.matching.learned import LearnedMatcher
from logpolar.models.matcher_cards import MatcherCard, MatcherOptions, keypoint_table
from logpolar.models.matcher_export import save_matcher
from logpolar.models.matcher_files import MatcherModel, load_matcher
from logpolar.models.matcher_network import MatcherNetwork, log_assignment

OPTIONS = MatcherOptions(inputs=8, width=16, heads=2, layers=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> MatcherModel:
    torch.manual_seed(0)
    network = MatcherNetwork(OPTIONS)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    path = tmp_path_factory.mktemp("matcher") / "m.safetensors"
    save_matcher(path, network, MatcherCard("m", "a matcher", OPTIONS, "logpolar-96", "abc"))
    return load_matcher(path)


def make_features(count: int, seed: int) -> Features:
    random = np.random.default_rng(seed)
    descriptors = random.normal(size=(count, 8)).astype(np.float32)
    keypoints = Keypoints.from_points(
        random.uniform(0, 90, (count, 2)), random.uniform(2, 9, count), random.uniform(0, 360, count)
    )
    return Features(keypoints, descriptors / np.linalg.norm(descriptors, axis=1, keepdims=True), (120, 90))


@torch.no_grad()
def test_matches_are_those_of_the_network(model):
    first, second = make_features(6, 0), make_features(6, 1)
    descriptors = torch.from_numpy(np.stack([each.descriptors for each in (first, second)]))
    table = torch.from_numpy(np.stack([keypoint_table(each.keypoints, each.image_size) for each in (first, second)]))
    network = model.network()
    vectors, logits, _ = network.layers[-1].head(network(descriptors, table)[-1], descriptors)
    expected = log_assignment(vectors, logits, torch.ones(2, 6, dtype=torch.bool))[0].exp().numpy()
    pairs = [(i, j) for i in range(6) for j in [expected[i].argmax()] if expected[:, j].argmax() == i]
    found = LearnedMatcher(model, threshold=0, early_exit=False, threads=1).match(first, second)
    assert found.indices.tolist() == [list(pair) for pair in pairs]
    np.testing.assert_allclose(found.confidence, [expected[pair] for pair in pairs], rtol=1e-3)


def test_the_card_and_the_weights_survive(model):
    assert model.card.descriptor_hash == "abc"
    model.check_graphs()
    assert set(model.network().state_dict()) == set(model.weights)
