"""The page of a pair: both photos, their matches, and why two keypoints match."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import logpolar
from logpolar.features.features import Features
from logpolar.geometry.intrinsics import AnyCamera, rays_and_focal
from logpolar.geometry.two_view import Points
from logpolar.geometry.verification import MODEL_NAMES, Cameras, VerifiedMatches
from logpolar.images import read_image, resize, to_bytes, to_gray
from logpolar.images.exif import read_orientation
from logpolar.matching.nearest import Matches, match_descriptors
from logpolar.matching.options import MatchingOptions
from logpolar.sampling import sample_patches
from logpolar.sampling.patterns import LogPolar, Pattern
from logpolar.types import FloatArray, Image, Matrix
from logpolar.viewing.drawing import upright
from logpolar.viewing.pages.page import jpeg, pack_array, pack_picture, photo_jpeg, write_page

MAX_MATCHES = 3000
"""Matches on a page: more make it slow to open, and nobody looks at them one by one."""
CANDIDATES = 4
"""Nearest neighbours listed for a match, its own included."""
MAX_SHIFT = 8
"""Columns by which log-polar patches are shifted against each other, at most, to align them."""
_PHOTO_SIDE, _PHOTO_QUALITY, _PATCH_QUALITY = 1600, 82, 80
_ATLAS_COLUMNS = 50
_RATIO_FAILED, _FILTERED, _KEPT, _INLIER = range(4)
_VERIFIED = "does not agree with the geometry", "agrees with the geometry"


@dataclass(frozen=True, eq=False)
class Side:
    """One photo of the pair."""

    name: str
    image: Image
    features: Features
    orientation: int = 1  # EXIF's; the page shows photos upright, and positions in them

    @classmethod
    def open(cls, path: Path, features: Features) -> Side:
        return cls(str(path), read_image(path), features, read_orientation(path))

    @property
    def to_upright(self) -> Matrix:
        """The map (3, 3) of positions in the image as stored to those in the upright one."""
        places = upright(self.image, np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), self.orientation)[1]
        origin, right, down = np.asarray(places, np.float64)
        return np.vstack([np.stack([right - origin, down - origin, origin], axis=1), [0.0, 0.0, 1.0]])

    def shown(self) -> dict[str, Any]:
        """The upright photo, its size, and its keypoints as x, y, size, angle."""
        picture = upright(self.image, np.zeros((0, 2)), self.orientation)[0]
        matrix, table = self.to_upright, self.features.keypoints.table[:, :4].astype(np.float64)
        angle = np.radians(table[:, 3])
        x, y = matrix[:2, :2] @ np.stack([np.cos(angle), np.sin(angle)])
        table[:, :2] = table[:, :2] @ matrix[:2, :2].T + matrix[:2, 2]
        if self.orientation > 1:
            table[:, 3] = np.degrees(np.arctan2(y, x)) % 360
        width, height = self.features.image_size
        return {
            "width": height if 5 <= self.orientation <= 8 else width,
            "height": width if 5 <= self.orientation <= 8 else height,
            "photo": pack_picture(photo_jpeg(picture, _PHOTO_SIDE, _PHOTO_QUALITY)),
            "keypoints": pack_array(table.astype(np.float32)),
        }

    def patches(self, rows: NDArray[np.integer], pattern: Pattern) -> FloatArray:
        """Patches (N, rows, columns) of some keypoints as the network sees them."""
        gray, scale = to_gray(self.image), self.features.scale
        size = round(gray.shape[1] * scale), round(gray.shape[0] * scale)
        factors = size[0] / gray.shape[1], size[1] / gray.shape[0]
        keypoints = self.features.keypoints[rows].resized(*factors)
        return sample_patches(resize(gray, size), keypoints, pattern)


def write_pair_page(
    path: Path,
    sides: tuple[Side, Side],
    found: VerifiedMatches,
    pattern: Pattern,
    matching: MatchingOptions,
    threshold: float,
    *,
    cameras: Cameras | None = None,
    command: str = "",
) -> None:
    """Write the page of two photos and their matches.

    ``pattern``: that of the descriptors' model. ``matching``, ``threshold``, ``cameras``: what ``found`` was found
    with. ``command``: shown at the end of the page.
    """
    first, second = sides
    title = " and ".join(short_names(first.name, second.name))
    data = pair_data(sides, found, pattern, matching, threshold, cameras=cameras, command=command)
    write_page(path, "pair", title, data)


def pair_data(
    sides: tuple[Side, Side],
    found: VerifiedMatches,
    pattern: Pattern,
    matching: MatchingOptions,
    threshold: float,
    *,
    cameras: Cameras | None = None,
    command: str = "",
) -> dict[str, Any]:
    """What the page shows, as JSON values."""
    first, second = sides
    ours, theirs = first.features, second.features
    looks = looks_of(found, ours, theirs)
    candidates = _nearest_of_looks(looks, ours, theirs, matching.mutual)
    rows = _union(found.matches, candidates)
    neighbours, distances = _candidates_of_looks(looks, ours, theirs, rows)
    distance = np.linalg.norm(ours.descriptors[rows[:, 0]] - theirs.descriptors[rows[:, 1]], axis=1)
    ratio = ratios(distance, neighbours, distances, rows[:, 1])
    stage = _stages(rows, found, ratio, None if matching.learned else matching.ratio)
    shown = np.lexsort((ratio, -stage))[:MAX_MATCHES]
    pairs = rows[shown]
    patches = [side.patches(pairs[:, number], pattern) for number, side in enumerate(sides)]
    roll, shift, correlation = align_patches(*patches)
    confidence = _confidence(pairs, found.before_guiding)
    nearest = set(map(tuple, candidates.indices.tolist()))
    passed = sum(pair in nearest for pair in map(tuple, rows[ratio <= (matching.ratio or 1)].tolist()))
    return {
        "images": [
            {"name": name, "path": side.name, **side.shown()}
            for side, name in zip(sides, short_names(first.name, second.name), strict=True)
        ],
        "matches": pack_array(pairs),
        "stage": pack_array(stage[shown].astype(np.uint8)),
        "distance": pack_array(distance[shown].astype(np.float32)),
        "ratio": pack_array(ratio[shown].astype(np.float32)),
        "confidence": None if confidence is None else pack_array(confidence),
        "candidates": pack_array(neighbours[shown].astype(np.int32)),
        "candidate_distances": pack_array(distances[shown].astype(np.float32)),
        "descriptors": [_bars(side.features.descriptors[pairs[:, n]]) for n, side in enumerate(sides)],
        "patches": [pack_picture(jpeg(atlas(each), _PATCH_QUALITY)) for each in patches],
        "patch_size": patches[0].shape[1:],
        "atlas_columns": _ATLAS_COLUMNS,
        "roll": pack_array(roll.astype(np.int16)),
        "shift": pack_array(shift.astype(np.int16)),
        "correlation": pack_array(correlation.astype(np.float32)),
        "funnel": _funnel(sides, len(candidates), passed, found, matching, int((stage == _INLIER).sum())),
        "hidden": len(rows) - len(shown),
        "stages": _stage_names(matching),
        "threshold": threshold,
        "command": command,
        "versions": f"logpolar {logpolar.__version__}, Python {platform.python_version()}",
        "radius": pattern.lambda_ / 2,  # of a support region, in keypoint sizes
        "polar": _polar(pattern),
        **_geometry(found, cameras, first.to_upright, second.to_upright),
    }


def looks_of(found: VerifiedMatches, first: Features, second: Features) -> list[tuple[slice, slice]]:
    """The rows of each look's keypoints in both images: those of different looks are not compared."""
    ends = np.cumsum([(0, 0), *(found.looks or [(len(first), len(second))])], axis=0).tolist()
    return [(slice(a[0], b[0]), slice(a[1], b[1])) for a, b in pairwise(ends)]


