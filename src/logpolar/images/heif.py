"""HEIC and HEIF, the photos of phones, through pillow-heif: the extra 'heif'."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from logpolar.errors import ImageError, MissingExtraError, in_one_line
from logpolar.types import Image

_BRANDS = {b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1"}

_ERRORS = (ValueError, RuntimeError, OSError, SyntaxError, LookupError, EOFError, TypeError, struct.error)
"""What pillow-heif raises for damaged files: what its own code, Pillow's and libheif's come to."""


def is_heif(data: bytes) -> bool:
    """Whether a file begins as HEIC or HEIF does; AVIF, its sibling, is read by OpenCV."""
    return data[4:8] == b"ftyp" and data[8:12] in _BRANDS and b"avif" not in data[8:32]


def decode_heif(data: bytes) -> Image:
    """Gray, BGR or BGRA pixels. HEIF applies rotation itself: they are upright."""
    try:
        pixels = np.asarray(_open(data))
    except _ERRORS as error:
        raise ImageError(f"cannot be decoded ({in_one_line(error)})") from error
    return np.ascontiguousarray(pixels)


def heif_exif(data: bytes) -> bytes:
    """The EXIF block; empty without one. Its orientation is upright, as ``decode_heif`` returns the pixels."""
    try:
        info = _open(data).info
        import pillow_heif

        pillow_heif.set_orientation(info)
        return info.get("exif") or b""
    except _ERRORS as error:
        raise ImageError(f"damaged EXIF data ({in_one_line(error)})") from error


def _open(data: bytes) -> Any:
    try:
        import pillow_heif
    except ImportError as error:
        raise MissingExtraError("reading HEIC and HEIF", "heif") from error
    try:
        return pillow_heif.open_heif(data, bgr_mode=True)
    except _ERRORS as error:
        raise ImageError(f"not an image, or a damaged one ({in_one_line(error)})") from error
