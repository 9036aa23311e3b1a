from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from logpolar.images import to_bytes
from logpolar.training.detector_crops import CropSampler
from logpolar.training.detector_loss import (
    compare_places,
    matchability_loss,
    matched_errors,
    mutual_matches,
    repeatability_loss,
)
from logpolar.training.detector_options import CropOptions, ObjectiveOptions
from logpolar.training.detector_sources import from_homographies, make_data

OPTIONS = ObjectiveOptions(keypoints=16)


@pytest.fixture(scope="module")
def crops(gray):
    """The same image twice: pixels correspond by the scales and offsets of the crops alone."""
    image = to_bytes(cv2.resize(gray, (200, 200), interpolation=cv2.INTER_AREA))
    data = make_data([from_homographies([(image, image, np.eye(3), 0)])], torch.device("cpu"))
    sampler = CropSampler(data, [1], CropOptions(pairs=2, side=64, max_zoom=1.5))
    return sampler.draw(torch.Generator().manual_seed(0))


def visible(crops):
    """Positions of first crops that second ones show, and their places there."""
    xy = torch.rand(4, 300, 2, generator=torch.Generator().manual_seed(2)) * 55 + 4
    sent, known = crops.send(xy)
    rows = [torch.nonzero(known[row])[:12, 0] for row in range(2)]
    assert all(len(row) == 12 for row in rows)
    here = torch.stack([xy[row, each] for row, each in enumerate(rows)])
    return here, torch.stack([sent[row, each] for row, each in enumerate(rows)])


def test_errors_of_keypoints(crops):
    here, there = visible(crops)
    ratio = (crops.scale[:2] / crops.scale[2:])[:, None]
    moved = there + torch.tensor([0.9, 0.0])
    agreement = compare_places(crops, torch.cat([here, moved]), torch.ones(4, 12, dtype=torch.bool))
    found = agreement.error.diagonal(dim1=1, dim2=2)
    both = agreement.known[:2] & agreement.known[2:]
    expected = (0.9 * 0.9 / ratio).sqrt().expand(-1, 12)  # 0.9 px there are 0.9 / ratio px here
    assert both.float().mean() > 0.7
    assert found[both].tolist() == pytest.approx(expected[both].tolist(), abs=1e-3)


def test_mutual_neighbours_against_loops():
    generator = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(2, 9, 5, generator=generator), dim=-1)
    exists = torch.ones(2, 9, dtype=torch.bool)
    exists[0, 3] = exists[1, 7] = False
    matches = mutual_matches(vectors, exists)
    similarity = (vectors[0] @ vectors[1].T).numpy()
    similarity[3], similarity[:, 7] = -9, -9
    for row in range(9):
        best = int(similarity[row].argmax())
        mutual = row != 3 and int(similarity[:, best].argmax()) == row
        assert matches[0, row] == (best if mutual else -1)
        if mutual:
            assert matches[1, best] == row
    errors = matched_errors(torch.arange(81.0).view(1, 9, 9), matches)
    assert all(errors[0, row] == (9 * row + matches[0, row] if matches[0, row] >= 0 else 1e4) for row in range(9))


def gradient_of(crops, describe):
    logits = torch.zeros(4, 64, 64, requires_grad=True)
    found = matchability_loss(logits, crops, describe, OPTIONS, torch.Generator().manual_seed(1))
    found.loss.backward()
    return logits.grad, found


def test_matched_keypoints_become_likelier_and_others_less(crops):
    """A descriptor that knows the image position matches all that is seen twice; one of noise matches nothing."""

    def knowing(crops, xy):
        place = crops.in_image(xy) / 200
        waves = torch.arange(1, 9.0)
        angle = (place[..., None] * waves * 6).flatten(2)
        return torch.nn.functional.normalize(torch.cat([angle.sin(), angle.cos()], dim=-1), dim=-1)

    def random(crops, xy):
        noise = torch.randn(*xy.shape[:2], 16, generator=torch.Generator().manual_seed(5))
        return torch.nn.functional.normalize(noise, dim=-1)

    good, with_knowledge = gradient_of(crops, knowing)
    bad, without = gradient_of(crops, random)
    assert with_knowledge.correct > without.correct
    assert good.sum() < bad.sum()  # descending raises the logits of matched keypoints more


def test_repeatability_rewards_the_same_places(crops):
    here, there = visible(crops)

    def maps(places):
        y, x = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
        distance = (x - places[..., 0, None, None]) ** 2 + (y - places[..., 1, None, None]) ** 2
        return (12 * torch.exp(-distance / 3)).amax(dim=1) - 6

    same = torch.cat([maps(here), maps(there)])
    other = torch.cat([maps(here), maps(there + 7)])
    kept, peakiness, found = repeatability_loss(same, crops, OPTIONS)
    lost, _, missed = repeatability_loss(other, crops, OPTIONS)
    assert kept < lost
    assert found > missed
    _, spread, _ = repeatability_loss(same / 8, crops, OPTIONS)
    assert spread > peakiness
