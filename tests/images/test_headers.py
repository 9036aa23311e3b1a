from __future__ import annotations

import struct

import cv2
import numpy as np
import pytest
from PIL import Image

from logpolar.images.headers import image_size, promises_too_much

PIXELS = np.random.default_rng(0).integers(0, 256, (21, 34, 3), np.uint8)


def encoded(ending, tmp_path, **options):
    path = tmp_path / f"a{ending}"
    Image.fromarray(PIXELS).save(path, **options)
    return path.read_bytes()


@pytest.mark.parametrize("ending", [".png", ".jpg", ".bmp", ".tif", ".ppm", ".avif"])
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


def test_float_hdr():
    assert image_size(cv2.imencode(".hdr", PIXELS.astype(np.float32))[1].tobytes()) == (34, 21)


def test_tiff_whose_directory_comes_last():
    directory = b"\x02\0\0\x01\x03\0\x01\0\0\0\x22\0\0\0\x01\x01\x03\0\x01\0\0\0\x15\0\0\0"
    start = 2**21
    assert image_size(b"II*\0" + start.to_bytes(4, "little") + bytes(start - 8) + directory) == (34, 21)


def test_big_tiff(tmp_path):
    assert image_size(encoded(".tif", tmp_path, big_tiff=True)) == (34, 21)


def test_big_endian_tiff_and_comments_in_pnm():
    directory = b"\0\x02\x01\0\0\x03\0\0\0\x01\0\x22\0\0\x01\x01\0\x04\0\0\0\x01\0\0\0\x15"
    assert image_size(b"MM\0*\0\0\0\x08" + directory) == (34, 21)
    assert image_size(b"P5 # made by hand\n34 # wide\n21\n255\n") == (34, 21)


@pytest.mark.parametrize("ending", [".png", ".jpg", ".bmp", ".tif", ".ppm", ".webp"])
def test_truncated_anywhere(tmp_path, ending):
    """A size or none; never an error."""
    data = encoded(ending, tmp_path)
    assert {image_size(data[:length]) for length in range(0, 400, 3)} - {(34, 21), None} <= {(3, 21), (34, 2)}


@pytest.mark.parametrize("place", [8, 33])
def test_a_png_chunk_longer_than_its_file(tmp_path, place):
    data = encoded(".png", tmp_path)
    assert not promises_too_much(data)
    assert promises_too_much(data[:place] + b"\x7f" + data[place + 1 :])
    assert promises_too_much(data[:-13])


def test_a_png_of_more_pixels_than_deflate_can_unfold_to():
    data = cv2.imencode(".png", np.zeros((50, 60), np.uint8))[1].tobytes()
    assert not promises_too_much(data)
    assert promises_too_much(data[:16] + struct.pack(">II", 20_000, 20_000) + data[24:])


def test_anything_else():
    assert image_size(b"") is None
    assert image_size(b"#?RADIANCE\n") is None
