"""Cameras of known intrinsics from matched keypoints, by COLMAP's incremental mapping."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.errors import LogpolarError
from logpolar.geometry.cameras import Camera, Matrix
from logpolar.sfm.pycolmap_compat import (
    first_line,
    import_pycolmap,
    open_database,
    quiet,
    set_known,
    verification_options,
)

Pose = tuple[Matrix, Matrix]
"""Rotation (3, 3) and translation (3,), X_camera = rotation @ X_world + translation; world and its unit are free."""

_MIN_MODEL = 3
"""Images of the smallest model: COLMAP's own limit of ten would leave nothing of a small set."""


def map_images(
    cameras: Sequence[Camera],
    keypoints: Sequence[NDArray[np.floating]],
    matches: Mapping[tuple[int, int], NDArray[np.integer]],
    seed: int = 0,
) -> dict[int, Pose]:
    """Poses, by row of ``cameras``, of the images in the largest model; nothing if there is none.

    Of the cameras only sizes and intrinsics are used, which stay as they are. ``keypoints`` (N, 2) of each image,
    ``matches`` (K, 2) of pairs of images, by row; COLMAP verifies them first. One thread, so that the same input gives
    the same poses.
    """
    pycolmap = import_pycolmap("multi-view reconstruction")
    with tempfile.TemporaryDirectory(prefix="logpolar-mapping-") as folder, quiet(pycolmap):
        database = Path(folder) / "database.db"
        try:
            _fill(pycolmap, database, cameras, keypoints, matches, seed)
            models = pycolmap.incremental_mapping(str(database), folder, folder, _options(pycolmap, seed))
        except (RuntimeError, ValueError, IndexError) as error:
            raise LogpolarError(f"COLMAP could not map {len(cameras)} images: {first_line(error)}") from error
        return _largest(models.values())


def _fill(
    pycolmap: Any,
    database: Path,
    cameras: Sequence[Camera],
    keypoints: Sequence[NDArray[np.floating]],
    matches: Mapping[tuple[int, int], NDArray[np.integer]],
    seed: int,
) -> None:
    """Numbers of cameras and images are their rows plus 1: COLMAP's start there."""
    own = [_camera(pycolmap, number, camera) for number, camera in enumerate(cameras, 1)]
    points = [np.asarray(xy, np.float64).reshape(-1, 2) + 0.5 for xy in keypoints]
    options = verification_options(pycolmap, seed)
    with contextlib.closing(open_database(pycolmap, database)) as file:
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


def _options(pycolmap: Any, seed: int) -> Any:
    options = pycolmap.IncrementalPipelineOptions()
    options.num_threads = 1
    options.min_model_size, options.extract_colors = _MIN_MODEL, False
    options.ba_refine_focal_length = options.ba_refine_principal_point = options.ba_refine_extra_params = False
    # The fallback is new in COLMAP 4, so not in the challenge's; on a set of 10 images it took 80 s more and registered
    # none more. The seed came with 3.13.
    set_known(options, structure_less_registration_fallback=False, random_seed=seed)
    options.mapper.abs_pose_refine_focal_length = options.mapper.abs_pose_refine_extra_params = False
    return options


def _largest(models: Any) -> dict[int, Pose]:
    best = max(models, key=lambda model: (model.num_reg_images(), model.num_points3D()), default=None)
    if best is None:
        return {}
    poses = {}
    for number in sorted(best.reg_image_ids()):
        matrix = np.array(best.images[number].cam_from_world().matrix(), np.float64)
        poses[number - 1] = matrix[:, :3], matrix[:, 3]
    return poses
