"""Summary picture of a model: points and cameras from above, and the photos, framed green if registered."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from logpolar.errors import ImageError
from logpolar.geometry.cameras import Matrix
from logpolar.images import read_gray, to_bytes
from logpolar.sfm.mapper import MODELS, SfmReport
from logpolar.sfm.workspace import read_model
from logpolar.viewing.drawing import Picture, side_by_side

_SIDE = 720
_COLUMNS, _THUMBNAIL = 8, 90
_GREEN, _RED, _INK = (80, 200, 60), (60, 60, 230), (90, 90, 90)


def draw_summary(photos: Path, output: Path, report: SfmReport) -> Picture:
    """``output`` is the folder that ``pipeline.reconstruct`` wrote."""
    model = read_model(output / MODELS / str(report.model))
    points = np.array([point.xyz for point in model.points3D.values()], np.float64).reshape(-1, 3)
    numbers = model.reg_image_ids()
    poses = np.array([model.images[number].cam_from_world().matrix() for number in numbers], np.float64)
    return side_by_side([draw_from_above(points, poses), _draw_photos(photos, output, report)])


def draw_from_above(points: Matrix, poses: Matrix) -> Picture:
    """Points (P, 3) in gray and cameras (C, 3, 4) = [rotation | translation] in red, seen from above.

    The cameras' mean y axis is taken as down, since most photos are upright; their mean viewing direction is up in the
    picture.
    """
    canvas = np.full((_SIDE, _SIDE, 3), 255, np.uint8)
    cameras = -np.einsum("nji,nj->ni", poses[:, :, :3], poses[:, :, 3])
    _, down, forward = poses[:, :, :3].mean(axis=0)
    right = np.cross(down, forward)
    right /= max(float(np.linalg.norm(right)), 1e-12)
    back = np.cross(right, down) * -1 / max(float(np.linalg.norm(down)), 1e-12)
    axes = np.stack([right, back])
    ground, stands = points @ axes.T, cameras @ axes.T
    # The nearest 90 %: a few distant points would shrink everything else to a dot.
    reach = np.linalg.norm(ground - np.median(ground, axis=0), axis=1) if len(ground) else np.zeros(0)
    near = np.concatenate([ground[reach <= np.quantile(reach, 0.9)] if len(ground) else ground, stands])
    low, high = near.min(axis=0), near.max(axis=0)
    scale = 0.92 * _SIDE / max(float((high - low).max()), 1e-9)
    for places, radius, colour in ((ground, 1, _INK), (stands, 5, _RED)):
        pixels = (places - (low + high) / 2) * scale + _SIDE / 2
        for x, y in pixels[((pixels >= 0) & (pixels < _SIDE)).all(axis=1)]:
            cv2.circle(canvas, (round(float(x)), round(float(y))), radius, colour, cv2.FILLED, cv2.LINE_AA)
    return canvas


def _draw_photos(photos: Path, output: Path, report: SfmReport) -> Picture:
    """Contact sheet of all photos with features, in rows of eight: registered ones have green frames."""
    from logpolar.features.files import FeatureFile
    from logpolar.sfm.pipeline import FEATURES

    with FeatureFile(output / FEATURES) as file:
        names = file.names()
    inside = {image.name for image in report.registered}
    shown = names[: _COLUMNS * (_SIDE // _THUMBNAIL)]
    sheet = np.full((_SIDE, _COLUMNS * _THUMBNAIL, 3), 255, np.uint8)
    for number, name in enumerate(shown):
        row, column = divmod(number, _COLUMNS)
        colour = _GREEN if name in inside else _RED
        top, left = row * _THUMBNAIL + 3, column * _THUMBNAIL + 3
        side = _THUMBNAIL - 6
        sheet[top - 2 : top + side + 2, left - 2 : left + side + 2] = colour
        sheet[top : top + side, left : left + side] = _thumbnail(photos / name, side)
    return sheet


def _thumbnail(path: Path, side: int) -> Picture:
    """The central square of a photo, in gray; plain if the photo is no longer readable."""
    try:
        gray = read_gray(path)
    except ImageError:
        return np.full((side, side, 3), 230, np.uint8)
    edge = min(gray.shape)
    top, left = (gray.shape[0] - edge) // 2, (gray.shape[1] - edge) // 2
    small = cv2.resize(to_bytes(gray)[top : top + edge, left : left + edge], (side, side), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_GRAY2BGR), np.uint8)
