"""The demo: a photo matched with a smaller, rotated, tilted and noisy view of itself."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.features.extractor import Extractor
from logpolar.features.sift import root_sift
from logpolar.geometry.homography import warp_points
from logpolar.geometry.two_view import estimate_homography
from logpolar.keypoints import Keypoints
from logpolar.matching.nearest import match_descriptors
from logpolar.types import FloatArray
from logpolar.viewing.drawing import Picture, draw_matches, stack

CORRECT_WITHIN = 3.0
"""Largest error of a correct match, in pixels of the second view."""


@dataclass(frozen=True, eq=False)
class DemoPair:
    """Two views and the warp between them."""

    first: NDArray[np.uint8]
    second: NDArray[np.uint8]
    homography: NDArray[np.float64]  # from the first view to the second


@dataclass(frozen=True, eq=False)
class DemoResult:
    """One descriptor's result on the demo pair."""

    name: str
    matches: int
    correct: int  # within CORRECT_WITHIN of the true position
    inliers: int  # of the estimated homography
    error: float  # mean corner error of that homography in pixels of the second view; inf without homography
    picture: Picture


def demo_pair(zoom: float = 3.0, rotation: float = 60.0, noise: float = 4.0, seed: int = 0) -> DemoPair:
    """The shipped photo and a view of it: ``zoom`` times smaller, rotated by ``rotation`` degrees, and tilted."""
    data = (resources.files("logpolar") / "assets" / "astronaut.jpg").read_bytes()
    photo = np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), np.uint8)
    corners = _corners(photo)
    tilted = corners + np.array([[0.06, 0.03], [-0.04, 0.1], [0.02, -0.05], [0.08, -0.02]]) * photo.shape[1::-1]
    radians = np.radians(rotation)
    linear = np.array([[np.cos(radians), -np.sin(radians)], [np.sin(radians), np.cos(radians)]]) / zoom
    target = (tilted - tilted.mean(axis=0)) @ linear.T
    target -= target.min(axis=0)
    shape = tuple(np.ceil(target.max(axis=0)).astype(int).tolist())
    homography = cv2.getPerspectiveTransform(corners.astype(np.float32), target.astype(np.float32))
    blurred = cv2.GaussianBlur(photo, (0, 0), 0.5 * zoom)
    view = cv2.warpPerspective(blurred, homography, shape, borderMode=cv2.BORDER_CONSTANT, borderValue=(110, 110, 110))
    random = np.random.default_rng(seed)
    noisy = np.clip(view + random.normal(0, noise, view.shape), 0, 255)
    return DemoPair(photo, np.rint(noisy).astype(np.uint8), np.asarray(homography, np.float64))


def _corners(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Corner pixels, clockwise from the top left."""
    right, bottom = image.shape[1] - 1, image.shape[0] - 1
    return np.array([[0, 0], [right, 0], [right, bottom], [0, bottom]], np.float64)


def run_demo(pair: DemoPair, model: str) -> tuple[list[Keypoints], list[DemoResult]]:
    """Detect once, describe the same keypoints with the model and with RootSIFT, match and compare."""
    extractor = Extractor(model, max_size=None)
    features = [extractor.extract(view) for view in (pair.first, pair.second)]
    keypoints = [found.keypoints for found in features]
    ours = [found.descriptors for found in features]
    baseline = [root_sift(view, points) for view, points in zip((pair.first, pair.second), keypoints, strict=True)]
    return keypoints, [
        _measure(pair, keypoints, ours, extractor.model.name),
        _measure(pair, keypoints, baseline, "RootSIFT"),
    ]


def _measure(pair: DemoPair, keypoints: list[Keypoints], descriptors: list[FloatArray], name: str) -> DemoResult:
    matches = match_descriptors(descriptors[0], descriptors[1])
    first, second = (points.xy[rows] for points, rows in zip(keypoints, matches.indices.T, strict=True))
    correct = np.linalg.norm(warp_points(pair.homography, first)[0] - second, axis=1) <= CORRECT_WITHIN
    geometry = estimate_homography(first, second)
    error = np.inf
    if geometry.matrix is not None:
        corners = _corners(pair.first)
        gap = warp_points(geometry.matrix, corners)[0] - warp_points(pair.homography, corners)[0]
        error = float(np.linalg.norm(gap, axis=1).mean())
    caption = f"{name}: {int(correct.sum())} of {len(matches)} matches correct"
    picture = draw_matches(pair.first, pair.second, first, second, correct, caption)
    return DemoResult(name, len(matches), int(correct.sum()), geometry.inlier_count, error, picture)


def demo_picture(results: list[DemoResult]) -> Picture:
    """The pictures of all results, one above the other."""
    return stack([result.picture for result in results])
