from __future__ import annotations

import cv2
import numpy as np
import pytest
from PIL import Image

from logpolar.errors import LogpolarError
from logpolar.geometry.intrinsics import Intrinsics, rays_and_focal


def test_colmap_notation_there_and_back():
    camera = Intrinsics.parse("PINHOLE,640,480,500,510,320,240")
    assert camera == Intrinsics("PINHOLE", 640, 480, (500, 510, 320, 240))
    assert Intrinsics.parse(str(camera)) == camera
    assert camera.focal == 505


def test_the_centre_of_a_pixel_is_colmaps_half():
    rays, focal = rays_and_focal(np.array([[319.5, 239.5], [819.5, 239.5]]), "SIMPLE_PINHOLE,640,480,500,320,240")
    np.testing.assert_allclose(rays, [[0, 0], [1, 0]], atol=1e-12)
    assert focal == 500


def test_distortion_is_removed():
    """OpenCV has the same model."""
    points = np.random.default_rng(0).uniform((0, 0), (640, 480), (20, 2))
    matrix, distortion = np.array([[500, 0, 319.5], [0, 510, 239.5], [0, 0, 1.0]]), np.array([-0.1, 0.02, 1e-3, -2e-3])
    rays, _ = rays_and_focal(points, "OPENCV,640,480,500,510,320,240,-0.1,0.02,0.001,-0.002")
    back = cv2.projectPoints(np.c_[rays, np.ones(20)], np.zeros(3), np.zeros(3), matrix, distortion)[0][:, 0]
    np.testing.assert_allclose(back, points, atol=1e-6)


def test_no_points():
    assert rays_and_focal(np.zeros((0, 2)), "SIMPLE_PINHOLE,640,480,500,320,240")[0].shape == (0, 2)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a camera"),
        ("my camera", "not a camera"),
        ("PINHOLE,640,480,500,500,320,x", "not a camera"),
        ("PINHOLE,640", "not a camera"),
        ("BOX,640,480,500,320,240", "not a known camera model"),
        ("PINHOLE,640,480,500,320,240", "4 parameters"),
        ("PINHOLE,640,480,0,500,320,240", "focal length"),
        ("SIMPLE_PINHOLE,640,480,-3,320,240", "focal length"),
        ("SIMPLE_PINHOLE,640,0,500,320,240", "positive size"),
        ("SIMPLE_PINHOLE,640,480,nan,320,240", "finite"),
    ],
)
def test_what_is_no_camera(text, reason):
    with pytest.raises(LogpolarError, match=reason) as caught:
        Intrinsics.parse(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("matrix", [np.zeros((3, 3)), np.diag([np.nan, 1, 1]), np.eye(2), np.diag([0, 5, 1.0])])
def test_matrices_that_are_no_camera(matrix):
    with pytest.raises(LogpolarError, match="camera matrix"):
        rays_and_focal(np.zeros((1, 2)), matrix)


class TestExif:
    @pytest.fixture
    def photo(self, tmp_path):
        def write(**tags: float):
            image, exif = Image.new("L", (300, 200)), Image.Exif()
            names = {"focal": 0x920A, "focal_35": 0xA405, "resolution": 0xA20E, "unit": 0xA210, "width": 0xA002}
            exif.get_ifd(0x8769).update({names[key]: value for key, value in tags.items()})
            image.save(tmp_path / "photo.jpg", exif=exif)
            return tmp_path / "photo.jpg"

        return write

    def test_35mm_equivalent(self, photo):
        """50 mm on a frame of 36 x 24 mm; the photo has its shape."""
        camera = Intrinsics.from_exif(photo(focal_35=50))
        assert str(camera) == "SIMPLE_PINHOLE,300,200,416.667,150,100"

    def test_resolution_of_the_sensor(self, photo):
        """1000 pixels per cm on 3000 columns, of which every tenth is left: 35 mm are 350 pixels."""
        camera = Intrinsics.from_exif(photo(focal=35.0, resolution=1000.0, unit=3, width=3000))
        assert camera.focal == pytest.approx(350)

    def test_without_focal_length(self, photo, tmp_path):
        Image.new("L", (30, 20)).save(tmp_path / "plain.png")
        for path in (photo(), photo(focal=35.0), photo(focal_35=0), tmp_path / "plain.png"):
            with pytest.raises(LogpolarError, match=r"no focal length.*SIMPLE_PINHOLE"):
                Intrinsics.from_exif(path)
