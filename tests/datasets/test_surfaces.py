"""Surfaces are read back from correspondence files: the true inverse depth, from a picture that was stretched."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dataset_files import make_image, write
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.surfaces import read_stored_surface
from logpolar.geometry.cameras import Camera
from logpolar.images import encode_gray
from logpolar.keypoints import Keypoints

WIDTH, HEIGHT = 80, 60
CAMERA = Camera(WIDTH, HEIGHT, np.diag([90.0, 90, 1]), np.eye(3), np.zeros(3))
LOW, HIGH = 0.1, 0.35
"""Inverse depths that become the shades 1 and 255."""


def inverse_depth(x, y):
    """Of a slanted plane, by pixel of the image."""
    return 0.08 + 0.3 * np.asarray(x) / WIDTH + 0.02 * np.asarray(y) / HEIGHT


def picture() -> np.ndarray:
    """Half the image's size; unknown in its first rows."""
    rows, columns = np.mgrid[: HEIGHT // 2, : WIDTH // 2]
    truth = inverse_depth(2 * columns + 0.5, 2 * rows + 0.5)
    shades = np.rint(np.clip((truth - LOW) / (HIGH - LOW), 0, 1) * 254 + 1).astype(np.uint8)
    shades[:4] = 0
    return shades


def read_scene(path, count: int, occluders: int = 0, **changes) -> np.ndarray:
    xy = np.random.default_rng(1).uniform((0, 0), (WIDTH - 1, HEIGHT - 1), (count, 2))
    depth = 1 / inverse_depth(*xy.T)
    depth[:occluders] /= 3  # keypoints on another surface, in front
    scene = {"size": (WIDTH, HEIGHT), "camera": CAMERA, "depth_picture": encode_gray(picture(), 100), **changes}
    write(path, [replace(make_image("a.png"), keypoints=Keypoints.from_points(xy), depth=depth, **scene)])
    with CorrespondenceFile(path) as file:
        return read_stored_surface(file, 0)


@pytest.mark.parametrize("occluders", [0, 20])
def test_inverse_depth_is_the_true_one(tmp_path, occluders):
    surface = read_scene(tmp_path / "scene.h5", 200, occluders)
    rows, columns = np.mgrid[: HEIGHT // 2, : WIDTH // 2]
    truth = inverse_depth(2 * columns + 0.5, 2 * rows + 0.5)
    inside = (picture() > 1) & (picture() < 255)
    assert 0.5 < inside.mean() < 0.9
    np.testing.assert_array_equal(surface > 0, inside)
    np.testing.assert_allclose(surface[inside], truth[inside], rtol=0.02)


def test_too_few_known_keypoints_leave_all_unknown(tmp_path):
    surface = read_scene(tmp_path / "scene.h5", 12)
    assert surface.shape == (HEIGHT // 2, WIDTH // 2)
    assert not surface.any()


@pytest.mark.parametrize("missing", [{"camera": None}, {"depth_picture": b""}])
def test_images_without_a_surface_are_refused(tmp_path, missing):
    with pytest.raises(ValueError, match="has no camera or no depth"):
        read_scene(tmp_path / "scene.h5", 50, **missing)
