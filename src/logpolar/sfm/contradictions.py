"""Verified matches that contradict the model: how look-alike places show.

Two photos of different but alike places (two facades, two sides of a tower) match and pass two-view verification; a
correct model places them apart. Of a verified pair in a model those matches are checked whose keypoints observe points:
the point that one photo observes, projected into the other one, has to fall on the match. Photos from one spot, which
have no points of their own, agree with the model by what others triangulated.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.geometry.cameras import Matrix
from logpolar.sfm.database_files import connect
from logpolar.sfm.explanation import PAIR_FACTOR, read_matches

TOLERANCE = 0.02
"""Distance that agrees, as a fraction of the photo's longer side: tracks are noisy, poses of weak photos too."""
FEWEST_CHECKED = 15
"""A pair with fewer matches on points is not judged."""


def agreement(model: Any, database: Path, pairs: Iterable[tuple[str, str]]) -> list[float]:
    """For pairs of photos the fraction of verified matches that agree with the model; NaN if there is too little."""
    images = {str(model.images[number].name): model.images[number] for number in model.reg_image_ids()}
    view = lru_cache(256)(lambda name: _View(model, images[name]))
    with connect(database) as tables:
        numbers = {name: number for number, name in tables.execute("SELECT image_id, name FROM images")}
        found = []
        for first, second in pairs:
            if numbers[first] > numbers[second]:
                first, second = second, first
            query = "SELECT data FROM two_view_geometries WHERE pair_id = ?"
            row = tables.execute(query, (PAIR_FACTOR * numbers[first] + numbers[second],)).fetchone()
            found.append(_agreement(view(first), view(second), read_matches(row[0] if row else None)))
    return found


class _View:
    """A registered photo: keypoints, the points that they observe, and the camera."""

    def __init__(self, model: Any, image: Any) -> None:
        self._pose, self._camera = np.array(image.cam_from_world().matrix()), model.cameras[image.camera_id]
        self.xy = np.array([point.xy for point in image.points2D], np.float64).reshape(-1, 2)
        self.point = np.full((len(self.xy), 3), np.nan)
        for row, point in enumerate(image.points2D):
            if point.has_point3D() and point.point3D_id in model.points3D:  # a damaged model may lack it
                self.point[row] = model.points3D[point.point3D_id].xyz
        self.tolerance = TOLERANCE * max(self._camera.width, self._camera.height)

    def project(self, points: Matrix) -> Matrix:
        """Pixels (N, 2); infinite behind the camera."""
        inside = points @ self._pose[:, :3].T + self._pose[:, 3]
        pixels = np.full((len(points), 2), np.inf)
        front = inside[:, 2] > 0
        if front.any():
            pixels[front] = self._camera.img_from_cam(inside[front])
        return np.where(np.isfinite(pixels), pixels, np.inf)


def _agreement(first: _View, second: _View, matches: NDArray[np.intp]) -> float:
    if len(matches) and (matches.max(axis=0) >= (len(first.xy), len(second.xy))).any():
        return float("nan")  # a database of other features
    judged = np.zeros(len(matches), bool)
    agree = np.ones(len(matches), bool)
    for here, there, a, b in ((first, second, *matches.T), (second, first, *matches.T[::-1])):
        known = np.isfinite(here.point[a]).all(axis=1)
        distance = np.linalg.norm(there.project(here.point[a[known]]) - there.xy[b[known]], axis=1)
        agree[known] &= distance <= there.tolerance
        judged |= known
    return float(agree[judged].mean()) if judged.sum() >= FEWEST_CHECKED else float("nan")
