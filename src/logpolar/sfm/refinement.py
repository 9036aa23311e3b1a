"""Sub-pixel refinement of matched keypoints: the patches along a track are aligned to each other.

A detector finds the same thing at slightly different places where the viewpoint differs; verification tolerates that,
but it limits the accuracy of a model. Here the keypoints that verified matches connect form tracks. One keypoint of a
track is the reference; the patch around it is aligned to the image around every other one by the inverse compositional
algorithm: an affine map, with gain and offset removed. Where the aligned patches agree, the keypoint moves to where the
reference's centre was found.

Descriptors of wide support also match the neighbour of the right keypoint, a few pixels away. Such matches pass
verification and join two things in one track. The patches of its keypoints fall into two groups then: those that agree
with the reference, and others. Matches between the groups are dropped, and the others are aligned among themselves.

Convention: a patch's coordinates u (2,) run from -1 to 1; W (2, 3) maps (u, 1) to pixels of an image. The start is the
similarity that size and angle of the keypoints give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.distributed import show_progress
from logpolar.keypoints import Keypoints
from logpolar.matching.pairs import Pair
from logpolar.types import FloatArray

_SIDE = 15
"""Samples along a side of a patch."""

_REACH, _LEAST, _MOST = 2.0, 6.0, 14.0
"""Half a patch's side: so many sizes of the keypoint, but within these pixels of the reference image."""

_STEPS, _STILL = 12, 0.005
"""Iterations at most, and the step in pixels that is the last."""

_AGREEMENT, _DOUBT = 0.7, 0.5
"""Least correlation of aligned patches for a keypoint to move, and to stay in its track as it is."""

_FURTHEST, _FREE = 0.4, 3.0
"""Furthest move in keypoint sizes; so many pixels are always allowed."""

_ROUNDS = 3
"""How often what disagrees with its track is tried as a track of its own."""

_KEPT_SHARE, _KEPT_LEAST = 0.5, 30
"""A pair that would keep fewer of its matches loses none: its patches differ for other reasons, such as light."""

_KEPT_IMAGES = 64
_AT_ONCE = 1024
"""Patches that are aligned together: bounds the memory."""

Values = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass(frozen=True)
class RefinementReport:
    """Counts of ``refine_keypoints``."""

    tracks: int
    keypoints: int  # in tracks
    moved: int  # of them
    median_move: float  # in pixels; 0 if none moved
    dropped: int = 0  # matches that join different things


@dataclass(frozen=True, eq=False)
class RefinedKeypoints:
    positions: dict[str, FloatArray]  # (N, 2) of every image's keypoints
    kept: dict[Pair, NDArray[np.bool_]]  # (K,), of every pair's matches
    report: RefinementReport


def refine_keypoints(
    keypoints: Mapping[str, Keypoints],
    matches: Mapping[Pair, NDArray[np.integer]],
    read: Callable[[str], FloatArray],
    progress: bool = False,
) -> RefinedKeypoints:
    """Positions of keypoints, moved where their track says so, and which matches hold.

    ``matches``: verified ones (K, 2) by pair of names; ``read``: the gray image of a name, in whose pixels the
    keypoints are.
    """
    names = list(keypoints)
    starts = dict(zip(names, np.cumsum([0, *(len(keypoints[name]) for name in names)]), strict=False))
    edges = {
        (first, second): np.asarray(rows, np.int64).reshape(-1, 2) + np.array([starts[first], starts[second]])
        for (first, second), rows in matches.items()
    }
    table = np.concatenate([np.zeros((0, 4)), *(keypoints[name].table.astype(np.float64) for name in names)])
    image = np.repeat(np.arange(len(names)), [len(keypoints[name]) for name in names])
    pyramids = lru_cache(_KEPT_IMAGES)(lambda number: _pyramid(read(names[number])))
    tracks = _Tracks(table, image, np.concatenate([np.zeros((0, 2), np.int64), *edges.values()]))
    with show_progress(len(tracks.todo()), "refinement", "keypoint", progress) as bar:
        for _ in range(_ROUNDS):
            if not tracks.align(pyramids, bar.update):
                break
    kept = {pair: _kept(tracks.joined(rows)) for pair, rows in edges.items()}
    parts = np.split(tracks.xy.astype(np.float32), np.cumsum([len(keypoints[name]) for name in names])[:-1])
    report = tracks.report(sum(int((~each).sum()) for each in kept.values()))
    return RefinedKeypoints(dict(zip(names, parts, strict=True)), kept, report)


