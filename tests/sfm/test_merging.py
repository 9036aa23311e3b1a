"""COLMAP's own synthetic scene, whose model is taken apart into two that share photos."""

from __future__ import annotations

import cv2  # noqa: F401 - before pycolmap, whose zlib breaks OpenCV's PNG writer otherwise
import numpy as np
import pycolmap
import pytest

from logpolar.sfm.mapper import MapperOptions, incremental_options
from logpolar.sfm.merging import merge_models

SETTINGS = MapperOptions(min_model_size=3, threads=1)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The database and the true model of nine photos."""
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = 1, 1, 9
    options.num_points3D = 150
    place = tmp_path_factory.mktemp("synthetic")
    with pycolmap.Database.open(str(place / "database.db")) as file:
        truth = pycolmap.synthesize_dataset(options, file)
    return place / "database.db", truth


def part(truth, kept, folder, moved=None):
    """The model of some photos, in a frame of its own."""
    model = pycolmap.Reconstruction(truth)
    for number in list(model.reg_frame_ids()):
        if number not in kept:
            model.deregister_frame(number)
    if moved:
        model.transform(moved)
    folder.mkdir(parents=True)
    model.write(str(folder))
    return pycolmap.Reconstruction(str(folder))


def merged(world, folder, first, second):
    database, truth = world
    elsewhere = pycolmap.Sim3d(2.5, pycolmap.Rotation3d(np.array([0.5, 0.5, 0.5, 0.5])), np.array([3.0, -4.0, 5.0]))
    numbers = sorted(truth.reg_frame_ids())
    models = {
        0: part(truth, [numbers[n] for n in first], folder / "0"),
        1: part(truth, [numbers[n] for n in second], folder / "1", elsewhere),
    }
    return merge_models(database, folder, folder, models, incremental_options(SETTINGS))


def test_models_that_share_photos_become_one(world, tmp_path):
    found = merged(world, tmp_path, range(6), range(3, 9))
    assert list(found) == [0]
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    model, truth = pycolmap.Reconstruction(str(tmp_path / "0")), world[1]
    assert model.num_reg_images() == 9
    assert model.compute_mean_track_length() > 5  # tracks go through both
    centres = [
        np.array([each.find_image_with_name(image.name).projection_center() for image in truth.images.values()])
        for each in (model, truth)
    ]
    spread = [np.linalg.norm(each[:, None] - each[None], axis=2) for each in centres]
    ratio = spread[0] / np.where(spread[1] > 0, spread[1], np.inf)
    assert ratio[ratio > 0].std() / ratio[ratio > 0].mean() < 1e-3  # the same up to a similarity


def test_models_that_share_no_photos_stay_apart(world, tmp_path):
    found = merged(world, tmp_path, range(4), range(4, 9))
    assert {number: model.num_reg_images() for number, model in found.items()} == {0: 4, 1: 5}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]
