"""Checkpoints of matchers in pieces: resumed training ends as training in one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from logpolar.errors import LogpolarError
from logpolar.models.matcher_cards import MatcherOptions
from logpolar.models.matcher_network import MatcherNetwork
from logpolar.training import matcher_checkpoints
from logpolar.training.matcher_checkpoints import load_pieces, save_pieces

OPTIONS = MatcherOptions(inputs=4, width=16, heads=2, layers=1)


def make(seed: int = 0) -> tuple[MatcherNetwork, torch.optim.AdamW]:
    torch.manual_seed(seed)
    network = MatcherNetwork(OPTIONS)
    return network, torch.optim.AdamW(network.parameters(), lr=1e-2)


def advance(network: MatcherNetwork, optimiser: torch.optim.AdamW, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        states = network(torch.randn(2, 3, 4, generator=generator), torch.rand(2, 3, 6, generator=generator))[-1]
        loss = states.square().sum() + sum(each.square().sum() for each in network.parameters())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def difference(first: MatcherNetwork, second: MatcherNetwork) -> float:
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def test_training_in_two_pieces_ends_as_training_in_one(tmp_path):
    whole, optimiser = make()
    advance(whole, optimiser, range(8))
    first, optimiser = make()
    advance(first, optimiser, range(4))
    save_pieces(tmp_path, first, optimiser, 4, {"note": "half"})
    second, optimiser = make(1)
    assert load_pieces(tmp_path, second, optimiser) == (4, {"note": "half"})
    assert difference(first, second) == 0
    advance(second, optimiser, range(4, 8))
    moved = difference(first, whole)
    assert difference(second, whole) < 0.05 * moved  # moments are rounded to 8 bits


def test_pieces_are_small_and_weights_alone_will_do(tmp_path, monkeypatch):
    monkeypatch.setattr(matcher_checkpoints, "PIECE_BYTES", 6000)
    network, optimiser = make()
    advance(network, optimiser, range(1))
    paths = save_pieces(tmp_path, network, optimiser, 1, {})
    assert len(paths) > 3
    assert max(path.stat().st_size for path in paths) < 6000 + 6000
    for path in paths:
        with matcher_checkpoints.safe_open(path, framework="pt") as file:
            if not any(name.startswith("weight/") for name in file.keys()):  # noqa: SIM118
                path.unlink()
    fresh, optimiser = make(1)
    assert load_pieces(tmp_path, fresh, optimiser)[0] == 1
    assert difference(network, fresh) == 0
    assert not optimiser.state


def test_no_checkpoint_is_step_0(tmp_path):
    assert load_pieces(tmp_path, *make()) == (0, {})


def test_of_another_network_or_damaged(tmp_path):
    network, optimiser = make()
    (path,) = save_pieces(tmp_path, network, optimiser, 1, {})
    other = MatcherNetwork(MatcherOptions(inputs=4, width=24, heads=2, layers=1))
    with pytest.raises(LogpolarError, match="another network"):
        load_pieces(tmp_path, other, torch.optim.AdamW(other.parameters()))
    path.write_bytes(b"damaged")
    with pytest.raises(LogpolarError, match="damaged"):
        load_pieces(tmp_path, network, optimiser)


@pytest.mark.parametrize("after", [0, 1, 7, 15, 16, 17, 20, 23])
def test_a_kill_while_writing_costs_the_new_step_at_most(tmp_path, monkeypatch, after):
    """A second checkpoint in 8 pieces: each is begun and put in its place, then all are renamed."""
    monkeypatch.setattr(matcher_checkpoints, "PIECE_BYTES", 6000)
    network, optimiser = make()
    advance(network, optimiser, range(1))
    assert len(save_pieces(tmp_path, network, optimiser, 1, {})) == 8
    advance(network, optimiser, range(1, 2))
    done = 0

    def counted(original):
        def call(*arguments):
            nonlocal done
            if done == after:
                raise KeyboardInterrupt
            done += 1
            return original(*arguments)

        return call

    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        context.setattr(matcher_checkpoints, "write_whole", counted(matcher_checkpoints.write_whole))
        context.setattr(Path, "replace", counted(Path.replace))
        save_pieces(tmp_path, network, optimiser, 2, {})
    fresh, optimiser = make(1)
    step, _ = load_pieces(tmp_path, fresh, optimiser)
    assert step == (2 if after >= 16 else 1)
    assert len(optimiser.state) == len(list(fresh.parameters()))
    assert (difference(network, fresh) == 0) == (step == 2)
