"""Steps of the optimisers, the learning rate and the running mean, by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from logpolar.training.optimisation import learning_rate, make_optimizer
from logpolar.training.options import OptimisationOptions


def small_network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))


def slopes(network: nn.Module, seed: int) -> list[torch.Tensor]:
    """A gradient for each parameter, drawn at random; set as if computed."""
    generator = torch.Generator().manual_seed(seed)
    found = [torch.randn(values.shape, generator=generator) for values in network.parameters()]
    for values, slope in zip(network.parameters(), found, strict=True):
        values.grad = slope.clone()
    return found


class TestOptimisers:
    RATES = (0.5, 0.1, 0.3, 0.0)

    def assert_steps(self, options: OptimisationOptions, by_hand) -> None:
        """Parameters after each step; ``by_hand`` (number of a step, rate, parameter, slope, memory) -> parameter."""
        network, rate = small_network(), torch.zeros(())
        optimizer = make_optimizer(network, options, rate)
        expected = [values.detach().double() for values in network.parameters()]
        memory: list[dict[str, torch.Tensor]] = [{} for _ in expected]
        for step, value in enumerate(self.RATES):
            rate.fill_(value)
            given = slopes(network, step)
            optimizer.step()
            for k, slope in enumerate(given):
                expected[k] = by_hand(step, value, expected[k], slope.double(), memory[k])
            for found, wanted in zip(network.parameters(), expected, strict=True):
                torch.testing.assert_close(found.detach().double(), wanted, atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("momentum", [0.0, 0.6, 0.9])
    def test_momentum_is_an_average(self, momentum):
        def by_hand(step, rate, values, slope, memory):
            slope = slope + 0.01 * values
            memory["mean"] = momentum * memory["mean"] + (1 - momentum) * slope if step else slope
            return values - rate * memory["mean"]

        self.assert_steps(OptimisationOptions(momentum=momentum, weight_decay=0.01), by_hand)

    def test_adamw(self):
        def by_hand(step, rate, values, slope, memory):
            memory["mean"] = 0.9 * memory.get("mean", 0) + 0.1 * slope
            memory["square"] = 0.999 * memory.get("square", 0) + 0.001 * slope**2
            mean, square = memory["mean"] / (1 - 0.9 ** (step + 1)), memory["square"] / (1 - 0.999 ** (step + 1))
            return values * (1 - rate * 0.02) - rate * mean / (square.sqrt() + 1e-8)

        self.assert_steps(OptimisationOptions(optimiser="adamw", weight_decay=0.02), by_hand)


class TestLearningRate:
    def test_linear(self):
        options = OptimisationOptions(steps=5, learning_rate=10)
        assert [learning_rate(step, options) for step in range(6)] == pytest.approx([10, 8, 6, 4, 2, 0])

    def test_cosine(self):
        options = OptimisationOptions(steps=4, learning_rate=2, schedule="cosine")
        expected = [2, 1 + math.sqrt(0.5), 1, 1 - math.sqrt(0.5), 0]
        assert [learning_rate(step, options) for step in range(5)] == pytest.approx(expected)

    def test_warm_up(self):
        """From 1/4 to the whole in four steps, then, at the whole once more, down to 0 in what is left."""
        options = OptimisationOptions(steps=8, learning_rate=4, warm_up=4)
        assert [learning_rate(step, options) for step in range(9)] == pytest.approx([1, 2, 3, 4, 4, 3, 2, 1, 0])

    def test_warm_up_and_cosine(self):
        options = OptimisationOptions(steps=4, learning_rate=6, warm_up=2, schedule="cosine")
        assert [learning_rate(step, options) for step in range(5)] == pytest.approx([3, 6, 6, 3, 0])

    @pytest.mark.parametrize("steps", [1, 3])
    def test_nothing_but_warm_up(self, steps):
        options = OptimisationOptions(steps=steps, learning_rate=3, warm_up=3)
        assert [learning_rate(step, options) for step in range(steps)] == pytest.approx([1, 2, 3][:steps])
