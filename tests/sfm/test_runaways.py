"""Cameras whose focal length is absurd are put back among the others."""

from __future__ import annotations

import copy

import cv2  # noqa: F401 - before pycolmap, whose zlib breaks OpenCV's PNG writer otherwise
import numpy as np
import pycolmap
import pytest

from logpolar.sfm.mapper import MapperOptions, polish
from logpolar.sfm.runaways import put_back, runaways

FEW = MapperOptions(min_model_size=3, threads=1)


@pytest.fixture(scope="module")
def truth():
    """Six photos of exact points, a camera each, of unknown focal length."""
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = 6, 1, 1
    options.num_points3D = 100
    model = pycolmap.synthesize_dataset(options)
    for camera in model.cameras.values():
        camera.has_prior_focal_length = False
    return model


def send_off(model, number, factor):
    """A camera with a longer lens, from as much farther away."""
    image, camera = model.images[number], model.cameras[model.images[number].camera_id]
    parameters = np.array(camera.params)
    parameters[0] *= factor
    camera.params = parameters
    depth = np.mean([(image.cam_from_world() * point.xyz)[2] for point in model.points3D.values()])
    pose = image.cam_from_world()
    shift = pose.translation + np.array([0, 0, depth * (factor - 1)])
    image.frame.set_cam_from_world(image.camera_id, pycolmap.Rigid3d(pose.rotation, shift))


def test_a_camera_that_ran_away_is_put_back(truth, tmp_path):
    models = {0: copy.deepcopy(truth)}
    (tmp_path / "0").mkdir()
    number = sorted(truth.reg_image_ids())[2]
    send_off(models[0], number, 3000.0)
    assert runaways(models[0]) == {truth.images[number].camera_id}
    polish(models, tmp_path, FEW)
    found = pycolmap.Reconstruction(str(tmp_path / "0"))
    assert runaways(models[0]) == set()
    focal = truth.cameras[truth.images[number].camera_id].mean_focal_length()
    assert found.cameras[found.images[number].camera_id].mean_focal_length() == pytest.approx(focal, rel=0.01)
    between = [
        np.linalg.norm(model.images[number].projection_center() - model.images[1].projection_center())
        for model in (truth, found)
    ]
    assert between[1] == pytest.approx(between[0], rel=0.02)
    assert found.num_points3D() == truth.num_points3D()


def test_known_lenses_and_plausible_ones_are_left_alone(truth):
    model = copy.deepcopy(truth)
    assert put_back(model, None) is model
    number = sorted(model.reg_image_ids())[0]
    send_off(model, number, 3000.0)
    model.cameras[model.images[number].camera_id].has_prior_focal_length = True
    assert runaways(model) == set()


def test_a_runaway_that_sees_next_to_nothing_is_taken_out(truth):
    model = copy.deepcopy(truth)
    number = sorted(model.reg_image_ids())[0]
    for row, point in enumerate(model.images[number].points2D):
        if point.has_point3D() and row > 8:
            model.delete_observation(number, row)
    send_off(model, number, 3000.0)
    found = put_back(model, lambda model, held: None)
    assert number not in found.reg_image_ids()
    assert found.num_reg_images() == truth.num_reg_images() - 1
