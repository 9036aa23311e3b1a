"""Size of an image from its file, before anything is decoded."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable

Size = tuple[int, int]
"""Width and height in pixels."""

_MOST_PER_BYTE = 8 * 1032
"""Pixels of a PNG per byte: deflate unfolds to 1032 times at most, and a pixel may have one bit."""


def image_size(data: bytes) -> Size | None:
    """Size of a JPEG, PNG, TIFF, WebP, BMP, PNM, JPEG 2000, AVIF or HDR image; None if it is another, or damaged."""
    readers: dict[bytes, Callable[[bytes], Size | None]] = {
        b"\xff\xd8": _jpeg,
        b"\x89PNG": _png,
        b"RIFF": _webp,
        b"BM": _bmp,
        b"II": _tiff,
        b"MM": _tiff,
        b"P": _pnm,
        b"\0\0\0\x0cjP": _jpeg_2000,
        b"\0\0\0": _avif,
        b"#?": _radiance,
    }
    for start, read in readers.items():
        if data.startswith(start):
            try:
                return read(data)
            except (struct.error, ValueError, IndexError):
                return None
    return None


def promises_too_much(data: bytes) -> bool:
    """Whether a PNG declares more than its file can hold, for which the decoder would take the memory first."""
    if not data.startswith(b"\x89PNG"):
        return False
    size, place = image_size(data), 8
    while place + 8 <= len(data) and data[place + 4 : place + 8] != b"IEND":
        place += 12 + int.from_bytes(data[place : place + 4], "big")
    return place + 12 > len(data) or (size is not None and size[0] * size[1] > _MOST_PER_BYTE * len(data))


def _png(data: bytes) -> Size:
    return _pair(">II", data, 16)


def _bmp(data: bytes) -> Size:
    width, height = _pair("<ii", data, 18)
    return abs(width), abs(height)  # negative: rows from the top


def _jpeg(data: bytes) -> Size | None:
    """From the start of the frame, the first of the segments with marker and length that has one."""
    place = 2
    while data[place] == 0xFF:
        marker = data[place + 1]
        if marker == 0xFF:  # padding
            place += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = _pair(">HH", data, place + 5)
            return width, height
        else:
            place += 2 + struct.unpack_from(">H", data, place + 2)[0]
    return None


def _jpeg_2000(data: bytes) -> Size:
    height, width = _pair(">II", data, data.index(b"ihdr", 0, 4096) + 4)
    return width, height


def _webp(data: bytes) -> Size | None:
    kind = data[12:16]
    if kind == b"VP8 ":
        width, height = _pair("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X":
        return int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1
    return None


def _tiff(data: bytes) -> Size:
    """From the tags 256 and 257 of the first directory, which may be at the end; BigTIFF has wider integers."""
    order, wide = "<" if data.startswith(b"II") else ">", data[2:4] in (b"+\0", b"\0+")
    (start,) = struct.unpack_from(f"{order}Q" if wide else f"{order}I", data, 8 if wide else 4)
    counted, length, value = ("Q", 20, 12) if wide else ("H", 12, 8)
    (count,) = struct.unpack_from(order + counted, data, start)
    start += struct.calcsize(f"={counted}")
    found = {}
    for place in range(start, min(start + length * count, len(data)), length):
        tag, kind = _pair(f"{order}HH", data, place)
        if tag in (256, 257):
            letter = {3: "H", 16: "Q"}.get(kind, "I")
            (found[tag],) = struct.unpack_from(order + letter, data, place + value)
    if len(found) < 2:
        raise ValueError("no size")
    return found[256], found[257]


def _avif(data: bytes) -> Size | None:
    """From the largest of the spatial extents: a grid of tiles has one for itself and one for its tiles."""
    if data[4:8] != b"ftyp":
        return None
    sizes = [_pair(">II", data, match.end() + 4) for match in re.finditer(b"ispe", data[:65536])]
    return max(sizes, key=lambda size: size[0] * size[1], default=None)


def _radiance(data: bytes) -> Size | None:
    found = re.search(rb"\n-Y (\d+) \+X (\d+)\n", data[:4096])
    return (int(found[2]), int(found[1])) if found else None


def _pnm(data: bytes) -> Size:
    """From the first two numbers; comments start with #."""
    lines = (line.partition(b"#")[0] for line in data[2:4096].splitlines())
    width, height, *_ = b" ".join(lines).split()
    return int(width), int(height)


def _pair(layout: str, data: bytes, place: int) -> Size:
    first, second = struct.unpack_from(layout, data, place)
    return first, second
