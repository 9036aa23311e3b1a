"""Corresponding keypoints of two images, given the warp between the images.

The rules are the paper's: within 1.5 px of each other after the warp, mutually nearest, orientations that agree within
25 degrees given the local warp, no two correspondences closer than 7 px. Scales may disagree: a log-polar descriptor
must learn to tolerate it. Beyond 8x, though, two keypoints coincide by chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.options import CorrespondenceRules
from logpolar.geometry.cameras import Matrix
from logpolar.geometry.homography import warp_points, warp_shape, wrap_degrees, zoom_of
from logpolar.geometry.radius_search import Indices, close_pairs, keep_apart
from logpolar.keypoints import Keypoints
from logpolar.types import FloatArray

PAIR_CAUSES = (
    "outside the other image",
    "no keypoint near",
    "depth of the other unknown",
    "occluded",
    "cycle does not close",
    "orientation differs",
    "scale differs",
    "not each other's nearest",
    "too close to another",
    "over the limit per pair",
)
"""Why a keypoint of the first image with known warp has no correspondence; the first that applies."""


@dataclass(frozen=True, eq=False)
class Correspondences:
    """Keypoint k of ``first`` shows the same place as keypoint k of ``second``.

    ``indices`` (N, 2): their rows among all keypoints of their images.
    ``warp`` (N, 2, 2): the map from the first image to the second around the keypoint, d second / d first.
    ``log_scale_ratio`` (N,): ln(size in the second image / size the warp predicts there); 0 is perfect agreement.
    ``angle_residual`` (N,): degrees, angle in the second image less the angle the warp predicts.
    """

    first: Keypoints
    second: Keypoints
    indices: NDArray[np.int32]
    warp: FloatArray
    log_scale_ratio: FloatArray
    angle_residual: FloatArray

    def __len__(self) -> int:
        return len(self.first)

    @property
    def zoom(self) -> FloatArray:
        """(N,) scale of the second image over that of the first."""
        return np.asarray(zoom_of(self.warp), np.float32)

    @property
    def warped_size(self) -> FloatArray:
        """(N,) size that the warp predicts in the second image."""
        return np.asarray(self.first.size * self.zoom, np.float32)


@dataclass(frozen=True, eq=False)
class ImagePair:
    """Two 8-bit gray images, all their keypoints and correspondences: the unit of training and evaluation."""

    first: NDArray[np.uint8]
    second: NDArray[np.uint8]
    first_keypoints: Keypoints
    second_keypoints: Keypoints  # those without a partner are negatives
    correspondences: Correspondences


Check = Callable[[Indices, Indices], NDArray[np.bool_]]
"""From indices of keypoints of both images to a mask of the pairs that may correspond."""


def find_correspondences(
    first: Keypoints,
    second: Keypoints,
    homography: Matrix,
    shape: tuple[int, int],
    rules: CorrespondenceRules,
    random: np.random.Generator,
    checks: Sequence[tuple[str, Check]] = (),
) -> tuple[Correspondences, Counter[str]]:
    """Correspondences of two sets of keypoints, and the number of unmatched keypoints of the first, by cause.

    ``homography`` maps the first image to the second: one (3, 3) for all, or (N, 3, 3), one of the surface around each
    keypoint. ``shape`` is the second image's (width, height). ``checks`` are further conditions with their causes.
    """
    warped, jacobian = warp_points(homography, first.xy)
    angle, size = warp_shape(jacobian, first)
    candidates = _Candidates(*close_pairs(warped, second.xy, rules.max_distance))
    with np.errstate(invalid="ignore"):
        inside = np.asarray(((warped >= -0.5) & (warped <= np.array(shape) - 0.5)).all(axis=1))
    inside[candidates.here] = True  # a keypoint at the border may be near one just beyond it
    candidates.rejects["outside the other image"] = int((~inside).sum())
    candidates.rejects["no keypoint near"] = int(inside.sum()) - len(np.unique(candidates.here))
    for cause, check in checks:
        candidates.keep(check(*candidates.pairs), cause)

    def residual(here: Indices, there: Indices) -> NDArray[np.floating]:
        return wrap_degrees(second.angle[there] - angle[here])

    def log_ratio(here: Indices, there: Indices) -> NDArray[np.floating]:
        return np.asarray(np.log(second.size[there] / size[here]))

    # SIFT has several keypoints of different angle at one place: only pairs that agree in angle compete.
    candidates.keep(np.abs(residual(*candidates.pairs)) <= rules.max_angle, "orientation differs")
    candidates.keep(np.abs(log_ratio(*candidates.pairs)) <= np.log(rules.max_mismatch), "scale differs")
    here, there = candidates.pairs
    distance, misaligned = np.linalg.norm(warped[here] - second.xy[there], axis=1), np.abs(residual(here, there))
    mutual = _is_nearest(here, distance, misaligned) & _is_nearest(there, distance, misaligned)
    candidates.keep(mutual, "not each other's nearest")
    here, there = _choose(candidates, first, second, log_ratio(*candidates.pairs), rules, random)
    found = Correspondences(
        first[here],
        second[there],
        np.stack([here, there], axis=1).astype(np.int32),
        jacobian[here].astype(np.float32),
        log_ratio(here, there).astype(np.float32),
        residual(here, there).astype(np.float32),
    )
    return found, candidates.rejects


class _Candidates:
    """Pairs of keypoints that may correspond, and rejected keypoints of the first image by cause."""

    def __init__(self, here: Indices, there: Indices) -> None:
        self.here, self.there = here, there
        self.rejects: Counter[str] = Counter()

    @property
    def pairs(self) -> tuple[Indices, Indices]:
        return self.here, self.there

    def keep(self, mask: NDArray[np.bool_], cause: str) -> None:
        kept = self.here[mask]
        self.rejects[cause] = len(np.unique(self.here)) - len(np.unique(kept))
        self.here, self.there = kept, self.there[mask]


def _choose(
    candidates: _Candidates,
    first: Keypoints,
    second: Keypoints,
    log_ratio: NDArray[np.floating],
    rules: CorrespondenceRules,
    random: np.random.Generator,
) -> tuple[Indices, Indices]:
    """At most ``max_count`` of the candidates, spaced apart.

    Scale mismatches above 1.5x are rare and valuable in training, so they go first; the rest is in random order.
    """
    here, there = candidates.pairs
    order = np.lexsort((random.random(len(here)), np.abs(log_ratio) < np.log(1.5))).tolist()
    apart = keep_apart(order, (first.xy[here], second.xy[there]), rules.min_spacing, len(order))
    candidates.rejects["too close to another"] = len(order) - len(apart)
    candidates.rejects["over the limit per pair"] = max(len(apart) - rules.max_count, 0)
    keep = apart[: rules.max_count]
    return here[keep], there[keep]


def _is_nearest(
    owner: NDArray[np.intp], distance: NDArray[np.floating], residual: NDArray[np.floating]
) -> NDArray[np.bool_]:
    """Which pairs are the nearest of their owner; the best aligned of equally near ones (SIFT's doubles)."""
    order = np.lexsort((residual, distance, owner))
    first_of_owner = np.ones(len(order), np.bool_)
    first_of_owner[1:] = owner[order][1:] != owner[order][:-1]
    result = np.zeros(len(order), np.bool_)
    result[order[first_of_owner]] = True
    return result
