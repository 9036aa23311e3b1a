"""The page of a reconstruction: points and cameras in 3D, photos, how they hang together, and what went wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import atan, degrees
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from logpolar.errors import LogpolarError
from logpolar.geometry.cameras import Matrix
from logpolar.images import read_image
from logpolar.images.exif import read_orientation
from logpolar.sfm.diagnosis import diagnose, why_unregistered
from logpolar.sfm.facts import Facts, Rows, SceneModel
from logpolar.storage.atomic_io import within
from logpolar.storage.documents import rounded, versions
from logpolar.viewing.drawing import upright
from logpolar.viewing.pages.page import pack_array, pack_picture, photo_jpeg, write_page

MAX_POINTS = 300_000
"""Points on a page; of more, those that most photos see."""
MAX_GRAPH = 1000
"""Photos of a match graph that is drawn; the matrix shows more."""
_ALONE = 16
"""Places in a row of photos without verified pairs, at least."""
_PHOTO_BYTES = 12e6
"""All photos of a page together, about."""
_QUALITY = 75


@dataclass(frozen=True)
class Provenance:
    """Where a reconstruction comes from, as far as is known."""

    title: str
    command: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage


class SmallPhoto(NamedTuple):
    """A photo for the page: a JPEG of it, upright, and how it is stored (EXIF's orientation, 1 to 8)."""

    jpeg: bytes
    orientation: int


Pictures = Mapping[str, SmallPhoto]
"""By the photo's name."""


def write_scene_page(path: Path, facts: Facts, pictures: Pictures, source: Provenance) -> None:
    """Write the page; ``pictures``: see ``read_pictures``."""
    write_page(path, "scene", source.title, scene_data(facts, pictures, source))


def scene_data(facts: Facts, pictures: Pictures, source: Provenance) -> dict[str, Any]:
    """What the page shows, as JSON values."""
    largest = facts.models[0] if facts.models else None
    return {
        "title": source.title,
        "verdict": "; ".join([verdict(facts), *_missing(facts, pictures)]),
        "photos": _photos(facts, pictures),
        "lenses": _lenses(facts),
        "findings": [asdict(finding) | {"photos": list(finding.photos)} for finding in diagnose(facts)],
        "pairs": pack_array(facts.pairs.rows.astype(np.int32)),
        "inliers": pack_array(facts.pairs.inliers.astype(np.int32)),
        "shared": pack_array(facts.pairs.shared.astype(np.int32)),
        "graph": _graph(facts),
        "model": None if largest is None or not len(largest.photos) else model_data(facts, largest, pictures),
        "no_model": "No model: no two photos overlap enough with enough baseline. The findings beside this say more.",
        "seconds": dict(source.seconds),
        "command": source.command,
        "versions": ", ".join(f"{name} {number}" for name, number in versions("pycolmap", "numpy").items()),
    }


def read_pictures(folder: Path | None, facts: Facts) -> dict[str, SmallPhoto]:
    """Those photos that can be read, by name; the more photos, the smaller.

    ``folder``: where the photos are; None if that is not known.
    """
    names = [photo.name for photo in facts.photos]
    side = int(np.clip(480 * np.sqrt(100 / max(len(names), 1)), 64, 480))
    found, room = dict[str, SmallPhoto](), _PHOTO_BYTES
    if folder is None:
        return {}
    for name in names:
        try:
            place = within(folder, name)
            orientation = read_orientation(place)
            pixels, _ = upright(read_image(place), np.zeros((0, 2)), orientation)
            picture = photo_jpeg(pixels, side, _QUALITY)
        except LogpolarError:
            continue
        room -= len(picture)
        if room > 0:
            found[name] = SmallPhoto(picture, orientation)
    return found


def verdict(facts: Facts) -> str:
    """The result in one line."""
    placed = len(facts.models[0].photos) if facts.models else 0
    parts = [f"{placed} of {len(facts.photos)} photos registered"]
    if facts.models:
        parts.append(f"{len(facts.models[0].points)} points")
        error = facts.models[0].error
        parts += [] if error is None else [f"mean reprojection error {error:.2f} px"]
    if len(facts.models) > 1:
        parts.append(f"{len(facts.models)} models, of which this is the largest, number {facts.models[0].number}")
    return "; ".join(parts)


def _missing(facts: Facts, pictures: Pictures) -> list[str]:
    count = len(facts.photos) - len(pictures)
    if not pictures and count > 1:
        return [f"the {count} photos are not in this page: none was found where it looked, see --photos"]
    words = "photo is" if count == 1 else "photos are"
    return [f"{count} {words} not in this page: not found, or not readable"] if count else []


def _photos(facts: Facts, pictures: Pictures) -> list[dict[str, Any]]:
    reasons = why_unregistered(facts)
    degree = np.bincount(facts.pairs.rows[facts.verified].ravel(), minlength=len(facts.photos))
    return [
        {
            "name": photo.name,
            "reason": reasons.get(row, ""),
            "model": photo.model,
            "points": photo.points,
            "error": None if photo.error is None else rounded(photo.error, 3),
            "keypoints": photo.keypoints,
            "pairs": int(degree[row]),
            "lens": photo.lens,
            "focal": rounded(facts.lenses[photo.lens].focal, 1) if photo.lens in facts.lenses else None,
            "picture": pack_picture(pictures[photo.name].jpeg) if photo.name in pictures else None,
            "orientation": pictures[photo.name].orientation if photo.name in pictures else 1,
        }
        for row, photo in enumerate(facts.photos)
    ]


def _lenses(facts: Facts) -> list[dict[str, Any]]:
    return [
        {
            "number": lens.number,
            "kind": lens.kind,
            "width": lens.width,
            "height": lens.height,
            "focal": rounded(lens.focal, 1),
            "view": rounded(degrees(2 * atan(max(lens.width, lens.height) / (2 * lens.focal))), 1)
            if lens.focal
            else None,
            "photos": sum(photo.lens == lens.number for photo in facts.photos),
            "parameters": ", ".join(f"{value:.5g}" for value in lens.parameters),
        }
        for _, lens in sorted(facts.lenses.items())
    ]


@dataclass(frozen=True, eq=False)
class PageModel:
    """A model in the coordinates of pages: y up, centred on what is dense, about one unit large."""

    points: Matrix  # (N, 3)
    colours: NDArray[np.uint8]  # (N, 3), red, green, blue
    centres: Matrix  # (C, 3)
    axes: Matrix  # (C, 3, 3), rows right, down and forward of each camera
    field: Matrix  # (C, 2), half the photo's width and height over its focal length

    @classmethod
    def of(cls, facts: Facts, model: SceneModel, pictures: Pictures) -> PageModel:
        names = [facts.photos[row].name for row in model.photos.tolist()]
        axes, middle, scale = page_frame(
            model, [pictures[name].orientation if name in pictures else 1 for name in names]
        )
        lenses = [facts.lenses[facts.photos[row].lens or 0] for row in model.photos.tolist()]
        sizes = np.array([[lens.width, lens.height] for lens in lenses], np.float64).reshape(-1, 2)
        focal = np.array([max(lens.focal, 1e-9) for lens in lenses]).reshape(-1, 1)
        return cls(
            (model.points - middle) @ axes.T * scale,
            model.colours,
            (model.centres - middle) @ axes.T * scale,
            model.poses[:, :, :3] @ axes.T,
            (sizes / (2 * focal)).clip(0, 2),
        )

    @property
    def frustum(self) -> float:
        """Length of a frustum: less than half the usual distance between neighbouring cameras."""
        if len(self.centres) < 2:
            return 0.15
        apart = [np.partition(np.linalg.norm(self.centres - centre, axis=1), 1)[1] for centre in self.centres]
        return float(np.clip(0.4 * np.median(apart), 0.02, 0.2))

    def corners(self) -> Matrix:
        """Corners of the photos (C, 4, 3) in front of their cameras, clockwise from the upper left."""
        signs = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
        rays = np.concatenate([signs * self.field[:, None], np.ones((len(self.field), 4, 1))], axis=2)
        return np.asarray(self.centres[:, None] + self.frustum * rays @ self.axes)


def model_data(facts: Facts, model: SceneModel, pictures: Pictures) -> dict[str, Any]:
    """The model, packed: a selection of its points, its cameras, and which of the points each camera observes."""
    shown, kept = PageModel.of(facts, model, pictures), _kept_points(model)
    place = np.full(len(model.points), -1, np.intp)
    place[kept] = np.arange(len(kept))
    observed = [np.sort(place[rows][place[rows] >= 0]) for rows in model.observed]
    gaps = [pack_gaps(rows) for rows in observed]
    cameras = np.concatenate([shown.axes.reshape(-1, 9), shown.centres], axis=1)
    return {
        "points": pack_array(shown.points[kept].astype(np.float32)),
        "colours": pack_array(model.colours[kept]),
        "tracks": pack_array(np.minimum(model.track_lengths[kept], 255).astype(np.uint8)),
        "total": len(model.points),
        "photos": pack_array(model.photos.astype(np.int32)),
        "cameras": pack_array(cameras.astype(np.float32)),
        "field": pack_array(shown.field.astype(np.float32)),
        "observed": pack_array(np.concatenate([*gaps, np.zeros(0, np.uint8)])),
        "lengths": [len(each) for each in gaps],
        "counts": pack_array(np.array([len(rows) for rows in observed], np.int32)),
        "frustum": shown.frustum,
        "home": [0.0, 0.35],  # yaw, pitch
    }


def page_frame(model: SceneModel, orientations: Sequence[int]) -> tuple[Matrix, Matrix, float]:
    """Axes (rows: right, up, back), centre and scale of a page's coordinates.

    They enclose most points and cameras: a few distant ones would shrink everything else to a dot.
    """
    near = [np.quantile(each, [0.05, 0.95], axis=0) for each in (model.points, model.centres) if len(each)]
    low, high = np.min(near, axis=(0, 1)), np.max(near, axis=(0, 1))
    axes = upright_axes(model.poses, orientations)
    return axes, (low + high) / 2, 2 / max(float(np.linalg.norm(high - low)), 1e-9)


def upright_axes(poses: Matrix, orientations: Sequence[int]) -> Matrix:
    """Axes (3, 3), rows right, up and back, in which cameras (C, 3, 4) stand upright and look away from the viewer.

    Most photos are upright by EXIF's orientation: the mean of what is down in them is taken as down. Where cameras look
    all around, any direction will do.
    """
    stored, (x, y, z) = np.array(orientations)[:, None], poses[:, :, :3].swapaxes(0, 1)
    down = (np.where(stored >= 5, x, y) * np.where(np.isin(stored, (3, 4, 7, 8)), -1, 1)).mean(axis=0)
    forward = z.mean(axis=0)
    up = -down / np.linalg.norm(down) if np.linalg.norm(down) > 1e-6 else np.array([0.0, -1.0, 0.0])
    candidates = (forward, *np.eye(3)[[2, 0]])
    back = next(each for each in (-(c - (c @ up) * up) for c in candidates) if np.linalg.norm(each) > 1e-3)
    back = back / np.linalg.norm(back)
    return np.stack([np.cross(up, back), up, back])


def _kept_points(model: SceneModel) -> Rows:
    """Points on the page in random order, so that the first few of them show the whole."""
    order = np.random.default_rng(0).permutation(len(model.points))
    if len(order) > MAX_POINTS:
        longest = np.argsort(-model.track_lengths[order], kind="stable")[:MAX_POINTS]
        order = order[np.sort(longest)]
    return order


def pack_gaps(rows: Rows) -> NDArray[np.uint8]:
    """Sorted rows as bytes: how many are left out before each, seven bits a byte, the lowest first.

    The highest bit of a byte says that another follows.
    """
    gaps = np.diff(rows, prepend=-1) - 1
    size = 1 + (gaps[:, None] >> np.array([7, 14, 21, 28]) > 0).sum(axis=1)
    start = np.cumsum(size) - size
    packed = np.zeros(int(size.sum()), np.uint8)
    for place in range(5):
        here = size > place
        more = np.where(size[here] > place + 1, 128, 0)
        packed[start[here] + place] = (gaps[here] >> (7 * place) & 127) | more
    return packed


def _graph(facts: Facts) -> dict[str, Any] | None:
    if not 0 < len(facts.photos) <= MAX_GRAPH:
        return None
    weights = np.log2(1 + facts.pairs.strength[facts.verified])
    return pack_array(graph_layout(len(facts.photos), facts.pairs.rows[facts.verified], weights).astype(np.float32))


def graph_layout(count: int, links: Rows, weights: Matrix) -> Matrix:
    """Places (N, 2) in 0 to 1, y down: linked nodes by their links, nodes without any in rows along the lower edge."""
    linked = np.unique(links)
    if not 0 < len(linked) < count:
        return _spread(count, links, weights)
    alone = np.setdiff1d(np.arange(count), linked)
    columns = max(_ALONE, int(np.ceil(np.sqrt(3 * len(alone)))))
    row, column = np.divmod(np.arange(len(alone)), columns)
    places = np.zeros((count, 2))
    places[alone] = np.stack([column, columns - 1 - row[-1] + row], axis=1) / (columns - 1)
    upper = 1 - (row[-1] + 2) / columns  # leaves a row free
    places[linked] = _spread(len(linked), np.searchsorted(linked, links), weights) * (1, upper)
    return places


def _spread(count: int, links: Rows, weights: Matrix, rounds: int = 80) -> Matrix:
    """Force-directed layout: nodes repel each other, links pull by their weights."""
    angle = 2 * np.pi * np.arange(count) / max(count, 1)
    places = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    pull = np.zeros((count, count))
    if len(links):
        pull[links[:, 0], links[:, 1]] = weights / weights.max()
    pull = pull + pull.T
    ideal = 1 / np.sqrt(max(count, 1))
    for heat in np.linspace(0.15, 0.002, rounds):
        away = places[:, None] - places[None]
        distance = np.maximum(np.linalg.norm(away, axis=2), 1e-6)
        force = ideal**2 / distance**2 - pull * distance / ideal
        np.fill_diagonal(force, 0)
        step = np.einsum("ij,ijk->ik", force, away) - places  # towards the middle, or islands would drift off
        length = np.maximum(np.linalg.norm(step, axis=1, keepdims=True), 1e-9)
        places = places + step / length * np.minimum(length, heat)
    low, high = places.min(axis=0), places.max(axis=0)
    return np.asarray((places - low) / np.maximum(high - low, 1e-9))
