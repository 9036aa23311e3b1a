"""The order of eager, recorded and replayed steps; the graphs themselves need a GPU."""

from __future__ import annotations

import pytest
import torch

from logpolar.training import cuda_graphs
from logpolar.training.cuda_graphs import ReplayedStep


def test_a_step_runs_before_it_is_recorded_and_is_recorded_once(monkeypatch):
    done: list[str] = []

    class Recorded:
        def __init__(self, compute, generator):
            done.append("record")

        def replay(self):
            done.append("replay")
            return torch.zeros(())

    monkeypatch.setattr(cuda_graphs, "Recording", Recorded)
    monkeypatch.setattr(cuda_graphs, "on_side_stream", lambda compute: compute())
    step = ReplayedStep(lambda: done.append("eager") or torch.zeros(()), torch.Generator())
    for _ in range(6):
        step()
    assert done == ["eager"] * 3 + ["record"] + ["replay"] * 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_replayed_steps_are_the_eager_ones():
    device = torch.device("cuda")
    results = []
    for replayed in (False, True):
        generator, total = torch.Generator(device), torch.zeros(4, device=device)

        def compute(total=total, generator=generator):
            return total.add_(torch.rand(4, generator=generator, device=device)).sum()

        step = ReplayedStep(compute, generator) if replayed else compute
        for seed in range(6):
            generator.manual_seed(seed)
            step()
        results.append(total.cpu())
    torch.testing.assert_close(*results)
