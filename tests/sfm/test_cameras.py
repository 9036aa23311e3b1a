from __future__ import annotations

import pytest

from logpolar.errors import LogpolarError
from logpolar.sfm.cameras import CameraOptions, misfits, read_calibration


def options(params="", model="PINHOLE", mode="auto"):
    return CameraOptions(camera_model=model, camera_params=str(params), camera_mode=mode)


def calibration(params, model="PINHOLE"):
    return read_calibration(options(params, model))


def test_none_is_known():
    assert read_calibration(CameraOptions()) is None
    assert misfits(CameraOptions(), {"a": (3, 4)}) == {}


def test_numbers():
    found = calibration("500, 510,320,240")
    assert (found.model, found.parameters, found.size) == ("PINHOLE", (500, 510, 320, 240), None)


def test_a_file_as_colmap_writes_it(tmp_path):
    (tmp_path / "cameras.txt").write_text("# cameras\n1 SIMPLE_RADIAL 640 480 500 320 240 0.1\n")
    found = calibration(tmp_path / "cameras.txt")
    assert (found.model, found.parameters, found.size) == ("SIMPLE_RADIAL", (500, 320, 240, 0.1), (640, 480))


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ("500,320,240", r"PINHOLE has 4 parameters \(fx, fy, cx, cy\), not 3"),
        ("0,500,320,240", "focal lengths positive"),
        ("nan,500,320,240", "must be finite"),
        ("no/such/file", "no such file"),
    ],
)
def test_mistakes(params, words):
    with pytest.raises(LogpolarError, match=words):
        calibration(params)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 PINHOLE 3 4 5 6 7 8\n2 PINHOLE 3 4 5 6 7 8\n",
        "1\n",
        "1 LENS 3 4 5\n",
        "1 PINHOLE 3\n",
        "1 PINHOLE nan 4 5 6 7 8\n",
        "1 PINHOLE 3 inf 5 6 7 8\n",
        "1 PINHOLE -3 4 5 6 7 8\n",
    ],
)
def test_files_that_are_no_calibration(tmp_path, text):
    (tmp_path / "c.txt").write_text(text)
    with pytest.raises(LogpolarError, match=r"c\.txt: .*cameras\.txt"):
        calibration(tmp_path / "c.txt")


def test_photos_of_another_size(tmp_path):
    sizes = {"a.jpg": (640, 480), "b.jpg": (320, 240)}
    numbers = misfits(options("500,500,320,240"), sizes)
    assert list(numbers) == ["b.jpg"]
    assert "cx = 320 is far from the middle of 320 x 240" in numbers["b.jpg"]
    (tmp_path / "c.txt").write_text("1 PINHOLE 640 480 500 500 320 240")
    known = misfits(options(tmp_path / "c.txt"), sizes)
    assert known == {"b.jpg": "b.jpg: the calibration is for 640 x 480 pixels, not 320 x 240"}
    with pytest.raises(LogpolarError, match="no photo fits the calibration"):
        misfits(options("500,500,3200,2400"), sizes)


def test_photos_that_share_a_camera_have_one_size():
    sizes = {"a/1.jpg": (640, 480), "a/2.jpg": (640, 480), "a/3.jpg": (480, 640), "b/4.jpg": (480, 640)}
    assert misfits(options(mode="per-image"), sizes) == {}
    assert list(misfits(options(mode="per-folder"), sizes)) == ["a/3.jpg"]
    found = misfits(options(mode="single"), {"0.jpg": (640, 480), **sizes})
    assert list(found) == ["a/3.jpg", "b/4.jpg"]
    assert "has 480 x 640 pixels, the others of its camera 640 x 480; --camera-mode auto" in found["b/4.jpg"]
