from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from logpolar.keypoints import peaks as numpy_peaks
from logpolar.training.detector_peaks import CELL, find_peaks, imitate, propose


def test_peaks_are_those_of_numpy():
    maps = torch.randn(2, 40, 56, generator=torch.Generator().manual_seed(0))
    found = find_peaks(maps, 30)
    for number in range(2):
        xy, values = numpy_peaks.find_peaks(maps[number].numpy(), 30)
        assert found.xy[number].numpy() == pytest.approx(xy, abs=1e-4)
        assert found.logit[number].numpy() == pytest.approx(values)
    assert found.exists.all()


def test_masked_and_missing_peaks():
    maps = torch.randn(1, 24, 24, generator=torch.Generator().manual_seed(1))
    allowed = torch.zeros(1, 24, 24, dtype=torch.bool)
    allowed[:, 8:16, 8:16] = True
    found = find_peaks(maps, 20, allowed)
    assert 0 < found.exists.sum() < 20
    inside = found.xy[found.exists]
    assert ((inside > 5) & (inside < 18)).all()
    assert not find_peaks(torch.zeros(1, 24, 24), 5).exists.any()


def test_gradients_sharpen_and_move_a_peak():
    y, x = torch.meshgrid(torch.arange(16.0), torch.arange(16.0), indexing="ij")
    maps = (-0.1 * ((x - 8) ** 2 + (y - 7) ** 2))[None].requires_grad_()
    found = find_peaks(maps, 1)
    assert found.xy[0, 0].tolist() == pytest.approx([8, 7], abs=1e-5)
    found.xy[0, 0, 0].backward(retain_graph=True)
    assert maps.grad[0, 7, 9] > 0 > maps.grad[0, 7, 7]  # a higher score on the right moves it there
    maps.grad = None
    found.spread.sum().backward()
    assert maps.grad[0, 7, 8] < 0 < maps.grad[0, 7, 10]  # a higher centre concentrates it


def test_proposals_follow_their_probabilities():
    """In a cell where one logit is far above the others, that pixel is drawn, and accepted by its sigmoid."""
    logits = torch.full((1, 4 * CELL, 4 * CELL), -30.0)
    logits[0, 12, 13] = 0.5
    hits = accepted = 0
    generator = torch.Generator().manual_seed(0)
    for _ in range(300):
        drawn = propose(logits, generator)
        at = (drawn.xy[0] == torch.tensor([13.0, 12.0])).all(dim=1)
        hits += int(at.any())
        accepted += int((at & drawn.accepted[0]).any())
        chosen = drawn.log_probability[0][at]
        expected = functional.logsigmoid(torch.tensor(0.5 if (at & drawn.accepted[0]).any() else -0.5))
        assert not len(chosen) or chosen.item() == pytest.approx(float(expected), abs=1e-4)
    assert accepted / hits == pytest.approx(torch.tensor(0.5).sigmoid().item(), abs=0.1)


def test_imitation_is_least_where_votes_are():
    votes = torch.zeros(1, 16, 16)
    votes[0, 3, 5] = 2
    good, elsewhere = torch.full((1, 16, 16), -10.0), torch.full((1, 16, 16), -10.0)
    good[0, 3, 5] = elsewhere[0, 12, 12] = 10
    flat = torch.zeros(1, 16, 16)
    assert imitate(good, votes) < 0.01 < imitate(flat, votes) < imitate(elsewhere, votes)
