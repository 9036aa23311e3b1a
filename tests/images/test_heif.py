from __future__ import annotations

import sys

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from logpolar.errors import ImageError, MissingExtraError
from logpolar.images import read_gray, read_image
from logpolar.images.exif import ORIENTATION, read_exif
from logpolar.images.heif import decode_heif, heif_exif, is_heif


@pytest.fixture
def photo(tmp_path):
    """A gradient that a lossy codec keeps to a few gray values."""
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[..., 0], pixels[..., 2] = np.arange(64)[:, None] * 3, np.arange(96) * 2  # red and blue, as RGB
    pillow_heif.from_bytes("RGB", (96, 64), pixels.tobytes()).save(tmp_path / "a.heic", quality=95)
    return tmp_path / "a.heic", pixels


def test_pixels_are_bgr(photo):
    path, pixels = photo
    found = read_image(path)
    assert found.shape == (64, 96, 3)
    assert np.abs(found[..., ::-1].astype(int) - pixels).mean() < 3
    assert read_gray(path).shape == (64, 96)
    data = path.read_bytes()
    assert is_heif(data)
    assert (decode_heif(data) == found).all()
    assert heif_exif(data) == b""


def test_pixels_are_upright_and_exif_says_so(tmp_path):
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    blank = pillow_heif.from_bytes("RGB", (96, 64), bytes(96 * 64 * 3))
    blank.save(tmp_path / "a.heic", exif=exif.tobytes())
    assert read_image(tmp_path / "a.heic").shape[:2] == (96, 64)
    assert read_exif(tmp_path / "a.heic")[ORIENTATION] == 1


def test_others_are_not_heif(tmp_path):
    assert not is_heif(b"")
    assert not is_heif(b"\0\0\0\x1cftypavif\0\0\0\0mif1avif")


def test_damaged(photo):
    path, _ = photo
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ImageError, match=r"a\.heic: "):
        read_image(path)


def test_without_the_extra(photo, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises((MissingExtraError, ImageError), match=r"pip install 'logpolar\[heif\]'"):
        decode_heif(photo[0].read_bytes())


def test_damaged_bytes_are_told_in_one_line(photo, tmp_path):
    """Each of the first bytes changed, where the structure is, and the file cut anywhere."""
    data = photo[0].read_bytes()
    damaged = [data[:place] + bytes([value]) + data[place + 1 :] for place in range(12, 500, 2) for value in (0, 255)]
    damaged += [data[:length] for length in range(13, len(data), 37)]
    refused = 0
    for number, each in enumerate(damaged):
        path = tmp_path / f"{number}.heic"
        path.write_bytes(each)
        for read in (read_image, read_exif):
            try:
                read(path)
            except ImageError as error:
                refused += 1
                assert "\n" not in str(error)
    assert refused > len(damaged) / 4
