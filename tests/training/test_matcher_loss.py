"""The loss of matchers, against loops over keypoints."""

from __future__ import annotations

import math

import torch

from logpolar.models.matcher_cards import MatcherOptions
from logpolar.models.matcher_network import MatcherNetwork, log_assignment
from logpolar.training.matcher_loss import decisions, layer_loss, matcher_loss
from logpolar.training.matcher_truth import Truth


def make_truth() -> Truth:
    """Keypoint 0 matches 2; 1 is alone; 2 is uncertain. Of the second image 0 is alone."""
    match = torch.tensor([[2, -1, -1]])
    flags = [[True, False, False], [False, False, True], [False, True, False], [True, False, False]]
    matched, back_matched, alone, back_alone = (torch.tensor([each]) for each in flags)
    empty = torch.zeros(1, 3, 3, dtype=torch.bool)
    return Truth(match, matched, back_matched, alone, back_alone, empty, empty)


def test_probability_and_loss_are_those_of_loops():
    torch.manual_seed(0)
    vectors, logits = torch.randn(2, 3, 4), torch.randn(2, 3)
    mask = torch.tensor([[True, True, True], [True, True, True]])
    found = log_assignment(vectors, logits, mask)
    chance = torch.sigmoid(logits)
    for i in range(3):
        for j in range(3):
            products = [[math.exp(float(vectors[0, a] @ vectors[1, b])) for b in range(3)] for a in range(3)]
            row, column = products[i][j] / sum(products[i]), products[i][j] / sum(each[j] for each in products)
            expected = row * column * float(chance[0, i] * chance[1, j])
            assert math.isclose(math.exp(float(found[0, i, j])), expected, rel_tol=1e-4)
    expected = -float(found[0, 0, 2]) / 2 - float((1 - chance[0, 1]).log() + (1 - chance[1, 0]).log()) / 4
    assert math.isclose(float(layer_loss(found, logits, make_truth())), expected, rel_tol=1e-5)


def test_padding_changes_nothing():
    torch.manual_seed(0)
    vectors, logits = torch.randn(2, 3, 4), torch.randn(2, 3)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    before = log_assignment(vectors, logits, mask)[:, :2]
    vectors[0, 2] = 50
    torch.testing.assert_close(log_assignment(vectors, logits, mask)[:, :2], before)
    assert decisions(log_assignment(vectors, logits, mask))[0][0, 2] == -1


def test_all_weights_learn_and_the_loss_falls():
    torch.manual_seed(0)
    network = MatcherNetwork(MatcherOptions(inputs=4, width=16, heads=2, layers=2))
    descriptors, table = torch.nn.functional.normalize(torch.randn(2, 3, 4), dim=-1), torch.rand(2, 3, 6)
    mask = torch.ones(2, 3, dtype=torch.bool)
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss, _ = matcher_loss(network, network(descriptors, table, mask), descriptors, make_truth(), mask)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.6 * losses[0]
    assert [name for name, each in network.named_parameters() if each.grad is None] == []
