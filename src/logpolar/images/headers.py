"""Size of an image from the first bytes of its file, before anything is decoded."""

from __future__ import annotations

import struct

Size = tuple[int, int]
"""Width and height in pixels."""


def image_size(data: bytes) -> Size | None:
    """Size of a JPEG, PNG, TIFF, WebP, BMP, PNM or JPEG 2000 image; None if it is another one, or damaged."""
    readers = {
        b"\xff\xd8": _jpeg,
        b"\x89PNG": _png,
        b"RIFF": _webp,
        b"BM": _bmp,
        b"II": _tiff,
        b"MM": _tiff,
        b"P": _pnm,
        b"\0\0\0\x0cjP": _jpeg_2000,
    }
    for start, read in readers.items():
        if data.startswith(start):
            try:
                return read(data)
            except (struct.error, ValueError, IndexError):
                return None
    return None


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
    """From the tags 256 and 257 of the first directory; integers of 2 or 4 bytes."""
    order = "<" if data.startswith(b"II") else ">"
    (start,) = struct.unpack_from(f"{order}I", data, 4)
    found = {}
    for number in range(struct.unpack_from(f"{order}H", data, start)[0]):
        tag, kind = _pair(f"{order}HH", data, start + 2 + 12 * number)
        if tag in (256, 257):
            (found[tag],) = struct.unpack_from(f"{order}{'H' if kind == 3 else 'I'}", data, start + 10 + 12 * number)
    if len(found) < 2:
        raise ValueError("no size")
    return found[256], found[257]


def _pnm(data: bytes) -> Size:
    """From the first two numbers; comments start with #."""
    lines = (line.partition(b"#")[0] for line in data[2:4096].splitlines())
    width, height, *_ = b" ".join(lines).split()
    return int(width), int(height)


def _pair(layout: str, data: bytes, place: int) -> Size:
    first, second = struct.unpack_from(layout, data, place)
    return first, second
