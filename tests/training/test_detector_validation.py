from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from logpolar.images import to_bytes
from logpolar.keypoints import Keypoints
from logpolar.training.detector_sources import from_homographies, make_data
from logpolar.training.detector_validation import by_detector, score_detector, whole_views


@pytest.fixture(scope="module")
def views(gray):
    image = to_bytes(cv2.resize(gray, (120, 90), interpolation=cv2.INTER_AREA))
    data = make_data([from_homographies([(image, image, np.eye(3), 0)])], torch.device("cpu"))
    return {zoom: list(whole_views(data, 0, 128, zoom, [0])) for zoom in (1, 2)}


def place(crops, xy):
    """Descriptors that are the position in the image."""
    where = torch.cat([crops.in_image(xy), torch.full((*xy.shape[:2], 1), 100.0)], dim=-1)
    return torch.nn.functional.normalize(where, dim=-1)


def grid(step, shift=0.0):
    def detect(image):
        y, x = np.mgrid[8 : image.shape[0] - 8 : step, 8 : image.shape[1] - 8 : step]
        return Keypoints.from_points(np.stack([x.ravel(), y.ravel()], axis=1) + shift)

    return detect


def test_a_detector_that_finds_the_same_places_scores_one(views):
    score = score_detector(views[1], by_detector(grid(12)), place, 60)
    assert score.pairs == 1
    assert score.repeatability == score.precision == 1
    assert score.error == pytest.approx(0, abs=1e-3)
    assert score.correct > 30


def test_views_are_smaller_by_the_zoom(views):
    (crops,) = views[2]
    assert crops.scale.tolist() == [1, 2]
    sent, known = crops.send(torch.tensor([[[60.0, 40.0]], [[30.0, 20.0]]]))
    assert sent[0, 0].tolist() == pytest.approx([29.75, 19.75])  # (x + 0.5) / 2 - 0.5
    assert sent[1, 0].tolist() == pytest.approx([60.5, 40.5])
    assert known.all()


def test_places_that_are_missed_count(views):
    calls = []

    def detect(image):
        calls.append(image)
        return grid(12, shift=0 if len(calls) == 1 else 6)(image)

    score = score_detector(views[1], by_detector(detect), place, 60)
    assert score.repeatability == 0
    assert score.correct == 0
