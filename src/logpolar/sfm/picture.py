"""Summary picture of a reconstruction: figures, the model from above and from the front, the photos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import cv2
import numpy as np

from logpolar.geometry.cameras import Matrix
from logpolar.sfm.diagnosis import diagnose, weakest_photos
from logpolar.sfm.facts import Facts
from logpolar.sfm.scene_page import PageModel, Pictures, SmallPhoto, verdict
from logpolar.viewing.drawing import Colour, Picture, side_by_side

_SIDE, _GAP = 640, 8
_COLUMNS, _ROWS, _THUMBNAIL = 16, 3, 80
_GREEN, _RED, _OCHRE, _BLUE, _INK = (80, 200, 60), (60, 60, 230), (0, 140, 200), (196, 98, 11), (30, 30, 30)
_WHITE = 255, 255, 255
_WIDTH = 2 * _SIDE + _GAP

View = Literal["from above", "from the front"]


def draw_summary(facts: Facts, pictures: Pictures, title: str) -> Picture:
    """``pictures``: photos by name, as far as they are readable."""
    lines = [verdict(facts), *_weakest(facts)]
    findings = [f"{finding.level}: {finding.title}" for finding in diagnose(facts)[:4]]
    blocks = [_text([title], 0.9, 2), _text(lines, 0.55)]
    blocks += [_text(findings, 0.55, 1, _RED)] if findings else []
    if facts.models and len(facts.models[0].photos):
        shown = PageModel.of(facts, facts.models[0], pictures)
        blocks.append(side_by_side([draw_model(shown, "from above"), draw_model(shown, "from the front")]))
    blocks += [_draw_photos(facts, pictures), _legend(facts)]
    return np.concatenate([np.pad(each, ((4, 4), (0, 0), (0, 0)), constant_values=255) for each in blocks])


def _weakest(facts: Facts) -> list[str]:
    rows = weakest_photos(facts, 4)
    words = [f"{facts.photos[row].name} ({facts.photos[row].points} points)" for row in rows]
    return [f"weakest photos: {', '.join(words)}"] if words else []


def draw_model(model: PageModel, view: View) -> Picture:
    """Points in their colours, near ones over distant ones, and cameras as frusta; the viewer is below, or in front."""
    canvas = np.full((_SIDE, _SIDE, 3), 255, np.uint8)
    axes = np.array([[1, 0, 0], [0, 0, 1], [0, 1, 0]] if view == "from above" else [[1, 0, 0], [0, -1, 0], [0, 0, 1]])
    places = model.points @ axes.T
    order = np.argsort(places[:, 2], kind="stable")
    pixels = np.rint(_to_pixels(places[order, :2])).astype(np.intp)
    dot = 4 if len(pixels) < 500 else 3 if len(pixels) < 5000 else 2  # pixels
    inside = ((pixels >= 0) & (pixels <= _SIDE - dot)).all(axis=1)
    x, y = (pixels[inside][:, None] + np.argwhere(np.ones((dot, dot)))).reshape(-1, 2).T
    canvas[y, x] = np.repeat(model.colours[order][inside, ::-1], dot * dot, axis=0)  # of several the last stays
    for corners, centre in zip(model.corners(), model.centres, strict=True):
        frame = _to_pixels(np.concatenate([corners, centre[None]]) @ axes.T)[:, :2]
        _draw_lines(canvas, [frame[:4], *(frame[[n, 4]] for n in range(4))])
    cv2.putText(canvas, view, (12, 26), cv2.FONT_HERSHEY_SIMPLEX, 0.6, _INK, 1, cv2.LINE_AA)
    cv2.rectangle(canvas, (0, 0), (_SIDE - 1, _SIDE - 1), (208, 208, 208))
    return canvas


def _to_pixels(places: Matrix) -> Matrix:
    """The page's coordinates to pixels: the unit sphere nearly fills the panel."""
    return np.asarray(places * (0.43 * _SIDE) + _SIDE / 2)


