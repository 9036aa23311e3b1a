"""Depth maps as COLMAP writes them: ``width&height&channels&`` in ASCII, then float32, row by row, 0 for unknown."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from logpolar.errors import StorageError, in_words
from logpolar.types import FloatArray

_LONGEST_HEADER = 64


def read_depth(path: Path) -> FloatArray:
    """Depth (H, W); values that are not positive and finite become 0."""
    width, height, start = _read_header(path, channels=1)
    depth = np.fromfile(path, np.float32, width * height, offset=start).reshape(height, width)
    return np.where(np.isfinite(depth) & (depth > 0), depth, np.float32(0))


def depth_size(path: Path) -> tuple[int, int]:
    """Width and height of a depth map; refuses a file whose length contradicts its header."""
    return _read_header(path, channels=1)[:2]


def is_complete(path: Path) -> bool:
    """Whether the length of a depth map, or of a normal map with its three channels, agrees with its header."""
    try:
        _read_header(path)
    except StorageError:
        return False
    return True


def _read_header(path: Path, channels: int | None = None) -> tuple[int, int, int]:
    """Width and height of a map with this number of channels, or any, and where the values start."""
    try:
        with path.open("rb") as file:
            parts = file.read(_LONGEST_HEADER).split(b"&", 3)
        length = path.stat().st_size
    except OSError as error:
        raise StorageError(f"{path}: {in_words(error)}") from error
    if len(parts) < 4 or not all(part.isdigit() for part in parts[:3]):
        raise StorageError(f"{path}: not a COLMAP depth map")
    width, height, found = (int(part) for part in parts[:3])
    if min(width, height, found) < 1 or found != (channels or found):
        raise StorageError(f"{path}: a depth map has one channel, this file has {width} x {height} x {found}")
    start = sum(len(part) + 1 for part in parts[:3])
    expected = start + 4 * width * height * found
    if length != expected:
        values = f"{width} x {height} x {found} values take {expected} bytes"
        raise StorageError(f"{path}: truncated or damaged, {values}, the file has {length}")
    return width, height, start
