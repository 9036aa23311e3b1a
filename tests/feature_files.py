"""Feature files of a made-up scene: each image has the same points in an order of its own, so matches are known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from logpolar.features.features import Features
from logpolar.features.files import FeatureWriter
from logpolar.keypoints import Keypoints

NAMES = ("a.jpg", "deep/b.jpg", "c.jpg")
SETTINGS = {"model": "none", "model_hash": "0", "detector": {"name": "made up"}}


@dataclass(frozen=True, eq=False)
class KnownFeatures(Features):
    order: tuple[int, ...] = ()  # the scene's point of each row


def make_features(number: int, count: int = 20) -> KnownFeatures:
    """Features of image ``number``: ``count`` points with descriptors that differ a little from image to image."""
    points = np.random.default_rng(0).normal(size=(count, 128))
    random = np.random.default_rng(number + 1)
    order = random.permutation(count)
    descriptors = points[order] + 0.1 * random.normal(size=(count, 128))
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    keypoints = Keypoints.from_points(
        random.uniform(0, 480, (count, 2)), random.uniform(2, 9, count), random.uniform(0, 360, count)
    )
    return KnownFeatures(keypoints, descriptors.astype(np.float32), (640, 480), order=tuple(order.tolist()))


def true_matches(first: int, second: int) -> list[list[int]]:
    """Rows of the same points."""
    there = make_features(second).order
    return [[row, there.index(point)] for row, point in enumerate(make_features(first).order)]


def write_feature_file(path: Path, names=NAMES) -> Path:
    with FeatureWriter(path, SETTINGS) as writer:
        for number, name in enumerate(names):
            writer.add(name, make_features(number))
    return path
