"""Numbers in a photo's EXIF data: the focal length, for one. Without Pillow, which the base install lacks."""

from __future__ import annotations

import struct
from pathlib import Path

import cv2
import numpy as np

from logpolar.images.reading import read_checked, silent_stderr

FOCAL_LENGTH, FOCAL_LENGTH_35MM, PIXEL_WIDTH = 0x920A, 0xA405, 0xA002
ORIENTATION = 0x0112
FOCAL_PLANE_X_RESOLUTION, FOCAL_PLANE_UNIT = 0xA20E, 0xA210

_NESTED = 0x8769
"""Tag of the directory with the camera's settings."""

_FORMATS = {3: "H", 4: "I", 5: "II", 9: "i", 10: "ii", 11: "f", 12: "d"}
"""TIFF's types of numbers: short, long, rational, the signed ones, and floating point."""


def read_exif(path: str | Path) -> dict[int, float]:
    """Single numbers by tag, rationals divided; empty without EXIF data, and without what is damaged in it."""
    data = read_checked(path)
    try:
        with silent_stderr():
            _, kinds, blocks = cv2.imdecodeWithMetadata(
                np.frombuffer(data, np.uint8), flags=cv2.IMREAD_REDUCED_GRAYSCALE_8
            )
    except cv2.error:
        return {}
    found: dict[int, float] = {}
    for kind, block in zip(kinds, blocks, strict=True):
        if kind == cv2.IMAGE_METADATA_EXIF:
            found |= _read_tiff(np.asarray(block).tobytes())
    return found


def _read_tiff(data: bytes) -> dict[int, float]:
    start = max(data.find(b"II*\0"), data.find(b"MM\0*"))
    if start < 0:
        return {}
    tiff = data[start:]
    order = "<" if tiff.startswith(b"II") else ">"
    try:
        (place,) = struct.unpack_from(f"{order}I", tiff, 4)
        found = _read_directory(tiff, order, place)
        if _NESTED in found:
            found |= _read_directory(tiff, order, int(found[_NESTED]))
    except struct.error:  # cut off
        return {}
    return found


def _read_directory(tiff: bytes, order: str, place: int) -> dict[int, float]:
    found = {}
    (count,) = struct.unpack_from(f"{order}H", tiff, place)
    for entry in range(place + 2, place + 2 + 12 * count, 12):
        tag, kind, length = struct.unpack_from(f"{order}HHI", tiff, entry)
        if kind not in _FORMATS or length != 1:
            continue
        numbers = f"{order}{_FORMATS[kind]}"
        at = entry + 8 if struct.calcsize(numbers) <= 4 else struct.unpack_from(f"{order}I", tiff, entry + 8)[0]
        value, *divisor = struct.unpack_from(numbers, tiff, at)
        if divisor != [0]:
            found[tag] = value / divisor[0] if divisor else float(value)
    return found
