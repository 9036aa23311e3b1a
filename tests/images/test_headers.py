from __future__ import annotations

import cv2
import numpy as np
import pytest
from PIL import Image

from logpolar.images.headers import image_size

PIXELS = np.random.default_rng(0).integers(0, 256, (21, 34, 3), np.uint8)


def encoded(ending, tmp_path, **options):
    path = tmp_path / f"a{ending}"
    Image.fromarray(PIXELS).save(path, **options)
    return path.read_bytes()


@pytest.mark.parametrize("ending", [".png", ".jpg", ".bmp", ".tif", ".ppm"])
def test_formats_of_opencv(ending):
    assert image_size(cv2.imencode(ending, PIXELS)[1].tobytes()) == (34, 21)


@pytest.mark.parametrize(
    ("ending", "options"),
    [
        (".webp", {}),
        (".webp", {"lossless": True}),
        (".webp", {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0\0\0"}),
        (".jpg", {"progressive": True}),
        (".tif", {"compression": "tiff_lzw"}),
        (".jp2", {}),
    ],
)
def test_formats_of_pillow(tmp_path, ending, options):
    assert image_size(encoded(ending, tmp_path, **options)) == (34, 21)


def test_big_endian_tiff_and_comments_in_pnm():
    directory = b"\0\x02\x01\0\0\x03\0\0\0\x01\0\x22\0\0\x01\x01\0\x04\0\0\0\x01\0\0\0\x15"
    assert image_size(b"MM\0*\0\0\0\x08" + directory) == (34, 21)
    assert image_size(b"P5 # made by hand\n34 # wide\n21\n255\n") == (34, 21)


@pytest.mark.parametrize("ending", [".png", ".jpg", ".bmp", ".tif", ".ppm", ".webp"])
def test_truncated_anywhere(tmp_path, ending):
    """A size or none; never an error."""
    data = encoded(ending, tmp_path)
    assert {image_size(data[:length]) for length in range(0, 400, 3)} - {(34, 21), None} <= {(3, 21), (34, 2)}


def test_anything_else():
    assert image_size(b"") is None
    assert image_size(b"#?RADIANCE\n") is None
