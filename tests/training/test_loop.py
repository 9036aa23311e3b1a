from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from logpolar.datasets.homographies import make_view_pair
from logpolar.datasets.options import ViewOptions
from logpolar.images import to_bytes
from logpolar.models import NetworkOptions
from logpolar.network import DescriptorNetwork
from logpolar.sampling import LogPolar
from logpolar.training.batches import BatchOptions, PairSampler
from logpolar.training.loop import TrainingOptions, train
from logpolar.training.loss import hardest_triplet_loss

NETWORK = NetworkOptions(16, 16, circular=True)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Sums have one order then: runs are equal to the last bit."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def sampler(gray):
    pixels = to_bytes(gray)
    pairs = [
        make_view_pair(pixels[top : top + 240], pixels, ViewOptions(max_zoom=1.5), np.random.default_rng(top))
        for top in (0, 100, 200)
    ]
    return PairSampler(pairs, LogPolar(rows=16, columns=16), BatchOptions(pairs=2, per_pair=16), "cpu")


class SamplerOf:
    """Draws the same patches every time."""

    def __init__(self, first: torch.Tensor, second: torch.Tensor) -> None:
        self.patches = first, second

    def draw(self, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        return self.patches


def weights(network: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


def test_loss_falls(sampler):
    losses = []
    options = TrainingOptions(steps=30, learning_rate=2)
    train(sampler, NETWORK, options, report=lambda state: losses.append(state.loss), report_every=6)
    assert len(losses) == 5
    assert losses[-1] < losses[0] - 0.05


def test_trained_network_is_better_on_other_batches(sampler):
    def loss_of(learning_rate):
        network = train(sampler, NETWORK, TrainingOptions(steps=30, learning_rate=learning_rate))
        generator = torch.Generator().manual_seed(77)
        with torch.no_grad():
            batches = [[network(patches) for patches in sampler.draw(generator)] for _ in range(6)]
        return np.mean([hardest_triplet_loss(*batch).item() for batch in batches])

    assert loss_of(0.5) < loss_of(0) - 0.03


def test_seed_decides(sampler):
    one, same, other = (weights(train(sampler, NETWORK, TrainingOptions(steps=3, seed=seed))) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert (one - other).abs().max() > 0.01


def test_first_weights_are_those_of_the_seed(sampler):
    network = train(sampler, NETWORK, TrainingOptions(steps=1, seed=5, learning_rate=0))
    torch.manual_seed(5)
    torch.testing.assert_close(weights(network), weights(DescriptorNetwork(NETWORK)))


def test_network_is_ready_to_describe(sampler):
    network = train(sampler, NETWORK, TrainingOptions(steps=1))
    assert not network.training
    assert network.options == NETWORK


def test_steps_by_hand():
    """Momentum that is an average, weight decay, a rate that falls linearly to 0; no dropout, so nothing is drawn."""
    generator = torch.Generator().manual_seed(0)
    first = torch.rand(8, 8, 8, generator=generator)
    second = first + 0.2 * torch.rand(8, 8, 8, generator=generator)
    plain, options = NetworkOptions(8, 8, dropout=0), TrainingOptions(steps=3, learning_rate=0.5, weight_decay=0.01)
    found = train(SamplerOf(first, second), plain, options)

    torch.manual_seed(options.seed)
    network = DescriptorNetwork(plain).train()
    momentum: dict[str, torch.Tensor] = {}
    for step in range(3):
        rate = 0.5 * (1 - step / 3)
        loss = hardest_triplet_loss(*network(torch.cat([first, second])).chunk(2))
        network.zero_grad()
        loss.backward()
        with torch.no_grad():
            for name, values in network.named_parameters():
                slope = values.grad + 0.01 * values
                momentum[name] = 0.9 * momentum[name] + 0.1 * slope if step else slope
                values -= rate * momentum[name]
    torch.testing.assert_close(weights(found), weights(network), atol=1e-4, rtol=0)


def test_reports(sampler):
    """Every so many steps, with the mean loss since the last report."""
    options = TrainingOptions(steps=5, learning_rate=0.01)
    every, second = [], []
    train(sampler, NETWORK, options, report=every.append, report_every=1)
    train(sampler, NETWORK, options, report=second.append, report_every=2)
    assert [state.step for state in every] == [1, 2, 3, 4, 5]
    assert [state.step for state in second] == [2, 4, 5]
    losses = [state.loss for state in every]
    means = [np.mean(losses[:2]), np.mean(losses[2:4]), losses[4]]
    assert [state.loss for state in second] == pytest.approx(means, abs=1e-4)
    assert all(state.steps_per_second > 0 for state in every)


def test_margin(sampler):
    """A margin beyond any distance makes every triplet count: the loss grows with it, one for one."""
    losses = []
    for margin in (3.0, 4.0):
        options = replace(TrainingOptions(), steps=1, margin=margin)
        train(sampler, NETWORK, options, report=lambda state: losses.append(state.loss), report_every=1)
    assert losses[1] - losses[0] == pytest.approx(1, abs=1e-4)


def test_loss_that_is_not_a_number_stops_the_training():
    nothing = torch.full((4, 8, 8), float("nan"))
    seen = []
    with pytest.raises(FloatingPointError, match="not a number"):
        options = TrainingOptions(steps=50)
        train(SamplerOf(nothing, nothing), NetworkOptions(8, 8), options, report=seen.append, report_every=2)
    assert len(seen) <= 1


def test_not_a_number_is_noticed_without_anyone_asking():
    class Broken:
        def draw(self, generator):
            return torch.full((4, 8, 8), torch.nan), torch.zeros(4, 8, 8)

    with pytest.raises(FloatingPointError):
        train(Broken(), NetworkOptions(8, 8), TrainingOptions(steps=2))