def _nearest_of_looks(looks: Sequence[tuple[slice, slice]], first: Features, second: Features, mutual: bool) -> Matches:
    """Nearest neighbours, without any test."""
    indices, distances = [], []
    for here, there in looks:
        near = match_descriptors(first.descriptors[here], second.descriptors[there], ratio=None, mutual=mutual)
        indices.append(near.indices + np.array([here.start, there.start], np.int32))
        distances.append(near.distances)
    return Matches(np.concatenate(indices), np.concatenate(distances))


def _candidates_of_looks(
    looks: Sequence[tuple[slice, slice]], first: Features, second: Features, rows: NDArray[np.int32]
) -> tuple[NDArray[np.intp], FloatArray]:
    """``nearest_candidates`` of the first keypoints of matches (N, 2)."""
    neighbours = np.full((len(rows), CANDIDATES), -1, np.intp)
    distances = np.zeros((len(rows), CANDIDATES), np.float32)
    for here, there in looks:
        own = (rows[:, 0] >= here.start) & (rows[:, 0] < here.stop)
        found, distances[own] = nearest_candidates(first.descriptors[rows[own, 0]], second.descriptors[there])
        neighbours[own] = np.where(found < 0, -1, found + there.start)
    return neighbours, distances


def nearest_candidates(first: FloatArray, second: FloatArray) -> tuple[NDArray[np.intp], FloatArray]:
    """For each descriptor (N, D) its nearest neighbours in the second set: rows and distances (N, CANDIDATES).

    With fewer descriptors than that, the rest is -1 and 0.
    """
    count = min(CANDIDATES, len(second))
    rows = np.full((len(first), CANDIDATES), -1)
    distance = np.zeros((len(first), CANDIDATES), np.float32)
    for start in range(0, len(first) if count else 0, 512):
        part = slice(start, start + 512)
        similarity = first[part] @ second.T
        nearest = np.argpartition(-similarity, count - 1, axis=1)[:, :count]
        values = np.take_along_axis(similarity, nearest, axis=1)
        order = np.argsort(-values, axis=1, kind="stable")
        rows[part, :count] = np.take_along_axis(nearest, order, axis=1)
        distance[part, :count] = np.linalg.norm(first[part][:, None] - second[rows[part, :count]], axis=2)
    return rows, distance


