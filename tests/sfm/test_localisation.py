"""A new photo of an exact world, in a model whose cameras are the true ones."""

from __future__ import annotations

import shutil

import cv2
import numpy as np
import pycolmap
import pytest

from colmap_scene import open_few
from logpolar.errors import StorageError
from logpolar.geometry.cameras import rotation_degrees
from logpolar.sfm.cameras import CameraOptions
from logpolar.sfm.localisation import Localiser, write_with_photos
from logpolar.sfm.pipeline import SfmInputs, reconstruct
from synthetic_world import look_at, standard_world, write_workspace

NAMES = ["0.png", "1.png", "2.png", "3.png", "4.png", "deep/5.png"]


@pytest.fixture(scope="module")
def model(scene, tmp_path_factory):
    place = tmp_path_factory.mktemp("localisation")
    write_workspace(standard_world(cameras=6), place / "known", image_names=NAMES)
    (place / "model").mkdir()
    for name in ("features.h5", "matches.h5"):
        shutil.copyfile(scene / name, place / "model" / name)
    reconstruct(scene / "photos", place / "model", open_few, inputs=SfmInputs(poses=place / "known"))
    return place / "model"


def test_a_new_photo(model, tmp_path):
    world = standard_world(cameras=6)
    camera = look_at([0.1, -1.9, -3.6], [0.05, -0.6, 0], 352.0, 320, 240, roll_degrees=8)
    cv2.imwrite(str(tmp_path / "new.png"), world.render(camera)[0])
    (tmp_path / "text.jpg").write_text("no photo")
    cv2.imwrite(str(tmp_path / "flat.png"), np.full((240, 320), 128, np.uint8))
    before = {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    localiser = Localiser(model, CameraOptions(camera_model="SIMPLE_PINHOLE", camera_params="352,160,120"))
    paths = [tmp_path / name for name in ("new.png", "text.jpg", "flat.png")]
    found, text, flat = localiser.localise(paths)
    assert "not an image" in text.reason
    assert "0 inliers of 0 matches" in flat.reason
    assert found.reason == ""
    assert found.inliers > 20
    w, x, y, z = found.quaternion
    turn = pycolmap.Rotation3d(np.array([x, y, z, w])).matrix()
    truth = -camera.rotation.T @ camera.translation
    assert rotation_degrees(turn[None], camera.rotation[None])[0] < 0.5
    assert np.linalg.norm(np.array(found.centre) - truth) < 0.05
    assert 0 < found.rotation_sigma < 1
    assert 0 < found.position_sigma < 0.2
    assert before == {path: path.read_bytes() for path in model.rglob("*") if path.is_file()}
    assert write_with_photos(localiser.model, [found, text, flat], paths, tmp_path / "larger") == 1
    larger = pycolmap.Reconstruction(str(tmp_path / "larger"))
    assert np.allclose(larger.find_image_with_name("new.png").projection_center(), found.centre)
    assert larger.num_reg_images() == 7
    camera_of = larger.cameras[larger.find_image_with_name("new.png").camera_id]
    assert (camera_of.model.name, list(camera_of.params)) == ("SIMPLE_PINHOLE", [352, 160, 120])
    with pytest.raises(StorageError, match="exists already"):
        write_with_photos(localiser.model, [], [], tmp_path / "larger")


def test_an_unknown_camera_is_estimated_and_written(model, tmp_path):
    world = standard_world(cameras=6)
    cv2.imwrite(str(tmp_path / "new.png"), world.render(look_at([0.1, -1.9, -3.6], [0, -0.6, 0], 352.0, 320, 240))[0])
    localiser = Localiser(model)
    (found,) = localiser.localise([tmp_path / "new.png"])
    assert found.camera is not None
    assert found.camera.number is None  # the model's photos have cameras of their own
    assert found.focal == pytest.approx(352, rel=0.05)  # COLMAP's guess is 384
    assert write_with_photos(localiser.model, [found], [tmp_path / "new.png"], tmp_path / "larger") == 1
    larger = pycolmap.Reconstruction(str(tmp_path / "larger"))
    camera = larger.cameras[larger.find_image_with_name("new.png").camera_id]
    assert tuple(camera.params) == found.camera.parameters


def test_the_camera_that_all_photos_share_is_used(model):
    localiser = Localiser(model)
    shared, guess = (pycolmap.Camera(model="SIMPLE_RADIAL", width=320, height=240) for _ in range(2))
    shared.params, guess.params, shared.camera_id = [352, 160, 120, 0.01], [384, 160, 120, 0], 3
    assert localiser._shared_with(guess) is None  # photos have cameras of their own
    localiser._shared = shared
    used = localiser._shared_with(guess)
    assert list(used.params) == [352, 160, 120, 0.01]
    assert used.has_prior_focal_length
    guess.has_prior_focal_length, guess.params = True, [500, 160, 120, 0]
    assert localiser._shared_with(guess) is None  # EXIF data knows better
    guess.width, guess.has_prior_focal_length = 640, False
    assert localiser._shared_with(guess) is None


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(StorageError, match="no finished model"):
        Localiser(tmp_path)


def test_a_model_without_the_points_that_its_photos_observe(model, tmp_path):
    shutil.copytree(model, tmp_path / "model")
    (tmp_path / "model" / "sparse" / "0" / "points3D.bin").write_bytes(bytes(8))
    with pytest.raises(StorageError, match=r"\.png observes a point that is not in it"):
        Localiser(tmp_path / "model")
