"""Depth maps as COLMAP writes them: ``width&height&channels&`` in ASCII, then float32, row by row, 0 for unknown."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from logpolar.errors import StorageError, in_words
from logpolar.keypoints import FloatArray

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


def _read_header(path: Path) -> tuple[int, int, int]:
    """Width, height, and where the values start."""
    try:
        with path.open("rb") as file:
            parts = file.read(_LONGEST_HEADER).split(b"&", 3)
        length = path.stat().st_size
    except OSError as error:
        raise StorageError(f"{path}: {in_words(error)}") from error
    if len(parts) < 4 or not all(part.isdigit() for part in parts[:3]):
        raise StorageError(f"{path}: not a COLMAP depth map")
    width, height, channels = (int(part) for part in parts[:3])
    start = sum(len(part) + 1 for part in parts[:3])
    if channels != 1 or width < 1 or height < 1:
        raise StorageError(f"{path}: a depth map has one channel, this file has {width} x {height} x {channels}")
    if length != start + 4 * width * height:
        expected = f"{width} x {height} depths take {start + 4 * width * height} bytes"
        raise StorageError(f"{path}: truncated or damaged, {expected}, the file has {length}")
    return width, height, start
