"""A photo's EXIF data: the focal length, the position. Without Pillow, which the base install lacks."""

from __future__ import annotations

import contextlib
import math
import struct
from pathlib import Path

import cv2
import numpy as np

from logpolar.errors import ImageError, LogpolarError
from logpolar.images.heif import heif_exif, is_heif
from logpolar.images.reading import read_checked, silent_stderr

FOCAL_LENGTH, FOCAL_LENGTH_35MM, PIXEL_WIDTH = 0x920A, 0xA405, 0xA002
ORIENTATION = 0x0112
FOCAL_PLANE_X_RESOLUTION, FOCAL_PLANE_UNIT = 0xA20E, 0xA210

_NESTED = 0x8769
"""Tag of the directory with the camera's settings."""

_GPS, _LATITUDE, _LONGITUDE, _ALTITUDE_REF, _ALTITUDE = 0x8825, 2, 4, 5, 6
"""Tag of the directory with the position, and tags in it."""

_LONGEST = 64
"""Values of a tag; more are pictures and notes."""

_EXIF = cv2.IMAGE_METADATA_EXIF
_TEXT = 2
_FORMATS = {1: "B", _TEXT: "c", 3: "H", 4: "I", 5: "II", 9: "i", 10: "ii", 11: "f", 12: "d"}
"""TIFF's types: byte, character, short, long, rational, the signed ones, and floating point."""


def read_exif(path: str | Path) -> dict[int, float]:
    """Single numbers by tag, rationals divided; empty without EXIF data, and without what is damaged in it."""
    return _read_tiff(exif_block(path))


def read_orientation(path: str | Path) -> int:
    """How a photo is stored: 1, upright, to 8; see ``viewing.drawing.upright``."""
    found = int(read_exif(path).get(ORIENTATION, 1))
    return found if 1 <= found <= 8 else 1


def exif_block(path: str | Path) -> bytes:
    """A photo's EXIF data as stored, a TIFF file of its own; empty without it."""
    data = read_checked(path)
    if is_heif(data[:32]):
        with contextlib.suppress(LogpolarError):
            return heif_exif(data)
        return b""
    try:
        with silent_stderr():
            _, kinds, blocks = cv2.imdecodeWithMetadata(
                np.frombuffer(data, np.uint8), flags=cv2.IMREAD_REDUCED_GRAYSCALE_8
            )
    except cv2.error:
        return b""
    return next((np.asarray(block).tobytes() for kind, block in zip(kinds, blocks, strict=True) if kind == _EXIF), b"")


def _read_tiff(data: bytes) -> dict[int, float]:
    found = {tag: values[0] for tag, values in _read_tables(data, _NESTED).items() if len(values) == 1}
    return {tag: value for tag, value in found.items() if isinstance(value, float) and math.isfinite(value)}


def _read_tables(data: bytes, nested: int) -> dict[int, tuple[float | str, ...]]:
    """Values by tag of the first directory and of the one that ``nested`` leads to; empty if they are cut off."""
    start = max(data.find(b"II*\0"), data.find(b"MM\0*"))
    if start < 0:
        return {}
    tiff = data[start:]
    order = "<" if tiff.startswith(b"II") else ">"
    try:
        (place,) = struct.unpack_from(f"{order}I", tiff, 4)
        found = _read_directory(tiff, order, place)
        if len(inner := found.get(nested, ())) == 1 and isinstance(inner[0], float):
            found |= _read_directory(tiff, order, int(inner[0]))
    except struct.error:  # cut off
        return {}
    return found


def _read_directory(tiff: bytes, order: str, place: int) -> dict[int, tuple[float | str, ...]]:
    found: dict[int, tuple[float | str, ...]] = {}
    (count,) = struct.unpack_from(f"{order}H", tiff, place)
    for entry in range(place + 2, place + 2 + 12 * count, 12):
        tag, kind, length = struct.unpack_from(f"{order}HHI", tiff, entry)
        if kind not in _FORMATS or not 0 < length <= _LONGEST:
            continue
        numbers = f"{order}{_FORMATS[kind] * length}"
        at = entry + 8 if struct.calcsize(numbers) <= 4 else struct.unpack_from(f"{order}I", tiff, entry + 8)[0]
        values = struct.unpack_from(numbers, tiff, at)
        if kind == _TEXT:
            found[tag] = (b"".join(values).split(b"\0")[0].decode("ascii", "replace"),)
        elif len(_FORMATS[kind]) == 2:
            pairs = zip(values[::2], values[1::2], strict=True)
            found[tag] = tuple(value / divisor if divisor else math.nan for value, divisor in pairs)
        else:
            found[tag] = tuple(float(value) for value in values)
    return found


def read_gps(path: str | Path) -> tuple[float, float, float | None] | None:
    """Latitude and longitude in degrees (WGS 84) and altitude in metres, if known, of a photo; None without GPS data.

    Raises ``ImageError`` for data that no place on Earth has.
    """
    found = _read_tables(exif_block(path), _GPS)
    if _GPS not in found:
        return None
    latitude, longitude = (_degrees(found, tag) for tag in (_LATITUDE, _LONGITUDE))
    if not found.keys() & {_LATITUDE, _LONGITUDE}:
        return None
    if latitude is None or longitude is None or not (abs(latitude) <= 90 and abs(longitude) <= 180):
        words = ("none" if each is None else f"{each:g}" for each in (latitude, longitude))
        raise ImageError(f"{path}: its GPS position is no place on Earth (latitude {', longitude '.join(words)})")
    if latitude == longitude == 0:
        raise ImageError(f"{path}: its GPS position is 0, 0: the camera had none")
    altitude, *_ = found.get(_ALTITUDE, (None,))
    if not isinstance(altitude, float) or not -1000 < altitude < 100_000:
        return latitude, longitude, None
    return latitude, longitude, -altitude if found.get(_ALTITUDE_REF) == (1.0,) else altitude


def _degrees(found: dict[int, tuple[float | str, ...]], tag: int) -> float | None:
    """From degrees, minutes and seconds; the tag before has the hemisphere. None if it is missing or nonsense."""
    numbers = [value for value in found.get(tag, ()) if isinstance(value, float)]
    if not 1 <= len(numbers) <= 3 or not np.isfinite(numbers).all():
        return None
    value = sum((number / 60.0**power for power, number in enumerate(numbers)), 0.0)
    return -value if found.get(tag - 1, ("",))[0] in ("S", "W") else value
