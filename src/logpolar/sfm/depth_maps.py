"""Depth maps as COLMAP writes them: ``width&height&channels&`` in ASCII, then float32, row by row, 0 for unknown."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from logpolar.errors import StorageError, in_words
from logpolar.types import FloatArray

_LONGEST_HEADER = 64


def read_depth(path: Path) -> FloatArray:
    """Depth (H, W); what is not positive and finite becomes 0."""
    width, height, start = _read_header(path)
    depth = np.fromfile(path, np.float32, width * height, offset=start).reshape(height, width)
    return np.where(np.isfinite(depth) & (depth > 0), depth, np.float32(0))


def depth_size(path: Path) -> tuple[int, int]:
    """Width and height of a depth map; refuses a file that is shorter or longer than its header says."""
    width, height, _ = _read_header(path)
    return width, height


def is_whole(path: Path) -> bool:
    """Whether a depth map, or a normal map, which has three channels, is as long as its header says."""
    try:
        _read_shape(path)
    except StorageError:
        return False
    return True


def _read_header(path: Path) -> tuple[int, int, int]:
    """Width and height of a depth map, and where the values start."""
    width, height, channels, start = _read_shape(path)
    if channels != 1:
        raise StorageError(f"{path}: a depth map has one channel, this file has {width} x {height} x {channels}")
    return width, height, start


def _read_shape(path: Path) -> tuple[int, int, int, int]:
    """Width, height and channels of a map, and where the values start."""
    try:
        with path.open("rb") as file:
            parts = file.read(_LONGEST_HEADER).split(b"&", 3)
        length = path.stat().st_size
    except OSError as error:
        raise StorageError(f"{path}: {in_words(error)}") from error
    if len(parts) < 4 or not all(part.isdigit() for part in parts[:3]):
        raise StorageError(f"{path}: not a COLMAP depth map")
    width, height, channels = (int(part) for part in parts[:3])
    if min(width, height, channels) < 1:
        raise StorageError(f"{path}: a depth map has one channel, this file has {width} x {height} x {channels}")
    start = sum(len(part) + 1 for part in parts[:3])
    expected = start + 4 * width * height * channels
    if length != expected:
        values = f"{width} x {height} x {channels} values take {expected} bytes"
        raise StorageError(f"{path}: truncated or damaged, {values}, the file has {length}")
    return width, height, channels, start
