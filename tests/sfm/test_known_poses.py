from __future__ import annotations

import shutil

import numpy as np
import pycolmap
import pytest

from colmap_scene import open_few
from logpolar.errors import LogpolarError
from logpolar.sfm.cameras import CameraOptions
from logpolar.sfm.known_poses import read_known_poses
from logpolar.sfm.pipeline import SfmInputs, SfmOptions, reconstruct
from synthetic_world import line, quaternion, standard_world, write_workspace

NAMES = ["0.png", "1.png", "2.png", "3.png", "4.png", "deep/5.png"]


def true_poses(path, names=NAMES):
    cameras = standard_world(cameras=6).cameras
    rows = zip(names, cameras, strict=False)
    path.write_text("".join(line(name, *quaternion(c.rotation), *c.translation) for name, c in rows))
    return path


def start(scene, output):
    output.mkdir()
    for name in ("features.h5", "matches.h5"):
        shutil.copyfile(scene / name, output / name)
    return output


def check(model, names):
    """Cameras are where they were told to be, and the points lie on surfaces of the world."""
    world = standard_world(cameras=6)
    assert sorted(image.name for image in model.images.values()) == sorted(names)
    for image in model.images.values():
        camera = world.cameras[NAMES.index(image.name)]
        assert np.allclose(image.cam_from_world().matrix()[:, 3], camera.translation, atol=1e-9)
    first = world.cameras[0]
    points = np.array([point.xyz for point in model.points3D.values()])
    xy, depth = first.project(points)
    inside = first.inside(xy) & (depth > 0)
    true_depth = world.cast(first, xy[inside])[0]
    error = np.abs(depth[inside] / true_depth - 1)
    assert len(points) > 50
    assert np.nanmedian(error) < 0.02


def test_a_text_file_and_a_calibration(scene, tmp_path):
    """The photos have cameras of their own, so only one is calibrated exactly; it is enough for the poses to hold."""
    poses = true_poses(tmp_path / "poses.txt", NAMES[:4])
    camera = standard_world(cameras=6).cameras[0]
    options = SfmOptions(cameras=CameraOptions(camera_model="SIMPLE_PINHOLE", camera_params=f"{camera.focal},160,120"))
    output = start(scene, tmp_path / "m")
    report = reconstruct(scene / "photos", output, open_few, options, inputs=SfmInputs(poses=poses))
    assert [image.name for image in report.registered] == NAMES[:4]
    model = pycolmap.Reconstruction(str(output / "sparse" / "0"))
    assert all(camera.model.name == "SIMPLE_PINHOLE" for camera in model.cameras.values())
    assert [path.name for path in (output / "sparse").iterdir()] == ["0"]


def test_a_colmap_model_with_its_cameras(scene, tmp_path):
    write_workspace(standard_world(cameras=6), tmp_path / "known", image_names=NAMES)
    output = start(scene, tmp_path / "m")
    reconstruct(scene / "photos", output, open_few, inputs=SfmInputs(poses=tmp_path / "known"))
    check(pycolmap.Reconstruction(str(output / "sparse" / "0")), NAMES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.jpg 1 0 0 0 0 0\n", "line 1 is not 'NAME QW"),
        ("a.jpg 1 0 0 x 0 0 0\n", "line 1 is not"),
        ("a.jpg 1 0 0 nan 0 0 0\n", "line 1 is not"),
        ("a.jpg 2 0 0 0 0 0 0\n", "length 2, not 1"),
        ("a.jpg 1 0 0 0 0 0 0\na.jpg 1 0 0 0 0 0 0\n", "line 2: a second pose of 'a.jpg'"),
        ("# nothing\n", "no poses"),
    ],
)
def test_mistakes(tmp_path, text, words):
    (tmp_path / "poses.txt").write_text(text)
    with pytest.raises(LogpolarError, match=words):
        read_known_poses(tmp_path / "poses.txt")


def test_poses_of_other_photos(scene, tmp_path):
    poses = true_poses(tmp_path / "poses.txt", ["x.png", "y.png"])
    with pytest.raises(LogpolarError, match="has poses of 0 of the photos"):
        reconstruct(scene / "photos", start(scene, tmp_path / "m"), open_few, inputs=SfmInputs(poses=poses))
