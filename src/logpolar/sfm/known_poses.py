"""Known poses of cameras: read them, and triangulate points with them instead of mapping.

They come from a COLMAP model (text or binary), with its calibrations, or from a text file with lines
``NAME QW QX QY QZ TX TY TZ`` as in COLMAP's images.txt: X_camera = R(q) X_world + t. ``#`` starts a comment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from logpolar.errors import LogpolarError, StorageError
from logpolar.sfm.pycolmap_compat import import_pycolmap, open_database
from logpolar.sfm.workspace import find_model, read_model
from logpolar.storage.inputs import read_text


@dataclass(frozen=True, eq=False)
class KnownPoses:
    """``poses``: quaternion (w, x, y, z) and translation by name of the image; ``cameras``: pycolmap's, if known."""

    source: Path
    poses: dict[str, tuple[float, ...]]
    cameras: dict[str, Any] = field(default_factory=dict)


def read_known_poses(path: str | Path) -> KnownPoses:
    path = Path(path)
    return _from_model(path) if path.is_dir() else _from_text(path)


def _from_model(folder: Path) -> KnownPoses:
    model = read_model(find_model(folder))
    images = [model.images[number] for number in model.reg_image_ids()]
    if not images:
        raise StorageError(f"{folder}: the model has no images with poses")
    poses = {}
    for image in images:
        pose = image.cam_from_world()
        x, y, z, w = (float(value) for value in pose.rotation.quat)
        poses[str(image.name)] = (w, x, y, z, *(float(value) for value in pose.translation))
    return KnownPoses(folder, poses, {str(image.name): model.cameras[image.camera_id] for image in images})


def _from_text(path: Path) -> KnownPoses:
    poses: dict[str, tuple[float, ...]] = {}
    for number, line in enumerate(read_text(path, LogpolarError, "text file of poses").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            values = tuple(float(word) for word in words[-7:])
        except ValueError:
            values = ()
        name = " ".join(words[:-7])
        if not name or len(values) != 7 or not np.isfinite(values).all():
            raise LogpolarError(f"{path}: line {number} is not 'NAME QW QX QY QZ TX TY TZ'")
        length = float(np.linalg.norm(values[:4]))
        if not 0.99 < length < 1.01:
            raise LogpolarError(f"{path}: line {number}: the quaternion has length {length:.3g}, not 1")
        if name in poses:
            raise LogpolarError(f"{path}: line {number}: a second pose of '{name}'")
        poses[name] = (*(value / length for value in values[:4]), *values[4:])
    if not poses:
        raise LogpolarError(f"{path}: no poses in this file")
    return KnownPoses(path, poses)


def triangulate(database: Path, photos: Path, output: Path, known: KnownPoses, settings: Any) -> dict[int, Any]:
    """A model with the known poses, unchanged, and points of the database's verified matches, in ``output/0``."""
    pycolmap = import_pycolmap("triangulation")
    start, place = output / "known", output / "0"
    for folder in (start, place):
        folder.mkdir()
    file = open_database(database)
    try:
        cameras = {camera.camera_id: camera for camera in file.read_all_cameras()}
        images = [image for image in file.read_all_images() if image.name in known.poses]
    finally:
        file.close()
    if len(images) < 2:
        raise LogpolarError(f"{known.source}: has poses of {len(images)} of the photos; triangulation needs two")
    used = {image.camera_id: known.cameras.get(image.name, cameras[image.camera_id]) for image in reversed(images)}
    (start / "cameras.txt").write_text("".join(_camera_line(number, used[number]) for number in sorted(used)))
    poses = (
        f"{image.image_id} {_words(known.poses[image.name])} {image.camera_id} {image.name}\n\n" for image in images
    )
    (start / "images.txt").write_text("".join(poses))
    (start / "points3D.txt").write_text("")
    model = pycolmap.Reconstruction(str(start))
    done = pycolmap.triangulate_points(model, str(database), str(photos), str(place), True, settings)
    for path in start.iterdir():
        path.unlink()
    start.rmdir()
    return {0: done}


def _camera_line(number: int, camera: Any) -> str:
    return f"{number} {camera.model.name} {camera.width} {camera.height} {_words(tuple(camera.params))}\n"


def _words(values: tuple[float, ...]) -> str:
    return " ".join(repr(float(value)) for value in values)
