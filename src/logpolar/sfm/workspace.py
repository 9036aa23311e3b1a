"""COLMAP's dense workspace: undistorted images, the sparse model, depth maps."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.errors import LogpolarError, StorageError
from logpolar.geometry.cameras import Camera, Matrix
from logpolar.sfm.binary_models import check_complete
from logpolar.sfm.depth_maps import depth_size
from logpolar.sfm.pycolmap_compat import colmap_errors, import_pycolmap, quiet
from logpolar.storage.atomic_io import within

_MODEL_FILES = (("cameras.bin", "images.bin", "points3D.bin"), ("cameras.txt", "images.txt", "points3D.txt"))
_DEPTH_KINDS = ("geometric", "photometric")  # in order of preference
_PINHOLES = ("PINHOLE", "SIMPLE_PINHOLE")


@dataclass(frozen=True, eq=False)
class View:
    """An image with known camera and depth, and the points of the sparse model that it observes."""

    name: str
    image: Path
    depth: Path
    camera: Camera
    points: NDArray[np.intp]  # (n,) rows of the scene's points, sorted, each once
    xy: Matrix  # (n, 2) where they are observed


@dataclass(frozen=True, eq=False)
class Scene:
    """Content of a workspace; ``left_out`` has the reason for each image that cannot be used."""

    folder: Path
    views: list[View]
    points: Matrix  # (P, 3)
    left_out: dict[str, str] = field(default_factory=dict)


def read_workspace(folder: str | Path, need_depth: bool = True) -> Scene:
    """Read the sparse model (text or binary, ``sparse/`` or ``sparse/0/``) and find images and depth maps.

    Geometric depth maps are preferred to photometric ones. Without ``need_depth`` the ``depth`` of a view need
    not exist. Raises unless two or more images can be used.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise StorageError(f"{folder}: no such folder")
    model = read_model(find_model(folder))
    places = {number: point.xyz for number, point in sorted(model.points3D.items())}
    points = np.array(list(places.values()), np.float64).reshape(-1, 3)
    finite = np.asarray(np.isfinite(points).all(axis=1))
    rows = {number: row for row, number in enumerate(itertools.compress(places, finite))}
    if not model.images:
        raise StorageError(f"{find_model(folder)}: the sparse model has no images")
    try:
        images = sorted(model.images.values(), key=lambda image: str(image.name))
    except UnicodeDecodeError as error:
        raise StorageError(f"{find_model(folder)}: the name of an image is not UTF-8") from error
    views, left_out = [], {}
    for image in images:
        try:
            views.append(_read_view(folder, model, image, rows, need_depth))
        except LogpolarError as error:
            left_out[image.name] = str(error)
    if len(views) < 2:
        usable = f"only {len(views)} of the {len(model.images)} images of this workspace can be used"
        raise StorageError(f"{folder}: {usable}" + "".join(f"; {reason}" for reason in list(left_out.values())[:1]))
    return Scene(folder, views, points[finite], left_out)


def find_model(folder: Path) -> Path:
    """Where the sparse model is: in ``sparse``, ``sparse/0`` or the folder itself."""
    places = (folder / "sparse", folder / "sparse" / "0", folder)
    for place in places:
        if has_model(place):
            return place
    raise StorageError(f"{folder}: no sparse model (cameras, images and points3D as .bin or .txt) in {places[0]}")


def has_model(place: Path) -> bool:
    """Whether the folder has the files of a sparse model, binary or text."""
    return any(all((place / name).is_file() for name in names) for names in _MODEL_FILES)


def read_model(place: Path) -> Any:
    """A sparse model of pycolmap from the folder with its files; raises ``StorageError`` for a damaged one."""
    pycolmap = import_pycolmap("reading COLMAP models")
    check_complete(place)
    try:
        with quiet(), colmap_errors(f"{place}: cannot be read as a COLMAP model"):
            return pycolmap.Reconstruction(str(place))
    except StorageError as error:
        raise StorageError(_explain(place) or str(error)) from error


def _explain(place: Path) -> str:
    """The image of a text model whose pose is not finite, which pycolmap does not name."""
    path = place / "images.txt"
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    for line in lines:
        words = line.split()
        if len(words) == 10 and {word.lower().lstrip("+-") for word in words[1:8]} & {"nan", "inf"}:
            return f"{path}: the pose of {words[9]} is not finite"
    return ""


def _read_view(folder: Path, model: Any, image: Any, rows: dict[int, int], need_depth: bool) -> View:
    path = within(folder / "images", image.name)
    if not path.is_file():
        raise StorageError(f"{path}: the model's image is missing")
    camera = _read_camera(model.cameras[image.camera_id], image)
    depth = _find_depth(folder, image.name, camera) if need_depth else _depth_paths(folder, image.name)[0]
    # Unmatched features have the number of no point.
    seen = [(row, *p.xy) for p in image.points2D if (row := rows.get(p.point3D_id)) is not None]
    table = np.array(seen, np.float64).reshape(-1, 3)
    points, first = np.unique(table[:, 0].astype(np.intp), return_index=True)
    return View(image.name, path, depth, camera, points, table[first, 1:] - 0.5)


def _read_camera(camera: Any, image: Any) -> Camera:
    if camera.model.name not in _PINHOLES:
        hint = "a dense workspace has undistorted pinhole cameras, see COLMAP's image_undistorter"
        raise StorageError(f"{image.name}: its camera is a {camera.model.name}; {hint}")
    if not image.has_pose:
        raise StorageError(f"{image.name}: the model has no pose of this image")
    matrix = np.array(camera.calibration_matrix(), np.float64)
    matrix[:2, 2] -= 0.5  # COLMAP's origin is the corner of the first pixel, ours is its centre
    pose = np.array(image.cam_from_world().matrix(), np.float64)
    positive = min(camera.width, camera.height, matrix[0, 0], matrix[1, 1]) > 0
    if not (np.isfinite(matrix).all() and np.isfinite(pose).all() and positive):
        raise StorageError(f"{image.name}: its pose or camera in the sparse model is not finite, or empty")
    if not np.allclose(pose[:, :3] @ pose[:, :3].T, np.eye(3), atol=1e-6):
        raise StorageError(f"{image.name}: its pose in the sparse model is not a rotation")
    return Camera(camera.width, camera.height, matrix, pose[:, :3], pose[:, 3])


def _depth_paths(folder: Path, name: str) -> list[Path]:
    return [folder / "stereo" / "depth_maps" / f"{name}.{kind}.bin" for kind in _DEPTH_KINDS]


def _find_depth(folder: Path, name: str, camera: Camera) -> Path:
    paths = _depth_paths(folder, name)
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise StorageError(f"{paths[0]}: no depth map (nor a photometric one); run COLMAP's patch_match_stereo")
    width, height = depth_size(path)
    # Any resolution is fine, but the aspect ratio must be the image's, to within a pixel of rounding.
    if abs(width * camera.height - height * camera.width) > max(camera.width, camera.height, width, height):
        raise StorageError(f"{path}: {width} x {height} is not the shape of a {camera.width} x {camera.height} image")
    return path
