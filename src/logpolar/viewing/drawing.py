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
from logpolar.viewing.options import DrawingOptions

Picture = NDArray[np.uint8]
Colour = tuple[int, int, int]

_GREEN, _RED = (80, 200, 60), (60, 60, 230)
_MAX_SIDE = 800
_OPACITY = 0.25, 0.55
"""Of many lines, and of few."""
_SHIFT = 4  # bits of OpenCV's fixed-point coordinates
_GAP = 8
_SHADES = 16


def draw_matches(
    first: Image,
    second: Image,
    first_xy: Array,
    second_xy: Array,
    good: NDArray[np.bool_] | None = None,
    caption: str = "",
    *,
    quality: Array | None = None,
    options: DrawingOptions | None = None,
    orientations: tuple[int, int] = (1, 1),
) -> Picture:
    """Two images side by side, BGR, with lines between matched points (N, 2): green where ``good``, otherwise red.

    Images are arrays as ``Extractor`` takes them, colour in BGR order. Without ``good`` all matches are. ``quality``
    (N,), larger is better, is needed to colour by it. ``orientations``: EXIF's of the two images, which are drawn
    upright; points are those of the images as they are stored.
    """
    options = options or DrawingOptions()
    good = np.ones(len(first_xy), np.bool_) if good is None else good
    left, starts = _panel(first, first_xy, orientations[0])
    right, ends = _panel(second, second_xy, orientations[1])
    canvas = side_by_side([left, right])
    ends = ends + np.array([left.shape[1] + _GAP, 0])
    groups = _groups(good, quality, options)
    below, lines = canvas.copy(), sum(len(rows) for rows, _ in groups)
    for rows, colour in groups:
        for index in rows:
            cv2.line(canvas, _subpixel(starts[index]), _subpixel(ends[index]), colour, 1, cv2.LINE_AA, _SHIFT)
    opacity = float(np.clip(80 / max(lines, 1), *_OPACITY))
    canvas = np.asarray(cv2.addWeighted(canvas, opacity, below, 1 - opacity, 0), np.uint8)
    for rows, colour in groups:
        for point in (*starts[rows], *ends[rows]):
            cv2.circle(canvas, _subpixel(point), 2 << _SHIFT, colour, -1, cv2.LINE_AA, _SHIFT)
    return with_caption(canvas, caption) if caption else canvas


def _groups(
    good: NDArray[np.bool_], quality: Array | None, options: DrawingOptions
) -> list[tuple[NDArray[np.intp], Colour]]:
    """Rows of matches to draw, and their colour; the last are drawn on top."""
    shown = good if options.inliers_only else np.ones_like(good)
    if options.colour_by == "correctness":
        kinds = (shown & ~good, _RED), (shown & good, _GREEN)
        return [(_selection(np.flatnonzero(mask), options.max_lines), colour) for mask, colour in kinds]
    if quality is None:
        raise ValueError("to colour by quality, give the quality of each match")
    rows = _selection(np.flatnonzero(shown), options.max_lines)
    value = quality[rows] - quality[rows].min(initial=np.inf)
    shade = np.floor(value / max(value.max(initial=0), 1e-12) * (_SHADES - 1e-6)).astype(int)
    levels = np.linspace(0, 255, _SHADES).astype(np.uint8)
    table = cv2.applyColorMap(levels[:, None], cv2.COLORMAP_VIRIDIS)[:, 0].tolist()
    return [(rows[shade == each], (b, g, r)) for each, (b, g, r) in enumerate(table)]


def _selection(rows: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """At most ``most`` rows, evenly spread; 0 for all."""
    return rows[:: max(-(-len(rows) // most), 1)] if most else rows


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


def _panel(image: Image, xy: Array, orientation: int) -> tuple[Picture, Array]:
    """Upright 8 bit BGR copy with at most 800 px on its longer side, and where points of the image are in it."""
    if image.ndim == 3 and image.shape[2] >= 3 and image.dtype == np.uint8:
        picture = np.asarray(image[:, :, :3], np.uint8)
    else:
        picture = np.asarray(cv2.cvtColor(to_bytes(to_gray(image)), cv2.COLOR_GRAY2BGR), np.uint8)
    shown, xy = upright(picture, np.asarray(xy), orientation)
    picture = np.asarray(shown, np.uint8)
    scale = min(_MAX_SIDE / max(picture.shape[:2]), 1.0)
    if scale < 1:
        picture = np.asarray(cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8)
    return picture, resize_points(xy, scale)


def upright(picture: Image, xy: Array, orientation: int) -> tuple[Image, Array]:
    """A picture and positions in it as EXIF's orientation, 1 to 8, says to show them; other values change nothing."""
    if 5 <= orientation <= 8:  # rows are columns
        picture, xy = picture.swapaxes(0, 1), xy[:, ::-1]
    if orientation in (2, 3, 6, 7):
        picture, xy = picture[:, ::-1], np.stack([picture.shape[1] - 1 - xy[:, 0], xy[:, 1]], axis=1)
    if orientation in (3, 4, 7, 8):
        picture, xy = picture[::-1], np.stack([xy[:, 0], picture.shape[0] - 1 - xy[:, 1]], axis=1)
    return np.ascontiguousarray(picture), xy
