"""A scene of the synthetic world, and its correspondences judged by the exact truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from logpolar.datasets import scenes
from logpolar.datasets.correspondences import Correspondences
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.options import (
    CorrespondenceRules,
    DepthRules,
    KeypointRules,
    PairRules,
    SceneOptions,
    SplitRules,
)
from logpolar.keypoints import Keypoints
from synthetic_world import Pinhole, World

NAMES = [f"view{number}.png" for number in range(6)]
SIZE = 320, 240
ALL_KEYPOINTS = KeypointRules(distractors=10**6)
OPTIONS = SceneOptions(split=SplitRules(validation=0))
UNSPACED = replace(OPTIONS, keypoints=ALL_KEYPOINTS, rules=CorrespondenceRules(min_spacing=0, max_count=10**6))
ROUNDING = 0.02
"""Pixels: what the file's rounding of two positions to 1/100 px may add to a distance."""

SMALL = SceneOptions(
    pairs=PairRules(min_shared=10, min_overlap=0.05),
    depth=DepthRules(min_views=1, max_drift=1.5),
    split=SplitRules(validation=0),
)
"""For the small world: all six pairs of four images."""


@dataclass(frozen=True, eq=False)
class Judged:
    """The correspondences of a pair beside the exact truth, all in pixels of the images of the file."""

    images: tuple[int, int]
    found: Correspondences
    place: np.ndarray  # (N, 2) exactly where the first keypoint lies in the second image
    jacobian: np.ndarray  # (N, 2, 2)
    visible: np.ndarray
    nearly_visible: np.ndarray  # from somewhere within half a pixel around the keypoint
    flat: np.ndarray  # the window that a plane is fitted to lies on one surface
    depth_error: np.ndarray  # of the first keypoint, as a share

    @property
    def distance(self) -> np.ndarray:
        return np.linalg.norm(self.place - self.found.second.xy, axis=1)

    @property
    def warp_error(self) -> np.ndarray:
        """As a share of the warp, by the Frobenius norm."""
        return np.linalg.norm(self.found.warp - self.jacobian, axis=(1, 2)) / np.linalg.norm(self.jacobian, axis=(1, 2))

    @property
    def angle_error(self) -> np.ndarray:
        """Degrees between the stored angle residual and the analytic one."""
        angle, _ = predict(self.jacobian, self.found.first)
        return np.abs(wrap(self.found.second.angle - angle - self.found.angle_residual))

    @property
    def scale_error(self) -> np.ndarray:
        _, size = predict(self.jacobian, self.found.first)
        return np.abs(np.log(self.found.second.size / size) - self.found.log_scale_ratio)


def wrap(degrees: np.ndarray) -> np.ndarray:
    return (degrees + 180) % 360 - 180


def predict(jacobian: np.ndarray, keypoints: Keypoints) -> tuple[np.ndarray, np.ndarray]:
    """Angle and size of keypoints after a warp: where a short step in their direction goes, the root of their area."""
    radians = np.radians(keypoints.angle.astype(float))
    (a, b), (c, d) = jacobian.transpose(1, 2, 0)
    x, y = a * np.cos(radians) + b * np.sin(radians), c * np.cos(radians) + d * np.sin(radians)
    return np.degrees(np.arctan2(y, x)), keypoints.size * np.sqrt(np.abs(a * d - b * c))


def transfer(world: World, first: Pinhole, second: Pinhole, keypoints: Keypoints, sizes):
    """Exact places, Jacobians and visibility in the second image, for images that were reduced to ``sizes``."""
    here, there = (
        np.array(size) / (camera.width, camera.height) for size, camera in zip(sizes, (first, second), strict=True)
    )
    exact = world.transfer(first, second, (keypoints.xy.astype(float) + 0.5) / here - 0.5)
    return (exact.xy + 0.5) * there - 0.5, exact.jacobian * there[:, None] / here, exact.visible


def judge(world: World, path: Path) -> list[Judged]:
    """Every pair of a file."""
    with CorrespondenceFile(path) as file:
        return [judge_pair(world, file, number) for number in range(len(file))]


def judge_pair(world: World, file: CorrespondenceFile, number: int) -> Judged:
    images = tuple(file.pair_images[number].tolist())
    first, second = (world.cameras[NAMES.index(file.images[image].name)] for image in images)
    sizes = [file.images[image].size for image in images]
    found = file.read_correspondences(number)
    place, jacobian, visible = transfer(world, first, second, found.first, sizes)
    nearly = visible.copy()
    for step in np.radians(range(0, 360, 45)):
        hidden = np.flatnonzero(~nearly)
        moved = found.first[hidden].xy + 0.5 * np.array([np.cos(step), np.sin(step)])
        nearly[hidden] = transfer(world, first, second, replace(found.first[hidden], xy=moved), sizes)[2]
    factor = np.array(sizes[0]) / (first.width, first.height)
    grid = np.array([(x, y) for x in np.linspace(-1, 1, 5) for y in np.linspace(-1, 1, 5)])
    reach = np.maximum(found.first.size / 2, 2) + 1  # of the window, rounded to pixels
    window = found.first.xy[:, None] + reach[:, None, None] * grid
    surface = world.cast(first, ((window + 0.5) / factor - 0.5).reshape(-1, 2))[1].reshape(len(found), -1)
    depth = file.read_depths(images[0])[found.indices[:, 0]]
    exact_depth, _ = world.cast(first, (found.first.xy.astype(float) + 0.5) / factor - 0.5)
    flat = (surface == surface[:, :1]).all(axis=1)
    return Judged(images, found, place, jacobian, visible, nearly, flat, np.abs(depth / exact_depth - 1))


def together(judged: list[Judged], of: Callable[[Judged], np.ndarray]) -> np.ndarray:
    return np.concatenate([of(pair) for pair in judged])


def stop_after(monkeypatch, name: str, count: int, error: type[BaseException] = KeyboardInterrupt) -> None:
    """Ctrl-C, or another error, in the call after so many of a function of ``scenes``."""
    work, calls = getattr(scenes, name), []

    def counted(*arguments):
        if len(calls) == count:
            raise error
        calls.append(arguments)
        return work(*arguments)

    monkeypatch.setattr(scenes, name, counted)