def _draw_lines(canvas: Picture, shapes: Sequence[Matrix]) -> None:
    points = [np.rint(np.clip(shape, -1e5, 1e5) * 16).astype(np.int32) for shape in shapes]
    cv2.polylines(canvas, points, True, _BLUE, 1, cv2.LINE_AA, shift=4)


def _text(lines: Sequence[str], size: float, thickness: int = 1, colour: Colour = _INK) -> Picture:
    """Lines of text as wide as the picture; longer ones are cut off with dots. OpenCV's font has ASCII only."""
    height = round(44 * size)
    block = np.full((height * len(lines), _WIDTH, 3), 255, np.uint8)
    for number, line in enumerate(lines):
        plain = " ".join(line.encode("ascii", "replace").decode().split())
        while cv2.getTextSize(plain, cv2.FONT_HERSHEY_SIMPLEX, size, thickness)[0][0] > _WIDTH - 24:
            plain = plain.rstrip(".")[:-4] + "..."
        place = 12, round(height * (number + 0.7))
        cv2.putText(block, plain, place, cv2.FONT_HERSHEY_SIMPLEX, size, colour, thickness, cv2.LINE_AA)
    return block


def _draw_photos(facts: Facts, pictures: Pictures) -> Picture:
    """The first photos: green frames are in the model, ochre ones are its weakest, red ones are not in it."""
    inside = set(facts.models[0].photos.tolist()) if facts.models else set()
    weak = _weak_rows(facts)
    count = min(len(facts.photos), _COLUMNS * _ROWS)
    sheet = np.full((max(-(-count // _COLUMNS), 1) * _THUMBNAIL, _WIDTH, 3), 255, np.uint8)
    for number, photo in enumerate(facts.photos[:count]):
        row, column = divmod(number, _COLUMNS)
        colour = _OCHRE if number in weak else _GREEN if number in inside else _RED
        side, top, left = _THUMBNAIL - 8, row * _THUMBNAIL + 4, column * _THUMBNAIL + 4
        sheet[top - 3 : top + side + 3, left - 3 : left + side + 3] = colour
        sheet[top : top + side, left : left + side] = _thumbnail(pictures.get(photo.name), side)
    return sheet


def _weak_rows(facts: Facts) -> set[int]:
    """Photos with an ochre frame; of few photos none."""
    return set(weakest_photos(facts, 4)) if facts.models and len(facts.models[0].photos) > 8 else set()


def _legend(facts: Facts) -> Picture:
    """What the frames of the photos mean, and how many photos are not shown."""
    block = np.full((28, _WIDTH, 3), 255, np.uint8)
    words = [("in the model", _GREEN), *([("those with fewest points", _OCHRE)] if _weak_rows(facts) else [])]
    words.append(("not in the model", _RED))
    x, more = 12, len(facts.photos) - _COLUMNS * _ROWS
    for text, colour in [*words, *([(f"{more} more photos are not shown", _WHITE)] if more > 0 else [])]:
        cv2.rectangle(block, (x, 8), (x + 12, 20), colour, -1)
        cv2.putText(block, text, (x + 20, 19), cv2.FONT_HERSHEY_SIMPLEX, 0.5, _INK, 1, cv2.LINE_AA)
        x += 44 + cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 0.5, 1)[0][0]
    return block


def _thumbnail(small: SmallPhoto | None, side: int) -> Picture:
    """The central square of a photo; plain if there is none."""
    if small is None:
        return np.full((side, side, 3), 230, np.uint8)
    photo = np.asarray(cv2.imdecode(np.frombuffer(small.jpeg, np.uint8), cv2.IMREAD_COLOR), np.uint8)
    edge = min(photo.shape[:2])
    top, left = (photo.shape[0] - edge) // 2, (photo.shape[1] - edge) // 2
    square = photo[top : top + edge, left : left + edge]
    return np.asarray(cv2.resize(square, (side, side), interpolation=cv2.INTER_AREA), np.uint8)
