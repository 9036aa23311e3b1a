from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch

from logpolar.images import to_bytes
from logpolar.models import load_model
from logpolar.models.cards import DetectorOptions
from logpolar.training.detector_crops import CropSampler
from logpolar.training.detector_loop import MEASURES, DetectorTrainer, FrozenDescriptor
from logpolar.training.detector_options import CropOptions, DetectorConfig, ObjectiveOptions
from logpolar.training.detector_sources import from_homographies, make_data
from logpolar.training.detector_votes import VoteMaps, find_votes
from logpolar.training.options import OptimisationOptions

CPU = torch.device("cpu")
HOMOGRAPHY = np.array([[0.9, 0.05, 4], [-0.05, 0.9, 9], [0, 0, 1.0]])
CONFIG = DetectorConfig(
    network=DetectorOptions((4, 4, 4), (0, 0, 0), window=4),
    crops=CropOptions(pairs=1, side=64, max_zoom=1.5),
    objectives=ObjectiveOptions(imitation=1.0, keypoints=12),
    optimisation=OptimisationOptions(40, "adamw", 1e-2, schedule="cosine"),
)


@pytest.fixture(scope="module")
def source(gray):
    first = to_bytes(cv2.resize(gray, (160, 160), interpolation=cv2.INTER_AREA))
    second = cv2.warpPerspective(first, HOMOGRAPHY, (160, 160))
    return from_homographies([(first, second, HOMOGRAPHY, 0)], find_votes(first, second, HOMOGRAPHY))


@pytest.fixture(scope="module")
def trainer_of(source):
    data = make_data([source], CPU, copies=1)
    model = load_model("logpolar-96-small")
    descriptor = FrozenDescriptor(model.network(), model.sampling, 6.0, CPU, fuse=False, half=False)
    votes = VoteMaps(source.votes, CPU)

    def make(config=CONFIG):
        return DetectorTrainer(config, CropSampler(data, [1], config.crops), CPU, descriptor, votes)

    return make


def test_resumed_runs_are_the_same(trainer_of):
    straight, first = trainer_of(), trainer_of()
    for _ in range(3):
        expected = straight.advance()
    first.advance()
    resumed = trainer_of()
    resumed.load(first.state())
    for _ in range(2):
        found = resumed.advance()
    assert torch.equal(found, expected)
    assert resumed.is_finite
    assert resumed.step == 3


def test_weights_alone_start_another_run(trainer_of):
    first = trainer_of()
    first.advance()
    second = trainer_of()
    second.load({"step": 0, "network": first.state()["network"]})
    assert second.step == 0
    weights = first.state()["network"]
    assert all(torch.equal(values, weights[name]) for name, values in second.state()["network"].items())


def test_imitation_is_learned(trainer_of):
    config = replace(CONFIG, objectives=ObjectiveOptions(imitation=1, matchability=0, repeatability=0, peakiness=0))
    trainer = trainer_of(config)
    losses = [float(trainer.advance()[MEASURES.index("imitation")]) for _ in range(40)]
    assert np.mean(losses[-8:]) < np.mean(losses[:8]) - 0.3


def test_objectives_that_are_left_out_are_not_computed(trainer_of):
    config = replace(CONFIG, objectives=ObjectiveOptions(matchability=0, repeatability=1, peakiness=0, keypoints=12))
    values = dict(zip(MEASURES, trainer_of(config).advance().tolist(), strict=True))
    assert values["imitation"] == values["matchability"] == values["keypoints"] == 0
    assert values["repeatability"] > 0


def test_what_objectives_need_is_checked(source):
    data = make_data([source], CPU)
    sampler = CropSampler(data, [1], CONFIG.crops)
    with pytest.raises(ValueError, match="descriptor"):
        DetectorTrainer(CONFIG, sampler, CPU)


def test_votes_are_found_in_both_views(source):
    for votes, other, homography in zip(
        source.votes, reversed(source.votes), (HOMOGRAPHY, np.linalg.inv(HOMOGRAPHY)), strict=True
    ):
        sent = np.concatenate([votes[:, :2], np.ones((len(votes), 1))], axis=1) @ homography.T
        distance = np.linalg.norm(sent[:, None, :2] / sent[:, None, 2:] - other[None, :, :2], axis=2).min(axis=1)
        assert len(votes) > 20
        assert np.mean(distance < 5) > 0.95
        apart = np.linalg.norm(votes[:, None, :2] - votes[None, :, :2], axis=2) + 9 * np.eye(len(votes))
        assert apart.min() >= 2
