"""How much of the verified matches a model explains: the sign that tells a wrong model from a right one.

Flat scenes seen by cameras of unknown focal length have wrong reconstructions beside the right one, and which of them
COLMAP finds depends on the pair it starts from. A wrong one splits tracks: its photos match, but do not share points.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.sfm.database_files import connect

PAIR_FACTOR = 2147483647
"""COLMAP's number of a pair is this times the number of its first image, plus that of its second."""


def read_matches(data: bytes | None) -> NDArray[np.intp]:
    """Matches (K, 2) as COLMAP stores them."""
    return np.frombuffer(data or b"", "<u4").reshape(-1, 2).astype(np.intp)


def explained_matches(models: Iterable[Any], database: Path, astray: Iterable[Collection[int]] = ()) -> tuple[int, int]:
    """Verified matches whose keypoints observe the same point of a model, and all those of pairs in a model.

    ``astray``: of each model, cameras that explain nothing, though they stand in it.
    """
    points = [_observed(model, cameras) for model, cameras in zip_longest(models, astray, fillvalue=())]
    explained = total = 0
    with connect(database) as tables:
        names = dict(tables.execute("SELECT image_id, name FROM images"))
        for pair, data in tables.execute("SELECT pair_id, data FROM two_view_geometries WHERE rows > 0"):
            first, second = (names.get(number, "") for number in divmod(pair, PAIR_FACTOR))
            both = [each for each in points if first in each and second in each]
            if both:
                a, b = read_matches(data).T
                found = [(each[first][a] == each[second][b]) & (each[first][a] >= 0) for each in both]
                explained, total = explained + int(np.any(found, axis=0).sum()), total + len(a)
    return explained, total


def linked_photos(database: Path) -> int:
    """Number of photos that a verified pair has."""
    with connect(database) as tables:
        pairs = tables.execute("SELECT pair_id FROM two_view_geometries WHERE rows > 0")
        return len({number for (pair,) in pairs for number in divmod(pair, PAIR_FACTOR)})


def _observed(model: Any, astray: Collection[int]) -> dict[str, NDArray[np.int64]]:
    """Numbers of the points that the keypoints of registered photos observe, -1 for none, by name."""
    return {
        str(image.name): np.array(
            [
                point.point3D_id if point.has_point3D() and image.camera_id not in astray else -1
                for point in image.points2D
            ],
            np.int64,
        )
        for image in (model.images[number] for number in model.reg_image_ids())
    }