def _kept(joined: NDArray[np.bool_]) -> NDArray[np.bool_]:
    enough = joined.sum() >= max(_KEPT_SHARE * len(joined), min(_KEPT_LEAST, len(joined)))
    return joined if enough else np.ones_like(joined)


class _Tracks:
    """Keypoints (N) of all images, as rows of ``table``, the matches (E, 2) between them, and what is settled."""

    def __init__(self, table: Values, image: Rows, edges: NDArray[np.int64]) -> None:
        self._table, self._image, self._edges = table, image, edges
        self.xy = table[:, :2].copy()
        self._settled = np.zeros(len(table), np.intp)  # the round in which a keypoint agreed with its track, from 1
        self._rounds = 0
        self._moves: list[Values] = [np.zeros(0)]
        self._first = self._reference()

    def _reference(self) -> Rows:
        """Of keypoints in tracks of those that are not settled."""
        return reference_of(len(self._table), self._edges[~self._settled[self._edges].any(axis=1)])

    def todo(self, reference: Rows | None = None) -> Rows:
        """Keypoints to be aligned to their reference, few images at a time."""
        reference = self._first if reference is None else reference
        rows = np.flatnonzero((reference >= 0) & (reference != np.arange(len(reference))))
        return rows[np.lexsort((self._image[reference[rows]], self._image[rows]))]

    def align(self, pyramids: Callable[[int], list[FloatArray]], done: Callable[[int], object]) -> bool:
        """Align what is not settled; whether anything was."""
        reference = self._reference()
        todo, before = self.todo(reference), np.count_nonzero(self._settled)
        self._rounds += 1
        for start in range(0, len(todo), _AT_ONCE):
            rows = todo[start : start + _AT_ONCE]
            found, near, agreement = _align(self._table, self._image, rows, reference[rows], pyramids)
            moves, stays = near & (agreement >= _AGREEMENT), near & (agreement >= _DOUBT)
            self._moves.append(np.linalg.norm(found - self.xy[rows], axis=1)[moves])
            self.xy[rows[moves]] = found[moves]
            self._settled[rows[stays]] = self._settled[reference[rows[stays]]] = self._rounds
            done(len(rows))
        return bool(np.count_nonzero(self._settled) > before)

    def joined(self, edges: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which matches join keypoints that are settled in the same round, or both are not."""
        return np.asarray(self._settled[edges[:, 0]] == self._settled[edges[:, 1]])

    def report(self, dropped: int) -> RefinementReport:
        lengths, todo = np.concatenate(self._moves), self.todo()
        tracks = len(np.unique(self._first[todo]))
        median = float(np.median(lengths)) if len(lengths) else 0.0
        return RefinementReport(tracks, len(todo) + tracks, len(lengths), median, dropped)


def reference_of(count: int, edges: NDArray[np.int64]) -> Rows:
    """For each of ``count`` keypoints the one of its track with the most matches, or -1 without a track.

    ``edges`` (E, 2): matched keypoints; a track is a connected component.
    """
    label = np.arange(count)
    while len(edges):  # labels spread along edges; halving of paths makes it a few rounds
        low = np.minimum(label[edges[:, 0]], label[edges[:, 1]])
        before = label.copy()
        for side in (0, 1):
            np.minimum.at(label, edges[:, side], low)
            np.minimum.at(label, before[edges[:, side]], low)
        label = label[label]
        if (label == before).all():
            break
    degree = np.bincount(edges.ravel(), minlength=count) if len(edges) else np.zeros(count, np.intp)
    inside = np.flatnonzero(degree)
    order = inside[np.lexsort((-inside, degree[inside], label[inside]))]  # within a track the best comes last
    last = np.flatnonzero(np.diff(label[order], append=-1))
    best = np.full(count, -1)
    best[label[order[last]]] = order[last]
    return np.where(degree > 0, best[label], -1)


def _pyramid(gray: FloatArray) -> list[FloatArray]:
    """Levels, each half of the one before; pixel i of a level lies on pixel 2 i of the finer one."""
    levels = [np.asarray(gray, np.float32)]
    while min(levels[-1].shape) > 16 and len(levels) < 8:
        levels.append(np.asarray(cv2.pyrDown(levels[-1]), np.float32))
    return levels


def _grid() -> Values:
    """(S, 3): (u, 1) of a patch's samples, row by row."""
    line = np.linspace(-1, 1, _SIDE)
    u, v = np.meshgrid(line, line)
    return np.stack([u.ravel(), v.ravel(), np.ones(u.size)], axis=1)


def _warps(table: Values, reach: Values) -> Values:
    """W (N, 2, 3) of keypoints (x, y, size, angle) whose patches reach so many sizes."""
    half, phi = reach * table[:, 2], np.radians(table[:, 3])
    cosine, sine = half * np.cos(phi), half * np.sin(phi)
    rows = np.stack([cosine, -sine, table[:, 0], sine, cosine, table[:, 1]], axis=1)
    return rows.reshape(-1, 2, 3)


def _sample(warps: Values, image: Rows, pyramids: Callable[[int], list[FloatArray]]) -> Values:
    """Values (N, S) of patches, each from the level whose pixels are about as far apart as the samples."""
    spacing = np.sqrt(np.abs(np.linalg.det(warps[:, :, :2]))) * 2 / (_SIDE - 1)
    places = (_grid() @ warps.transpose(0, 2, 1)).astype(np.float32)
    values = np.empty(places.shape[:2], np.float32)
    wanted = np.clip(np.floor(np.log2(np.maximum(spacing, 1e-6)) + 0.5), 0, 7).astype(np.intp)
    for number in np.unique(image):
        levels = pyramids(int(number))
        level = np.minimum(wanted, len(levels) - 1)
        for each in np.unique(level[image == number]):
            here = np.flatnonzero((image == number) & (level == each))
            x, y = np.ascontiguousarray(np.moveaxis(places[here], 2, 0)) / np.float32(2**each)
            values[here] = cv2.remap(levels[each], x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return values


def _standardised(values: Values) -> Values:
    """Mean 0 and length 1 of each row; a flat row stays 0."""
    centred = values - values.mean(axis=1, keepdims=True)
    return np.asarray(centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-9), np.float32)


def _jacobian(patch: Values) -> Values:
    """(N, S, 6): derivatives of patches (N, S) by the entries of an affine map of u, means removed."""
    square = patch.reshape(-1, _SIDE, _SIDE)
    step = 2 / (_SIDE - 1)
    dv, du = (each.reshape(len(patch), -1) for each in np.gradient(square, step, axis=(1, 2)))
    rows = np.concatenate([slope[:, :, None] * _grid()[None].astype(np.float32) for slope in (du, dv)], axis=2)
    return np.asarray(rows - rows.mean(axis=1, keepdims=True), np.float32)


def _align(
    table: Values, image: Rows, rows: Rows, reference: Rows, pyramids: Callable[[int], list[FloatArray]]
) -> tuple[Values, NDArray[np.bool_], Values]:
    """Where the references' centres are in the images of ``rows`` (N, 2), whether that is near the keypoints, and the
    correlation of the patches.
    """
    reach = np.clip(_REACH * table[reference, 2], _LEAST, _MOST) / table[reference, 2]
    patch = _standardised(_sample(_warps(table[reference], reach), image[reference], pyramids))
    jacobian = _jacobian(patch)
    hessian = np.matmul(jacobian.transpose(0, 2, 1), jacobian)
    # A patch without texture in some direction would slide along it; a little damping stops it.
    damping = 1e-3 * np.einsum("nii->n", hessian) / 6 + 1e-9
    inverse = np.linalg.inv(hessian + damping[:, None, None] * np.eye(6))
    warps = _warps(table[rows], reach)
    best, most = warps.copy(), np.full(len(rows), -1.0)
    furthest = np.maximum(_FURTHEST * table[rows, 2], _FREE)
    active = np.arange(len(rows))
    for _ in range(_STEPS + 1):
        values = _standardised(_sample(warps[active], image[rows[active]], pyramids))
        agreement = np.einsum("ns,ns->n", values, patch[active])
        better = agreement > most[active]
        best[active[better]], most[active[better]] = warps[active[better]], agreement[better]
        slope = (values - patch[active])[:, None] @ jacobian[active]
        change = np.clip((slope @ inverse[active]).reshape(-1, 2, 3), -0.3, 0.3)
        square = np.concatenate([change + np.eye(2, 3), np.tile([[[0.0, 0, 1]]], (len(active), 1, 1))], axis=1)
        moved = warps[active] @ np.linalg.inv(square)
        step = np.linalg.norm(moved[:, :, 2] - warps[active, :, 2], axis=1)
        away = np.linalg.norm(moved[:, :, 2] - table[rows[active], :2], axis=1)
        warps[active] = moved
        active = active[(step > _STILL) & (away < 2 * furthest[active])]  # the others have converged, or diverged
    found = best[:, :, 2]
    moved = np.linalg.norm(found - table[rows, :2], axis=1)
    stretch = np.sqrt(np.abs(np.linalg.det(best[:, :, :2]))) / (reach * table[rows, 2])
    return found, (stretch > 0.5) & (stretch < 2) & (moved <= furthest), most
