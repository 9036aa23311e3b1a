from __future__ import annotations

import os

import pytest
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from logpolar.errors import ImageError
from logpolar.images.exif import FOCAL_LENGTH, FOCAL_LENGTH_35MM, _read_tiff, read_exif, read_gps


def write(path, order: str = "<"):
    exif = Image.Exif()
    exif[0x0112] = 6
    exif.endian = order
    exif.get_ifd(0x8769).update({FOCAL_LENGTH: IFDRational(9, 2), FOCAL_LENGTH_35MM: 28})
    Image.new("L", (8, 8)).save(path, exif=exif)
    return path


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
def test_numbers_by_tag(tmp_path, name, order):
    found = read_exif(write(tmp_path / name, order))
    assert found[FOCAL_LENGTH] == pytest.approx(4.5)
    assert (found[FOCAL_LENGTH_35MM], found[0x0112]) == (28, 6)


def test_none(tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "plain.jpg")
    assert read_exif(tmp_path / "plain.jpg") == {}
    (tmp_path / "text.jpg").write_text("no photo")
    assert read_exif(tmp_path / "text.jpg") == {}
    with pytest.raises(ImageError, match="no such file"):
        read_exif(tmp_path / "none.jpg")


def test_data_that_is_cut_off():
    """At any place: no error, and no number but a right one."""
    exif = Image.Exif()
    exif.get_ifd(0x8769).update({FOCAL_LENGTH: 4.5})
    whole = exif.tobytes()
    assert _read_tiff(whole)[FOCAL_LENGTH] == 4.5
    for length in range(len(whole)):
        assert _read_tiff(whole[:length]).get(FOCAL_LENGTH, 4.5) == 4.5


def test_a_picture_above_the_limit_is_not_decoded_for_its_exif_data(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jpg", "<")
    monkeypatch.setenv("LOGPOLAR_MAX_MEGAPIXELS", "1e-5")
    with pytest.raises(ImageError, match=r"a\.jpg: .*limit"):
        read_exif(path)


def test_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(ImageError, match="pipe"):
        read_exif(tmp_path / "pipe.jpg")


def write_gps(path, latitude=(48, 30, 36), longitude=(9, 0, 0), south="N", west="E", altitude=300.5, below=0):
    exif = Image.Exif()
    values = {1: south, 2: latitude, 3: west, 4: longitude, 5: bytes([below]), 6: altitude}
    exif.get_ifd(0x8825).update({tag: value for tag, value in values.items() if value is not None})
    Image.new("L", (8, 8)).save(path, exif=exif)
    return path


def test_gps(tmp_path):
    assert read_gps(write_gps(tmp_path / "a.jpg")) == pytest.approx((48.51, 9, 300.5))
    other = write_gps(tmp_path / "b.jpg", south="S", west="W", below=1)
    assert read_gps(other) == pytest.approx((-48.51, -9, -300.5))
    assert read_gps(write_gps(tmp_path / "c.jpg", altitude=None)) == pytest.approx((48.51, 9, None))
    assert read_gps(write(tmp_path / "d.jpg")) is None


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"latitude": (200, 0, 0)}, "no place on Earth"),
        ({"longitude": (181, 0, 0)}, "no place on Earth"),
        ({"latitude": (0, 0, 0), "longitude": (0, 0, 0)}, "0, 0: the camera had none"),
        ({"latitude": (IFDRational(0, 0), 0, 0)}, "no place on Earth"),
        (dict.fromkeys(("latitude", "longitude"), (IFDRational(0, 0), 0, 0)), "no place on Earth"),
        ({"longitude": None}, "no place on Earth"),
    ],
)
def test_nonsense_gps(tmp_path, values, words):
    with pytest.raises(ImageError, match=words):
        read_gps(write_gps(tmp_path / "a.jpg", **values))
