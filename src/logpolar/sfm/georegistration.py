"""Models in coordinates of the Earth: alignment to GPS positions of photos, and how accurate it is.

Coordinates: ``enu``, metres east, north and up of the middle of the photos, or a projected reference system by its EPSG
code (pyproj), less an offset of whole metres that keeps numbers small; both are written beside the model.

Ground control points come in a text file as OpenDroneMap has it: a first line with the reference system
(``EPSG:32632``, ``WGS84`` for longitude and latitude, or ``ENU``), then lines ``X Y Z PIXEL_X PIXEL_Y IMAGE NAME``;
pixels are counted from the top-left corner of the photo, as in COLMAP. They do not take part in the alignment: they
check it.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.errors import LogpolarError, MissingExtraError
from logpolar.geometry.cameras import Matrix
from logpolar.images import find_images
from logpolar.images.exif import read_gps
from logpolar.sfm.binary_models import check_complete
from logpolar.sfm.pycolmap_compat import import_pycolmap, quiet
from logpolar.sfm.workspace import read_model
from logpolar.storage.documents import write_json
from logpolar.storage.inputs import read_text

GEOREGISTERED, RECORD = "georegistered", "georegistration.json"
Position = tuple[float, float, float]
"""Latitude, longitude, altitude; altitude 0 where it is unknown."""

_FEWEST = 3
_WORST_CONDITION = 1e9
"""Of rays that meet in a point: the square of the inverse of their angle, here 0.002 degrees."""
_AXIS, _FLATTENING = 6378137.0, 1 / 298.257223563
"""WGS 84."""


@dataclass(frozen=True)
class Accuracy:
    """Differences between a model and known positions, in metres: root mean squares by axis, and the median."""

    count: int
    east: float
    north: float
    up: float
    median: float
    worst: str  # name of the largest
    largest: float


@dataclass(frozen=True)
class Georegistration:
    """``system``: ENU or EPSG code; add ``offset`` to the model's coordinates to get those of the system."""

    system: str
    origin: Position  # latitude, longitude and altitude of ENU's origin
    offset: tuple[float, float, float]
    scale: float
    gps: Accuracy
    control: Accuracy | None


def read_positions(
    photos: Path, names: list[str], warn: Callable[[str], None] = lambda line: None
) -> dict[str, Position]:
    """GPS positions of photos that have one; nonsense is said by ``warn``."""
    found = {}
    for name in names:
        try:
            place = read_gps(photos / name)
        except LogpolarError as error:
            warn(str(error))
            continue
        if place is not None:
            found[name] = place[0], place[1], place[2] or 0.0
    return found


def check_positions(photos: Path) -> None:
    """Raise unless enough photos of a folder have GPS positions, before any work is done."""
    names = list(find_images([photos])) if photos.is_dir() else []
    found = len(read_positions(photos, names))
    if names and found < _FEWEST:
        raise LogpolarError(f"{photos}: georegistration needs {_FEWEST} photos with GPS positions, not {found}")


def to_enu(positions: NDArray[np.float64], origin: Position) -> Matrix:
    """Latitude, longitude, altitude (N, 3) to metres east, north and up of the origin."""
    latitude, longitude = np.radians(origin[:2])
    sines, cosines = (math.sin(latitude), math.sin(longitude)), (math.cos(latitude), math.cos(longitude))
    axes = np.array(
        [
            [-sines[1], cosines[1], 0],
            [-sines[0] * cosines[1], -sines[0] * sines[1], cosines[0]],
            [cosines[0] * cosines[1], cosines[0] * sines[1], sines[0]],
        ]
    )
    return np.asarray((_to_ecef(positions) - _to_ecef(np.array([origin]))) @ axes.T, np.float64)


def _to_ecef(positions: NDArray[np.float64]) -> Matrix:
    latitude, longitude = np.radians(positions[:, 0]), np.radians(positions[:, 1])
    squared = _FLATTENING * (2 - _FLATTENING)
    radius = _AXIS / np.sqrt(1 - squared * np.sin(latitude) ** 2)
    flat = (radius + positions[:, 2]) * np.cos(latitude)
    height = (radius * (1 - squared) + positions[:, 2]) * np.sin(latitude)
    return np.stack([flat * np.cos(longitude), flat * np.sin(longitude), height], axis=1)


