"""Fixtures that several modules share."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from dataset_files import NAMES, SETTINGS, SUMMARY, make_image, make_pair
from logpolar.datasets.options import (
    DepthRules,
)
from logpolar.datasets.scenes import build_scene
from logpolar.datasets.writing import CorrespondenceWriter
from logpolar.images import encode_gray
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector
from scene_truth import (
    OPTIONS,
    SIZE,
    SMALL,
    UNSPACED,
    Judged,
    judge,
)
from synthetic_world import World, standard_world, write_workspace


@pytest.fixture(scope="package", autouse=True)
def detect_once():
    """Keypoints of an image, of which many files are built, are detected once."""
    known: dict[tuple[SiftDetector, bytes, tuple[int, ...]], Keypoints] = {}

    def detect(self, gray, original=SiftDetector.__call__) -> Keypoints:
        key = self, gray.tobytes(), gray.shape
        if key not in known:
            known[key] = original(self, gray)
        return copy.deepcopy(known[key])

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(SiftDetector, "__call__", detect)
        yield


@pytest.fixture
def path(tmp_path):
    return tmp_path / "scene.h5"


@pytest.fixture
def scene(path):
    """Three images, one for validation, and three pairs, one of them without correspondences."""
    depth = np.where(np.arange(20) % 3 == 0, np.nan, np.linspace(1, 1e4, 20)).astype(np.float32)
    picture = encode_gray(np.arange(6, dtype=np.uint8).reshape(2, 3), 100)
    images = [
        make_image(NAMES[0], 20, "train", 1, depth=depth, depth_picture=picture, rejects={"depth edge": 4}),
        make_image(NAMES[1], 33, "train", 2, rejects={"no depth": 2, "depth edge": 1}),
        make_image(NAMES[2], 11, "validation", 3),
    ]
    pairs = [
        make_pair(images[0], images[1], 9, 4, occluded=5),
        make_pair(images[2], images[0], 0, 5),
        make_pair(images[1], images[0], 6, 6, **{"no keypoint near": 3, "occluded": 1}),
    ]
    with CorrespondenceWriter(path, SETTINGS) as writer:
        writer.add(images, pairs)
        writer.finish(SUMMARY)
    return images, pairs


@pytest.fixture(scope="package")
def photos(photo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    files = [folder / f"{number}.png" for number in range(3)]
    for file, (top, left) in zip(files, [(0, 0), (0, 200), (250, 120)], strict=True):
        cv2.imwrite(str(file), photo[top : top + 200, left : left + 240])
    return files


@pytest.fixture(scope="package")
def world() -> World:
    return standard_world(0, 6, *SIZE)


@pytest.fixture(scope="package")
def workspace(world, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world") / "scene"
    write_workspace(world, folder)
    return folder


@pytest.fixture(scope="package")
def built(workspace, tmp_path_factory) -> Path:
    """The scene with all defaults, but for the split."""
    path = tmp_path_factory.mktemp("built") / "scene.h5"
    build_scene(workspace, path, OPTIONS)
    return path


@pytest.fixture(scope="package")
def unspaced(workspace, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("unspaced") / "scene.h5"
    build_scene(workspace, path, UNSPACED)
    return path


@pytest.fixture(scope="package")
def trusting(workspace, tmp_path_factory) -> Path:
    """The scene with the exact depth maps taken as they are."""
    path = tmp_path_factory.mktemp("trusting") / "scene.h5"
    build_scene(workspace, path, replace(OPTIONS, depth=DepthRules(min_views=0)))
    return path


@pytest.fixture(scope="package")
def judged(world, built) -> list[Judged]:
    return judge(world, built)


@pytest.fixture(scope="package")
def judged_trusting(world, trusting) -> list[Judged]:
    return judge(world, trusting)


@pytest.fixture(scope="package")
def small_world() -> World:
    return standard_world(1, 4, 200, 150)


@pytest.fixture(scope="package")
def small(small_world, tmp_path_factory) -> Path:
    """A workspace that is quickly built from."""
    folder = tmp_path_factory.mktemp("small") / "scene"
    write_workspace(small_world, folder)
    return folder


@pytest.fixture(scope="package")
def small_built(small, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("small_built") / "scene.h5"
    build_scene(small, path, SMALL)
    return path
