"""Which keypoints of two images show the same place, given the warp between the images.

The rules are the paper's: within 1.5 px of each other after the warp, each the other's nearest, orientations that
agree within 25 degrees once the local warp is taken into account, no two correspondences closer than 7 px. Scales may
disagree: that is what a log-polar descriptor must learn to live with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from logpolar.keypoints import FloatArray, Keypoints

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class CorrespondenceRules:
    max_distance: float = 1.5  # pixels of the second image
    max_angle: float = 25.0  # degrees
    min_spacing: float = 7.0  # pixels, in both images
    max_count: int = 512  # of one image pair


@dataclass(frozen=True, eq=False)
class Correspondences:
    """Keypoint k of ``first`` shows the same place as keypoint k of ``second``.

    ``log_scale_ratio`` (N,): ln(size in the second image / size the warp predicts there); 0 is perfect agreement.
    ``angle_residual`` (N,): degrees, angle in the second image less the angle the warp predicts.
    """

    first: Keypoints
    second: Keypoints
    log_scale_ratio: FloatArray
    angle_residual: FloatArray

    def __len__(self) -> int:
        return len(self.first)


def find_correspondences(
    first: Keypoints,
    second: Keypoints,
    homography: Matrix,
    rules: CorrespondenceRules,
    random: np.random.Generator,
) -> Correspondences:
    """Correspondences of two sets of keypoints under a homography that maps the first image to the second."""
    if len(first) == 0 or len(second) == 0:
        return Correspondences(first[:0], second[:0], np.zeros(0, np.float32), np.zeros(0, np.float32))
    warped, jacobian = warp_points(homography, first.xy)
    radians = np.radians(first.angle.astype(np.float64))
    direction = np.einsum("nij,nj->ni", jacobian, np.stack([np.cos(radians), np.sin(radians)], axis=1))
    angle = np.degrees(np.arctan2(direction[:, 1], direction[:, 0]))
    size = first.size * np.sqrt(np.abs(np.linalg.det(jacobian)))

    distance = np.linalg.norm(warped[:, None] - second.xy[None], axis=2)
    residual = wrap_degrees(second.angle[None] - angle[:, None])
    # SIFT puts several keypoints of different angle at one place: only those that agree compete.
    cost = np.where((distance <= rules.max_distance) & (np.abs(residual) <= rules.max_angle), distance, np.inf)
    nearest = cost.argmin(axis=1)
    index = np.arange(len(first))
    mutual = np.isfinite(cost[index, nearest]) & (cost.argmin(axis=0)[nearest] == index)
    here, there = index[mutual], nearest[mutual]

    ratio = np.log(second.size[there] / size[here])
    keep = _spread_out(first.xy[here], second.xy[there], np.abs(ratio), rules, random)
    here, there, ratio = here[keep], there[keep], ratio[keep]
    angles = residual[here, there].astype(np.float32)
    return Correspondences(first[here], second[there], ratio.astype(np.float32), angles)


def warp_points(homography: Matrix, xy: NDArray[np.floating]) -> tuple[Matrix, Matrix]:
    """Points (N, 2) through a homography, and the Jacobian (N, 2, 2) of the map at each."""
    ones = np.ones((len(xy), 1))
    projected = np.concatenate([xy, ones], axis=1) @ homography.T
    depth = projected[:, 2:]
    warped = projected[:, :2] / depth
    jacobian = (homography[None, :2, :2] - warped[:, :, None] * homography[None, 2:, :2]) / depth[:, :, None]
    return warped, jacobian


def wrap_degrees(angle: NDArray[np.floating]) -> NDArray[np.floating]:
    """Angles in [-180, 180)."""
    return np.remainder(angle + 180, 360) - 180


def _spread_out(
    first: NDArray[np.floating],
    second: NDArray[np.floating],
    mismatch: NDArray[np.floating],
    rules: CorrespondenceRules,
    random: np.random.Generator,
) -> NDArray[np.intp]:
    """Indices of correspondences far enough from each other in both images; large scale mismatches go first."""
    # Mismatches above 1.5x are rare and what training is for, so they win the place; the rest is drawn at random.
    order = np.lexsort((random.random(len(first)), mismatch < np.log(1.5)))
    kept: list[int] = []
    for candidate in order:
        if len(kept) == rules.max_count:
            break
        near = min(
            (np.abs(points[kept] - points[candidate]).max(axis=1, initial=0).min(initial=np.inf) for points in (first, second))
        )
        if near >= rules.min_spacing or not kept:
            kept.append(int(candidate))
    return np.array(kept, np.intp)
