"""The network of matchers, against attention in loops and against what must not matter."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from logpolar.models.matcher_cards import MatcherOptions
from logpolar.models.matcher_network import Attention, Lookup, MatcherNetwork, position_waves

OPTIONS = MatcherOptions(inputs=8, width=16, heads=2, layers=2)


@pytest.fixture(scope="module")
def network() -> MatcherNetwork:
    torch.manual_seed(0)
    made = MatcherNetwork(OPTIONS).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return made


def make_inputs(count: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    descriptors = torch.nn.functional.normalize(torch.randn(2, count, 8, generator=generator), dim=-1)
    table = torch.randn(2, count, 6, generator=generator)
    table[..., 4:] = 1
    return descriptors, table


def far(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(first, second, strict=True))


@torch.no_grad()
def test_attention_is_that_of_a_loop_over_queries_and_keys():
    torch.manual_seed(0)
    attention, heads, half = Attention(OPTIONS), OPTIONS.heads, OPTIONS.head_width // 2
    states, keys = torch.randn(1, 3, 16), torch.randn(1, 4, 16)
    phases = [torch.randn(1, heads, count, half) for count in (3, 4)]
    for each in phases:
        each[..., -1] = 0
    mask = torch.tensor([[True, True, False, True]])
    found = attention(states, (phases[0].cos(), phases[0].sin()), keys, (phases[1].cos(), phases[1].sin()), mask)

    weight, bias = attention.query_key_value.weight, attention.query_key_value.bias
    query = (attention.norm(states) @ weight[:16].T + bias[:16])[0]
    key = (attention.norm(keys) @ weight[16:32].T + bias[16:32])[0]
    value = (attention.norm(keys) @ weight[32:].T + bias[32:])[0]
    mixed = torch.zeros(3, 16)
    for head in range(heads):
        part = slice(head * 2 * half, (head + 1) * 2 * half)
        for i in range(3):
            logits = []
            for j in (0, 1, 3):  # key 2 is padding
                # As complex numbers a rotation is a product, and only the difference of phases remains.
                a = torch.complex(query[i, part][:half], query[i, part][half:])
                b = torch.complex(key[j, part][:half], key[j, part][half:])
                turned = a * b.conj() * torch.exp(1j * (phases[0][0, head, i] - phases[1][0, head, j]))
                products = turned.real
                products[-1] = query[i, part][half - 1] * key[j, part][half - 1]  # the mask's channel is not theirs
                logits.append(products.sum() / math.sqrt(2 * half))
            weights = torch.softmax(torch.stack(logits), dim=0)
            mixed[i, part] = sum(w * value[j, part] for w, j in zip(weights, (0, 1, 3), strict=True))
    torch.testing.assert_close(found[0], states[0] + mixed @ attention.out.weight.T + attention.out.bias)


@torch.no_grad()
def test_a_lookup_weights_keypoints_by_their_descriptors():
    torch.manual_seed(0)
    lookup = Lookup(OPTIONS)
    lookup.sharpness.fill_(3.0)
    states, keys = torch.randn(1, 3, 16), torch.randn(1, 4, 16)
    looks = torch.randn(1, 3, 8), torch.randn(1, 4, 8)
    found = lookup(states, keys, looks, torch.tensor([[True, True, False, True]]))
    value = lookup.norm(keys)[0] @ lookup.value.weight.T + lookup.value.bias
    for i in range(3):
        weights = {j: math.exp(3 * float(looks[0][0, i] @ looks[1][0, j])) for j in (0, 1, 3)}  # key 2 is padding
        mixed = sum(weight * value[j] for j, weight in weights.items()) / sum(weights.values())
        torch.testing.assert_close(found[0, i], states[0, i] + mixed @ lookup.out.weight.T + lookup.out.bias)


def test_waves_of_positions():
    found = position_waves(torch.tensor([0.3, -0.7])).tolist()
    phases = [math.pi / 2 * 2**k * value for value in (0.3, -0.7) for k in range(6)]
    assert found == pytest.approx([*map(math.cos, phases), *map(math.sin, phases)], abs=1e-5)


def test_blind_pairs_start_without_descriptors_but_look_them_up(network):
    blind = MatcherNetwork(OPTIONS, blind=1.0)
    blind.load_state_dict(network.state_dict())
    descriptors, table = make_inputs()
    seen: list[torch.Tensor] = []
    blind.encoder.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    before = blind.train()(descriptors, table)
    assert not seen[0].any()
    assert far(before, blind(descriptors.flip(1), table)) > 1e-4


class TestWhatDoesNotMatter:
    def test_padding(self, network):
        (descriptors, table), mask = make_inputs(), torch.ones(2, 5, dtype=torch.bool)
        mask[0, 3:] = False
        before = [states[mask] for states in network(descriptors, table, mask)]
        descriptors[0, 3:], table[0, 3:] = 7, 3
        assert far(before, [states[mask] for states in network(descriptors, table, mask)]) == 0

    def test_an_image_that_is_all_padding_makes_no_nan(self, network):
        mask = torch.ones(2, 5, dtype=torch.bool)
        mask[0] = False
        assert all(states.isfinite().all() for states in network(*make_inputs(), mask))

    def test_the_order_of_keypoints(self, network):
        (descriptors, table), order = make_inputs(), torch.tensor([3, 1, 4, 0, 2])
        first, second = network(descriptors, table), network(descriptors[:, order], table[:, order])
        assert far([states[:, order] for states in first], second) < 1e-5

    def test_whole_turns_of_the_angles(self, network):
        descriptors, table = make_inputs()
        turned = table.clone()
        turned[..., 3] += 2 * np.pi
        assert far(network(descriptors, table), network(descriptors, turned)) < 1e-5

    def test_which_image_is_first(self, network):
        descriptors, table = make_inputs()
        swapped = network(descriptors.flip(0), table.flip(0))
        assert far(network(descriptors, table), [states.flip(0) for states in swapped]) < 1e-5


def test_positions_sizes_and_angles_matter(network):
    descriptors, table = make_inputs()
    before = network(descriptors, table)
    for column in range(4):
        changed = table.clone()
        changed[0, 0, column] += 0.5
        assert far(before, network(descriptors, changed)) > 1e-4


@torch.no_grad()
def test_an_untrained_network_prefers_equal_descriptors():
    torch.manual_seed(0)
    network = MatcherNetwork(MatcherOptions(width=128, heads=2, layers=1)).eval()
    descriptors = torch.nn.functional.normalize(torch.randn(1, 20, 128), dim=-1)
    table = torch.rand(2, 20, 6)
    states = network(torch.cat([descriptors, descriptors]), table)[-1]
    first, second = network.layers[0].head(states, torch.cat([descriptors, descriptors]))[0]
    assert (first @ second.T).argmax(dim=1).tolist() == list(range(20))


def test_dropout_is_for_training_alone(network):
    inputs = make_inputs()
    torch.manual_seed(0)
    other = MatcherNetwork(OPTIONS, dropout=0.5)
    other.load_state_dict(network.state_dict())
    assert far(other.eval()(*inputs), network(*inputs)) == 0
    assert far(other.train()(*inputs), network(*inputs)) > 0.01
