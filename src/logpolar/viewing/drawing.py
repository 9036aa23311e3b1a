"""Pictures of matches, drawn with OpenCV: the base install is enough."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.errors import ImageError
from logpolar.images import resize_points, to_bytes, to_gray
from logpolar.storage.atomic_io import write_whole
from logpolar.types import Array, Image

Picture = NDArray[np.uint8]

_GREEN, _RED = (80, 200, 60), (60, 60, 230)
_MAX_SIDE = 800
_MAX_LINES = 250
_OPACITY = 0.55
_SHIFT = 4  # bits of OpenCV's fixed-point coordinates
_GAP = 8


def draw_matches(
    first: Image,
    second: Image,
    first_xy: Array,
    second_xy: Array,
    good: NDArray[np.bool_] | None = None,
    caption: str = "",
) -> Picture:
    """Two images side by side, BGR, with lines between matched points (N, 2): green where ``good``, otherwise red.

    Images are arrays as ``Extractor`` takes them, colour in BGR order. Without ``good`` all lines are green. At most
    250 lines of each colour, evenly selected, keep the images visible.
    """
    good = np.ones(len(first_xy), np.bool_) if good is None else good
    left, left_scale = _panel(first)
    right, right_scale = _panel(second)
    canvas = side_by_side([left, right])
    starts = resize_points(first_xy, left_scale)
    ends = resize_points(second_xy, right_scale) + np.array([left.shape[1] + _GAP, 0])
    groups = [(_selection(~good), _RED), (_selection(good), _GREEN)]
    below = canvas.copy()
    for rows, colour in groups:
        for index in rows:
            cv2.line(canvas, _subpixel(starts[index]), _subpixel(ends[index]), colour, 1, cv2.LINE_AA, _SHIFT)
    canvas = np.asarray(cv2.addWeighted(canvas, _OPACITY, below, 1 - _OPACITY, 0), np.uint8)
    for rows, colour in groups:
        for point in (*starts[rows], *ends[rows]):
            cv2.circle(canvas, _subpixel(point), 2 << _SHIFT, colour, -1, cv2.LINE_AA, _SHIFT)
    return with_caption(canvas, caption) if caption else canvas


def _selection(mask: NDArray[np.bool_]) -> NDArray[np.intp]:
    """At most ``_MAX_LINES`` rows, evenly spread."""
    rows = np.flatnonzero(mask)
    return rows[:: max(-(-len(rows) // _MAX_LINES), 1)]


def _subpixel(point: Array) -> tuple[int, int]:
    """A position in OpenCV's fixed-point numbers; far points are moved to where these do not overflow."""
    x, y = np.rint(np.clip(point, -1e6, 1e6) * (1 << _SHIFT)).astype(int).tolist()
    return x, y


def side_by_side(pictures: Sequence[Picture]) -> Picture:
    """Pictures in a row, padded with white."""
    height, last = max(picture.shape[0] for picture in pictures), len(pictures) - 1
    padded = [
        np.pad(picture, ((0, height - picture.shape[0]), (0, _GAP * (n < last)), (0, 0)), constant_values=255)
        for n, picture in enumerate(pictures)
    ]
    return np.concatenate(padded, axis=1)


def stack(pictures: Sequence[Picture]) -> Picture:
    """Pictures in a column, padded with white."""
    width = max(picture.shape[1] for picture in pictures)
    padded = [np.pad(p, ((0, _GAP), (0, width - p.shape[1]), (0, 0)), constant_values=255) for p in pictures]
    return np.concatenate(padded)


def with_caption(picture: Picture, caption: str) -> Picture:
    """The picture below a white strip with one line of text."""
    strip = np.full((36, picture.shape[1], 3), 255, np.uint8)
    cv2.putText(strip, caption, (6, 25), cv2.FONT_HERSHEY_SIMPLEX, 0.65, (20, 20, 20), 1, cv2.LINE_AA)
    return np.concatenate([strip, picture])


def write_picture(path: str | Path, picture: Picture) -> None:
    """Write a BGR picture; the file name suffix selects the format."""
    path = Path(path)
    try:
        _, data = cv2.imencode(path.suffix.lower(), picture)
    except cv2.error as error:
        raise ImageError(f"{path}: cannot be encoded in that format") from error
    write_whole(path, data.tobytes())


def write_figure(path: Path, figure: Any, dpi: int = 130) -> None:
    """Write a figure of matplotlib; the file name suffix selects the format."""
    content = io.BytesIO()
    figure.savefig(content, dpi=dpi, format=path.suffix[1:].lower())
    write_whole(path, content.getvalue())


def _panel(image: Image) -> tuple[Picture, float]:
    """8 bit BGR copy with at most 800 px on its longer side, and its scale."""
    if image.ndim == 3 and image.shape[2] >= 3 and image.dtype == np.uint8:
        picture = np.ascontiguousarray(image[:, :, :3])
    else:
        picture = cv2.cvtColor(to_bytes(to_gray(image)), cv2.COLOR_GRAY2BGR)
    scale = min(_MAX_SIDE / max(picture.shape[:2]), 1.0)
    if scale < 1:
        picture = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    return np.asarray(picture, np.uint8), scale