def ratios(
    distance: FloatArray, neighbours: NDArray[np.intp], distances: FloatArray, own: NDArray[np.integer]
) -> FloatArray:
    """Distance of each match over that of the nearest other candidate; 0 where there is no other."""
    others = np.where((neighbours == own[:, None]) | (neighbours < 0), np.inf, distances).min(axis=1)
    return np.asarray(np.divide(distance, others, out=np.ones_like(distance), where=others > 0))


def align_patches(
    first: FloatArray, second: FloatArray
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]]:
    """Roll along the angle and shift along the radius of the second patches that fit the first best.

    A roll of one row is a rotation by 360 degrees / rows, a shift of one column a change of scale by the ratio of
    neighbouring radii. Returns both (N,) and the correlation (N,) of the patches after them.
    """
    if not len(first):
        return np.zeros(0, np.intp), np.zeros(0, np.intp), np.zeros(0)
    here, there = (_standardised(each) for each in (first, second))
    columns, height = first.shape[2], first.shape[1]
    spectra = np.fft.rfft(here, axis=1), np.fft.rfft(there, axis=1)
    shifts = np.arange(-min(MAX_SHIFT, columns - 1), min(MAX_SHIFT, columns - 1) + 1)
    scores = np.empty((len(first), len(shifts), height))
    for number, shift in enumerate(shifts):
        left = slice(max(-shift, 0), columns - max(shift, 0))
        right = slice(max(shift, 0), columns - max(-shift, 0))
        product = np.einsum("nrc,nrc->nr", spectra[0][..., left].conj(), spectra[1][..., right])
        energy = (here[..., left] ** 2).sum(axis=(1, 2)) * (there[..., right] ** 2).sum(axis=(1, 2))
        scores[:, number] = np.fft.irfft(product, height, axis=1) / np.sqrt(np.maximum(energy, 1e-12))[:, None]
    best = scores.reshape(len(first), -1).argmax(axis=1)
    roll = best % height
    return (
        np.where(roll > height // 2, roll - height, roll),
        shifts[best // height],
        scores.reshape(len(first), -1)[np.arange(len(first)), best],
    )


def atlas(patches: FloatArray) -> NDArray[np.uint8]:
    """Patches side by side, ``_ATLAS_COLUMNS`` in a row, each stretched to all grey levels."""
    count, height, width = patches.shape
    rows = max(-(-count // _ATLAS_COLUMNS), 1)
    sheet = np.zeros((rows * _ATLAS_COLUMNS, height, width), np.float32)
    low, high = (reduce(patches, axis=(1, 2), keepdims=True) for reduce in (np.min, np.max))
    sheet[:count] = (patches - low) / np.maximum(high - low, 1e-6) if count else 0
    tiles = sheet.reshape(rows, _ATLAS_COLUMNS, height, width).swapaxes(1, 2)
    return to_bytes(tiles.reshape(rows * height, _ATLAS_COLUMNS * width))


def _standardised(patches: FloatArray) -> NDArray[np.float64]:
    centred = patches.astype(np.float64) - patches.mean(axis=(1, 2), keepdims=True)
    return np.asarray(centred / np.maximum(centred.std(axis=(1, 2), keepdims=True), 1e-6))


def _union(kept: Matches, candidates: Matches) -> NDArray[np.int32]:
    """Rows (N, 2) of both, each once."""
    both = np.concatenate([kept.indices, candidates.indices]).reshape(-1, 2)
    return np.unique(both, axis=0).astype(np.int32)


def _stages(
    rows: NDArray[np.int32], found: VerifiedMatches, ratio: FloatArray, limit: float | None
) -> NDArray[np.intp]:
    """How far each match got: it failed the ratio test, was filtered out, was kept, or agrees with the geometry."""
    stage = np.where(ratio <= (1 if limit is None else limit), _FILTERED, _RATIO_FAILED)
    order = {pair: number for number, pair in enumerate(map(tuple, rows.tolist()))}
    real = found.model == "none" or found.geometry.common_scene
    good = found.geometry.inliers & real
    for pair, inlier in zip(map(tuple, found.matches.indices.tolist()), good.tolist(), strict=True):
        stage[order[pair]] = _INLIER if inlier else _KEPT
    return stage


def _confidence(pairs: NDArray[np.int32], kept: Matches) -> NDArray[np.float32] | None:
    """Of each pair (N,), 0 for those that the matcher did not choose; None for a matcher without."""
    if kept.confidence is None:
        return None
    known = dict(zip(map(tuple, kept.indices.tolist()), kept.confidence.tolist(), strict=True))
    return np.array([known.get(pair, 0) for pair in map(tuple, pairs.tolist())], np.float32)


def _stage_names(matching: MatchingOptions) -> list[str]:
    """What became of a match, from the worst; "" for a stage that this matcher does not have."""
    if matching.learned:
        return ["", "nearest neighbours that the matcher did not choose", *_VERIFIED]
    ratio = "failed the ratio test" if matching.ratio is not None and matching.ratio < 1 else ""
    return [ratio, "removed by the filter", *_VERIFIED]


def _polar(pattern: Pattern) -> dict[str, float] | None:
    """What relates shifts of columns to changes of scale; None for a pattern that is not log-polar."""
    if not isinstance(pattern, LogPolar):
        return None
    return {"ratio": pattern.radius_ratio, "pixel_weight": pattern.pixel_weight}


def _funnel(
    sides: tuple[Side, Side], nearest: int, passed: int, found: VerifiedMatches, matching: MatchingOptions, agree: int
) -> list[tuple[str, int]]:
    """Names and counts of the steps; ``nearest``: candidates, of which ``passed`` the ratio test."""
    chosen = len(found.before_guiding)
    name = "keypoints of all looks, fewer of both" if found.looks else "keypoints, fewer of both"
    steps = [(name, min(len(side.features) for side in sides))]
    if matching.learned:
        whole = found.before_guiding.confidence is not None  # of several looks some may have nearest neighbours
        steps.append((f"chosen by the {'learned matcher' if whole else 'matchers of all looks'}", chosen))
    else:
        steps.append(("mutual nearest neighbours" if matching.mutual else "nearest neighbours", nearest))
        if matching.ratio is not None and matching.ratio < 1:
            steps.append((f"ratio test, {matching.ratio:g}", passed))
        if matching.filter != "none":
            steps.append(("consensus filter", chosen))
    if found.unguided is not None:
        steps.append(("matched again near the geometry", len(found.matches)))
    return [*steps, ("agree with the geometry", agree)]


def _geometry(found: VerifiedMatches, cameras: Cameras | None, first: Matrix, second: Matrix) -> dict[str, Any]:
    """Verdict and matrices, these for the upright photos: ``first``, ``second`` map positions to them."""
    summary, back = found.to_dict(), np.linalg.inv(first)
    fundamental, matrix = _fundamental(found, cameras), found.geometry.matrix
    return {
        "geometry": found.model,
        "geometry_name": MODEL_NAMES.get(found.model, ""),
        "matches_count": summary["matches"],
        "inliers": summary["inliers"],
        "common_scene": summary["common_scene"],
        "matrix": None if matrix is None else (second @ matrix @ back).tolist(),  # drawn if it is a homography
        "fundamental": None if fundamental is None else (np.linalg.inv(second).T @ fundamental @ back).tolist(),
    }


def _fundamental(found: VerifiedMatches, cameras: Cameras | None) -> Matrix | None:
    """The matrix whose epipolar lines the page draws; None for a lens that bends them."""
    if found.model == "fundamental" or found.geometry.matrix is None or cameras is None:
        return found.geometry.matrix if found.model == "fundamental" else None
    inverse = [_inverse_intrinsics(*each) for each in zip(cameras, (found.first_xy, found.second_xy), strict=True)]
    if inverse[0] is None or inverse[1] is None:
        return None
    return np.asarray(inverse[1].T @ found.geometry.matrix @ inverse[0])


def _inverse_intrinsics(camera: AnyCamera, points: Points) -> Matrix | None:
    """The matrix from pixels to rays; None if the camera is no pinhole, as far as the points can tell."""
    origin, right, down = rays_and_focal(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), camera)[0]
    matrix = np.array([[*row] for row in zip(right - origin, down - origin, origin, strict=True)] + [[0.0, 0.0, 1.0]])
    straight = np.asarray(points, np.float64) @ matrix[:2, :2].T + origin
    return matrix if np.allclose(straight, rays_and_focal(points, camera)[0], atol=1e-6) else None


def short_names(first: str, second: str) -> tuple[str, str]:
    """Names of files, with as many of their folders as tell them apart."""
    parts = Path(first).parts, Path(second).parts
    count = next((n for n in range(1, 1 + max(map(len, parts))) if parts[0][-n:] != parts[1][-n:]), 1)
    return str(Path(*parts[0][-count:])), str(Path(*parts[1][-count:]))


def _bars(descriptors: FloatArray) -> dict[str, Any]:
    """Descriptors as bytes; the largest value of all of them is 127."""
    most = max(float(np.abs(descriptors).max(initial=0)), 1e-6)
    return pack_array(np.rint(descriptors * (127 / most)).astype(np.int8))
