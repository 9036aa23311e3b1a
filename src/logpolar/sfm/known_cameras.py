"""Poses of cameras with known intrinsics from matched keypoints, by COLMAP's incremental mapper."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.geometry.cameras import Camera, Matrix
from logpolar.sfm.mapper import MapperOptions, NoModelError, largest_model, run_mapper
from logpolar.sfm.pycolmap_compat import colmap_errors, import_pycolmap, open_database, quiet, verification_options

Pose = tuple[Matrix, Matrix]
"""Rotation (3, 3) and translation (3,), X_camera = rotation @ X_world + translation; world and unit are arbitrary."""

_MAPPING = MapperOptions(min_model_size=3, threads=1, fixed_intrinsics=True, bare=True)
"""COLMAP's own limit of ten images would leave nothing of a small set; one thread makes the result reproducible."""


def map_images(
    cameras: Sequence[Camera],
    keypoints: Sequence[NDArray[np.floating]],
    matches: Mapping[tuple[int, int], NDArray[np.integer]],
    seed: int = 0,
) -> dict[int, Pose]:
    """Poses, by row of ``cameras``, of the images in the largest model; empty if there is none.

    Only sizes and intrinsics of the cameras are used; they are not refined. ``keypoints`` (N, 2) of each image,
    ``matches`` (K, 2) of pairs of images, by row; COLMAP verifies them first. The same input gives the same poses.
    """
    pycolmap = import_pycolmap("multi-view reconstruction")
    with tempfile.TemporaryDirectory(prefix="logpolar-mapping-") as folder, quiet():
        database = Path(folder) / "database.db"
        try:
            with colmap_errors(f"COLMAP could not map {len(cameras)} images"):
                _fill(pycolmap, database, cameras, keypoints, matches, seed)
                models = run_mapper(database, folder, folder, replace(_MAPPING, seed=seed))
        except NoModelError:
            return {}
        _, model = largest_model(models)
        poses = {}
        for number in sorted(model.reg_image_ids()):
            matrix = np.array(model.images[number].cam_from_world().matrix(), np.float64)
            poses[number - 1] = matrix[:, :3], matrix[:, 3]
        return poses


def _fill(
    pycolmap: Any,
    database: Path,
    cameras: Sequence[Camera],
    keypoints: Sequence[NDArray[np.floating]],
    matches: Mapping[tuple[int, int], NDArray[np.integer]],
    seed: int,
) -> None:
    """Ids of cameras and images are their rows plus 1: COLMAP's start there."""
    own = [_camera(pycolmap, number, camera) for number, camera in enumerate(cameras, 1)]
    points = [np.asarray(xy, np.float64).reshape(-1, 2) + 0.5 for xy in keypoints]
    options = verification_options(seed)
    with contextlib.closing(open_database(database)) as file:
        for number, (camera, xy) in enumerate(zip(own, points, strict=True), 1):
            file.write_camera(camera, use_camera_id=True)
            image = pycolmap.Image(name=f"{number:06}", camera_id=number, image_id=number)
            file.write_image(image, use_image_id=True)
            file.write_keypoints(number, xy.astype(np.float32))
        for (i, j), pair in sorted(matches.items()):
            if len(pair):
                rows = np.asarray(pair, np.uint32)
                geometry = pycolmap.estimate_two_view_geometry(own[i], points[i], own[j], points[j], rows, options)
                file.write_matches(i + 1, j + 1, rows)
                file.write_two_view_geometry(i + 1, j + 1, geometry)


def _camera(pycolmap: Any, number: int, camera: Camera) -> Any:
    (fx, _, cx), (_, fy, cy) = camera.matrix[:2]
    return pycolmap.Camera(
        model="PINHOLE",
        width=camera.width,
        height=camera.height,
        params=[fx, fy, cx + 0.5, cy + 0.5],
        camera_id=number,
        has_prior_focal_length=True,
    )
