"""Gather what is known of a reconstruction from its models and its database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from logpolar.errors import StorageError
from logpolar.geometry.cameras import Matrix
from logpolar.sfm.contradictions import agreement
from logpolar.sfm.database_files import connect
from logpolar.sfm.explanation import PAIR_FACTOR
from logpolar.sfm.facts import Facts, Lens, PairFacts, PhotoFacts, Rows, SceneModel
from logpolar.sfm.mapper import DATABASE, MODELS
from logpolar.sfm.pycolmap_compat import colmap_errors, import_pycolmap
from logpolar.sfm.workspace import has_model, read_model

_CHUNK = 1 << 14
_CERTAIN = 0.5
"""A pair that shares at least this fraction of its inliers as points is not checked further."""


def find_models(folder: Path) -> dict[int, Path]:
    """Models by number: in the folder itself, in ``sparse`` or in numbered folders of either."""
    for place in (folder, folder / MODELS):
        if has_model(place):
            return {int(place.name) if place.name.isdecimal() else 0: place}
        numbered = [each for each in (place.iterdir() if place.is_dir() else ()) if each.name.isdecimal()]
        found = {int(each.name): each for each in sorted(numbered) if has_model(each)}
        if found:
            return found
    return {}


def find_database(folder: Path) -> Path | None:
    """The database that belongs to the models in a folder: there, or one or two folders above."""
    places = (folder, *folder.resolve().parents[:2])
    return next((place / DATABASE for place in places if (place / DATABASE).is_file()), None)


def survey(
    models: Mapping[int, Path], database: Path | None = None, unreadable: Mapping[str, str] | None = None
) -> Facts:
    """Facts of models and database; ``unreadable``: photos that neither has, with the reason."""
    known = _Known()
    if database is not None:
        _read_database(known, database)
    opened = {number: read_model(place) for number, place in models.items()}
    order = sorted(opened, key=lambda n: (-opened[n].num_reg_images(), -opened[n].num_points3D(), n))
    for model in opened.values():
        known.add_model(model)
    for name, reason in (unreadable or {}).items():
        known.photos[name] = PhotoFacts(name, unreadable=reason)
    names = sorted(known.photos)
    rows = {name: row for row, name in enumerate(names)}
    found = [_read_model(known, opened[number], number, rows, models[number]) for number in order]
    photos = [known.photos[name] for name in names]
    pairs = _pairs(known, found, rows)
    if database is not None and len(pairs):
        pairs = replace(pairs, agreement=_agreement(pairs, found, opened, database, names))
    return Facts(photos, known.lenses, pairs, found)


@dataclass
class _Known:
    """What has been read so far, by name."""

    photos: dict[str, PhotoFacts] = field(default_factory=dict)
    lenses: dict[int, Lens] = field(default_factory=dict)
    pairs: dict[tuple[str, str], tuple[int, int]] | None = None  # matches and inliers; None without a database

    def add_model(self, model: Any) -> None:
        for camera in model.cameras.values():
            self.lenses[int(camera.camera_id)] = _lens(camera)
        for image in model.images.values():
            name = str(image.name)
            self.photos.setdefault(name, PhotoFacts(name, lens=int(image.camera_id)))


def _lens(camera: Any) -> Lens:
    parameters = tuple(float(value) for value in camera.params)
    size, focal = (int(camera.width), int(camera.height)), float(camera.mean_focal_length())
    number, kind = int(camera.camera_id), str(camera.model.name)
    return Lens(number, kind, *size, focal, parameters, bool(camera.has_prior_focal_length))


def _read_database(known: _Known, path: Path) -> None:
    pycolmap = import_pycolmap("reading COLMAP databases")
    with connect(path) as tables, colmap_errors(f"{path}: cannot be read"):
        for number, kind, width, height, data, prior in tables.execute(
            "SELECT camera_id, model, width, height, params, prior_focal_length FROM cameras"
        ):
            camera = pycolmap.Camera(camera_id=number, model=pycolmap.CameraModelId(kind), width=width, height=height)
            camera.params, camera.has_prior_focal_length = np.frombuffer(data, "<f8"), bool(prior)
            known.lenses[number] = _lens(camera)
        counts = dict(tables.execute("SELECT image_id, rows FROM keypoints"))
        names = {}
        for number, name, lens in tables.execute("SELECT image_id, name, camera_id FROM images"):
            names[number] = name
            known.photos[name] = PhotoFacts(name, counts.get(number, 0), lens)
        known.pairs = {}
        tried = dict(tables.execute("SELECT pair_id, rows FROM matches"))
        verified = dict(tables.execute("SELECT pair_id, rows FROM two_view_geometries"))
    for pair in tried | verified:
        first, second = (names.get(number) for number in divmod(pair, PAIR_FACTOR))
        if first is not None and second is not None:
            known.pairs[min(first, second), max(first, second)] = tried.get(pair, 0), verified.get(pair, 0)


def _read_model(known: _Known, model: Any, number: int, rows: Mapping[str, int], place: Path) -> SceneModel:
    position = {number: row for row, number in enumerate(model.points3D)}
    points = [model.points3D[number] for number in position]
    xyz = np.array([point.xyz for point in points], np.float64).reshape(-1, 3)
    images = sorted((model.images[each] for each in model.reg_image_ids()), key=lambda image: rows[str(image.name)])
    poses, observed = [], []
    total, counts = np.zeros(len(points)), np.zeros(len(points))
    for image in images:
        pose = np.array(image.cam_from_world().matrix(), np.float64)
        seen = [(position[each.point3D_id], *each.xy) for each in image.points2D if each.point3D_id in position]
        table = np.array(seen, np.float64).reshape(-1, 3)
        here = table[:, 0].astype(np.intp)
        poses.append(pose)
        observed.append(np.unique(here))
        errors = _reprojection_errors(model.cameras[image.camera_id], pose, xyz[here], table[:, 1:])
        finite = np.isfinite(errors)
        np.add.at(total, here[finite], errors[finite])
        np.add.at(counts, here[finite], 1)
        facts = known.photos[str(image.name)]
        if facts.model is None:  # else it is also in a larger model
            error = float(errors[finite].mean()) if finite.any() else None
            fresh = replace(facts, model=number, points=len(here), error=error, lens=int(image.camera_id))
            known.photos[facts.name] = fresh
    if not (np.isfinite(xyz).all() and np.isfinite(poses).all()):
        raise StorageError(f"{place}: a point or pose of this model is not finite")
    return SceneModel(
        number,
        xyz,
        np.array([point.color for point in points], np.uint8).reshape(-1, 3),
        np.array([point.track.length() for point in points], np.intp),
        np.array([rows[str(image.name)] for image in images], np.intp),
        np.array(poses, np.float64).reshape(-1, 3, 4),
        observed,
        float((total[counts > 0] / counts[counts > 0]).mean()) if counts.any() else None,
    )


def _reprojection_errors(camera: Any, pose: Matrix, points: Matrix, xy: Matrix) -> Matrix:
    """Pixels (N,); not finite for points that the camera cannot see."""
    if not len(points):
        return np.zeros(0)
    found = np.asarray(camera.img_from_cam(points @ pose[:, :3].T + pose[:, 3]))
    return np.asarray(np.linalg.norm(found - xy, axis=1))


def _pairs(known: _Known, models: Iterable[SceneModel], rows: Mapping[str, int]) -> PairFacts:
    shared: dict[tuple[int, int], int] = {}
    for model in models:
        counts = common_points(model)
        for first, second in np.argwhere(np.triu(counts, 1)).tolist():
            pair = int(model.photos[first]), int(model.photos[second])
            shared[pair] = shared.get(pair, 0) + int(counts[first, second])
    entered = {(rows[a], rows[b]): counts for (a, b), counts in (known.pairs or {}).items()}
    together = sorted(set(shared) | set(entered))
    missing = (-1, -1) if known.pairs is None else (0, 0)
    counts = np.array([entered.get(pair, missing) for pair in together], np.intp).reshape(-1, 2)
    return PairFacts(
        np.array(together, np.intp).reshape(-1, 2),
        counts[:, 0],
        counts[:, 1],
        np.array([shared.get(pair, 0) for pair in together], np.intp),
    )


def _agreement(
    pairs: PairFacts, found: Iterable[SceneModel], opened: Mapping[int, Any], database: Path, names: Sequence[str]
) -> Matrix:
    """Of verified pairs that share few points for their inliers; the others agree with the model, which has them."""
    values = np.full(len(pairs), np.nan)
    for model in found:
        inside = np.isin(pairs.rows, model.photos).all(axis=1) & np.isnan(values)
        doubtful = np.flatnonzero(inside & (pairs.inliers > 0) & (pairs.shared < pairs.inliers * _CERTAIN))
        chosen = [(names[first], names[second]) for first, second in pairs.rows[doubtful].tolist()]
        values[doubtful] = agreement(opened[model.number], database, chosen)
    return values


def common_points(model: SceneModel) -> Rows:
    """How many points each two photos of a model both observe, (C, C)."""
    total = np.zeros((len(model.photos), len(model.photos)), np.float32)
    for start in range(0, len(model.points), _CHUNK):
        seen = np.zeros((len(model.photos), _CHUNK), np.float32)
        for photo, points in enumerate(model.observed):
            first, last = np.searchsorted(points, (start, start + _CHUNK))
            seen[photo, points[first:last] - start] = 1
        total += seen @ seen.T
    return total.astype(np.intp)