class _System:
    """A reference system: from latitude, longitude, altitude, or from coordinates of another one."""

    def __init__(self, name: str, origin: Position) -> None:
        self.name, self._origin = name.upper(), origin
        self._project = None if self.name == "ENU" else _transformer("EPSG:4326", self.name)

    def of(self, positions: NDArray[np.float64]) -> Matrix:
        if self._project is None:
            return to_enu(positions, self._origin)
        east, north = self._project(positions[:, 1], positions[:, 0])
        found = np.stack([east, north, positions[:, 2]], axis=1)
        if not np.isfinite(found).all():
            raise LogpolarError(f"{self.name}: the photos' positions lie outside of this reference system")
        return found

    def convert(self, points: Matrix, system: str) -> Matrix:
        """Points (N, 3) of another system."""
        if system.upper() == self.name:
            return points
        if system.upper() == "ENU":
            raise LogpolarError("control points in ENU need --georegister enu")
        known = "EPSG:4326" if system.upper() in ("WGS84", "EPSG:4326") else system
        longitude, latitude = _transformer(known, "EPSG:4326")(points[:, 0], points[:, 1])
        return self.of(np.stack([latitude, longitude, points[:, 2]], axis=1))


def _transformer(source: str, target: str) -> Callable[[Any, Any], tuple[Any, Any]]:
    try:
        import pyproj
    except ImportError as error:
        raise MissingExtraError("coordinates by EPSG code", "geo") from error
    try:
        made = pyproj.Transformer.from_crs(source, target, always_xy=True)
    except pyproj.exceptions.CRSError as error:
        wrong = target if source == "EPSG:4326" else source
        raise LogpolarError(f"{wrong}: no such reference system; give an EPSG code like EPSG:32632") from error
    return lambda x, y: made.transform(x, y)


def check_systems(name: str, control: Path | None = None) -> None:
    """Raise for a reference system that does not exist or control points that cannot be read, before any work."""
    _check_system(name)
    target = _System(name, (0.0, 0.0, 0.0))
    if control:
        system, points, _ = read_control(control)
        if system.upper() == "ENU" or target.name != "ENU":
            target.convert(np.array(list(points.values()))[:1], system)


def _check_system(name: str) -> None:
    """Other notations of PROJ can name files of this machine: a control file may come from a stranger."""
    if not re.fullmatch(r"ENU|WGS84|EPSG:\d{1,9}", name.upper()):
        raise LogpolarError(f"{name[:80]!a}: no such reference system; give an EPSG code like EPSG:32632")
    _System("EPSG:4326" if name.upper() == "WGS84" else name, (0.0, 0.0, 0.0))


def georegister(
    model: Path, output: Path, positions: Mapping[str, Position], system: str, control: Path | None = None
) -> Georegistration:
    """Align a copy of the model to GPS positions and write it to ``output``, with a record of the coordinates."""
    pycolmap = import_pycolmap("georegistration")
    found = read_model(model)
    centres = {found.images[n].name: np.array(found.images[n].projection_center()) for n in found.reg_image_ids()}
    names = sorted(centres.keys() & positions.keys())
    if len(names) < _FEWEST:
        raise LogpolarError(f"georegistration needs {_FEWEST} registered photos with GPS positions, not {len(names)}")
    places = np.array([positions[name] for name in names])
    origin = tuple(float(value) for value in places.mean(axis=0))
    target = _System(system, (origin[0], origin[1], origin[2]))
    known = target.of(places)
    offset = np.zeros(3) if target.name == "ENU" else np.floor(known.mean(axis=0))
    options = pycolmap.RANSACOptions()
    options.max_error = max(3 * float(np.median(np.linalg.norm(known - np.median(known, axis=0), axis=1))) / 10, 1.0)
    with quiet():
        similarity = pycolmap.align_reconstruction_to_locations(found, names, known - offset, _FEWEST, options)
    if similarity is None:
        raise LogpolarError("georegistration failed: the photos' GPS positions do not fit the model, or lie on a line")
    found.transform(similarity)
    aligned = np.array([similarity * centres[name] for name in names])
    try:
        checked, problem = _check_control(found, control, target, offset) if control else None, None
    except LogpolarError as error:  # the model is good without them
        checked, problem = None, error
    record = Georegistration(
        target.name,
        (origin[0], origin[1], origin[2]),
        (float(offset[0]), float(offset[1]), float(offset[2])),
        float(similarity.scale),
        _accuracy(names, aligned - (known - offset)),
        checked,
    )
    write_model(found, output, record)
    if problem:
        raise problem
    return record


