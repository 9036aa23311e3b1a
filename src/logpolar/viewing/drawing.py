"""Pictures of matches, drawn with OpenCV: they work with the base install."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.errors import ImageError
from logpolar.images import resize_points, to_bytes, to_gray
from logpolar.types import Image

Picture = NDArray[np.uint8]

_GREEN, _RED = (80, 200, 60), (60, 60, 230)
_MAX_SIDE = 800
_MAX_LINES = 250
_GAP = 8


def draw_matches(
    first: Image,
    second: Image,
    first_xy: NDArray[np.floating],
    second_xy: NDArray[np.floating],
    good: NDArray[np.bool_],
    caption: str = "",
) -> Picture:
    """Two images side by side with lines between matched points: green where ``good``, red where not.

    No more than 250 lines of each colour are drawn, an even selection, so that one can still see the images.
    """
    left, left_scale = _panel(first)
    right, right_scale = _panel(second)
    canvas = side_by_side([left, right])
    starts = resize_points(first_xy, left_scale)
    ends = resize_points(second_xy, right_scale) + np.array([left.shape[1] + _GAP, 0])
    for mask, colour in ((~good, _RED), (good, _GREEN)):
        chosen = np.flatnonzero(mask)
        for index in chosen[:: max(-(-len(chosen) // _MAX_LINES), 1)]:
            _line(canvas, starts[index], ends[index], colour)
    return with_caption(canvas, caption) if caption else canvas


def side_by_side(pictures: Sequence[Picture]) -> Picture:
    """Pictures beside each other, with white below the lower ones and between them."""
    height, last = max(picture.shape[0] for picture in pictures), len(pictures) - 1
    padded = [
        np.pad(picture, ((0, height - picture.shape[0]), (0, _GAP * (n < last)), (0, 0)), constant_values=255)
        for n, picture in enumerate(pictures)
    ]
    return np.concatenate(padded, axis=1)


def stack(pictures: Sequence[Picture]) -> Picture:
    """Pictures above each other, with white beside the narrower ones."""
    width = max(picture.shape[1] for picture in pictures)
    padded = [np.pad(p, ((0, _GAP), (0, width - p.shape[1]), (0, 0)), constant_values=255) for p in pictures]
    return np.concatenate(padded)


def with_caption(picture: Picture, caption: str) -> Picture:
    """The picture below a white strip with one line of text."""
    strip = np.full((36, picture.shape[1], 3), 255, np.uint8)
    cv2.putText(strip, caption, (6, 25), cv2.FONT_HERSHEY_SIMPLEX, 0.65, (20, 20, 20), 1, cv2.LINE_AA)
    return np.concatenate([strip, picture])


def write_picture(path: str | Path, picture: Picture) -> None:
    """Write a BGR picture; the ending of the name decides the format."""
    path = Path(path)
    try:
        _, data = cv2.imencode(path.suffix.lower(), picture)
    except cv2.error as error:
        raise ImageError(f"{path}: cannot be encoded in that format") from error
    path.write_bytes(data.tobytes())


def _panel(image: Image) -> tuple[Picture, float]:
    """8 bit BGR copy, its longer side at most 800 px, and the scale it was reduced by."""
    gray = to_bytes(to_gray(image))
    colour = image[:, :, :3] if image.ndim == 3 and image.shape[2] >= 3 and image.dtype == np.uint8 else None
    picture = cv2.cvtColor(gray, cv2.COLOR_GRAY2BGR) if colour is None else np.ascontiguousarray(colour)
    scale = min(_MAX_SIDE / max(picture.shape[:2]), 1.0)
    if scale < 1:
        picture = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    return np.asarray(picture, np.uint8), scale


def _line(
    canvas: Picture,
    start: NDArray[np.floating],
    end: NDArray[np.floating],
    colour: tuple[int, int, int],
) -> None:
    a, b = ((round(float(x)), round(float(y))) for x, y in (start, end))
    cv2.line(canvas, a, b, colour, 1, cv2.LINE_AA)
    for point in (a, b):
        cv2.circle(canvas, point, 2, colour, -1, cv2.LINE_AA)