def write_model(model: Any, output: Path, record: Georegistration) -> None:
    """Write model and record in the place of an earlier one, which stays until these are complete."""
    half = output.with_name(f".{output.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    try:
        half.mkdir()
        with quiet():
            model.write(str(half))
        check_complete(half)  # COLMAP does not notice a full disk
        write_json(half / RECORD, asdict(record), indent=1)
        shutil.rmtree(output, ignore_errors=True)
        half.rename(output)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _accuracy(names: list[str], differences: Matrix) -> Accuracy:
    lengths = np.linalg.norm(differences, axis=1)
    east, north, up = (round(float(value), 4) for value in np.sqrt((differences**2).mean(axis=0)))
    worst = int(lengths.argmax())
    median, largest = round(float(np.median(lengths)), 4), round(float(lengths[worst]), 4)
    return Accuracy(len(names), east, north, up, median, names[worst], largest)


def _check_control(model: Any, path: Path, target: _System, offset: Matrix) -> Accuracy:
    """Control points that two or more registered photos see, triangulated, against their coordinates."""
    system, points, marks = read_control(path)
    images = {image.name: image for image in (model.images[number] for number in model.reg_image_ids())}
    names, found, known = [], [], []
    for name, xyz in points.items():
        rays = [(images[photo], xy) for photo, xy in marks[name] if photo in images]
        place = _triangulate([(image, model.cameras[image.camera_id], xy) for image, xy in rays])
        if place is not None:
            names.append(name)
            known.append(xyz)
            found.append(place)
    if not names:
        raise LogpolarError(f"{path}: no control point is seen by two registered photos")
    return _accuracy(names, np.array(found) - (target.convert(np.array(known), system) - offset))


def read_control(path: Path) -> tuple[str, dict[str, Position], dict[str, list[tuple[str, Matrix]]]]:
    """Reference system, coordinates and marks (photo, pixel) by name of a file of ground control points."""
    system, *lines = read_text(path, LogpolarError, "text file of control points").splitlines() or [""]
    _check_system(system.strip())
    points: dict[str, Position] = {}
    marks: dict[str, list[tuple[str, Matrix]]] = {}
    for number, line in enumerate(lines, 2):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            x, y, z, *pixel = (float(word) for word in words[:5])
            photo = words[5]
        except (ValueError, IndexError):
            photo = ""
        if not photo or not np.isfinite([x, y, z, *pixel]).all():
            raise LogpolarError(f"{path}: line {number} is not 'X Y Z PIXEL_X PIXEL_Y IMAGE NAME'")
        name = words[6] if len(words) > 6 else f"{x:g} {y:g} {z:g}"
        if points.setdefault(name, (x, y, z)) != (x, y, z):
            raise LogpolarError(f"{path}: line {number}: other coordinates of '{name}' than before")
        marks.setdefault(name, []).append((photo, np.array(pixel)))
    if not points:
        raise LogpolarError(f"{path}: no control points in this file")
    return system.strip(), points, marks


def _triangulate(rays: list[tuple[Any, Any, Matrix]]) -> Matrix | None:
    """The point nearest to all rays of (image, camera, pixel); None unless there are two that are not parallel."""
    left, right = np.zeros((3, 3)), np.zeros(3)
    for image, camera, xy in rays:
        inside = 0 <= xy[0] <= camera.width and 0 <= xy[1] <= camera.height
        seen = camera.cam_from_img(xy) if inside else None
        if seen is None:
            continue
        direction = image.cam_from_world().rotation.matrix().T @ np.array([*seen, 1.0])
        direction /= np.linalg.norm(direction)
        across = np.eye(3) - np.outer(direction, direction)
        left += across
        right += across @ np.array(image.projection_center())
    if not np.linalg.cond(left) < _WORST_CONDITION:
        return None
    return np.asarray(np.linalg.solve(left, right), np.float64)


def in_metres(positions: Mapping[str, Position]) -> dict[str, list[float]]:
    """East, north and up of the mean position."""
    if not positions:
        raise LogpolarError("spatial pairing needs photos with GPS positions in their EXIF data; these have none")
    places = np.array(list(positions.values()))
    middle = tuple(places.mean(axis=0).tolist())
    return dict(zip(positions, to_enu(places, (middle[0], middle[1], middle[2])).tolist(), strict=True))
