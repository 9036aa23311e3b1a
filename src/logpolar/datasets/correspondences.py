"""Which keypoints of two images show the same place, given the warp between the images.

The rules are the paper's: within 1.5 px of each other after the warp, each the other's nearest, orientations that
agree within 25 degrees once the local warp is taken into account, no two correspondences closer than 7 px. Scales may
disagree: that is what a log-polar descriptor must learn to live with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from logpolar.keypoints import FloatArray, Keypoints, keep_apart

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

    # SIFT puts several keypoints of different angle at one place: only pairs that agree in angle compete.
    here, there = _close_pairs(warped.astype(np.float32), second.xy, rules.max_distance)
    residual = wrap_degrees(second.angle[there] - angle[here])
    agree = np.abs(residual) <= rules.max_angle
    here, there, residual = here[agree], there[agree], residual[agree]
    distance = np.linalg.norm(warped[here] - second.xy[there], axis=1)
    mutual = _is_nearest(here, distance, np.abs(residual)) & _is_nearest(there, distance, np.abs(residual))
    here, there, residual = here[mutual], there[mutual], residual[mutual]

    ratio = np.log(second.size[there] / size[here])
    # Scale mismatches above 1.5x are rare and what training is for, so they go first; the rest is drawn at random.
    order = np.lexsort((random.random(len(ratio)), np.abs(ratio) < np.log(1.5))).tolist()
    keep = keep_apart(order, (first.xy[here], second.xy[there]), rules.min_spacing, rules.max_count)
    return Correspondences(
        first[here[keep]],
        second[there[keep]],
        ratio[keep].astype(np.float32),
        residual[keep].astype(np.float32),
    )


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
    return np.asarray(np.remainder(angle + 180, 360) - 180)


def _close_pairs(first: FloatArray, second: FloatArray, radius: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Indices of all pairs of points at most ``radius`` apart."""
    squared = (first[:, :1] - second[:, 0]) ** 2 + (first[:, 1:] - second[:, 1]) ** 2
    here, there = np.nonzero(squared <= np.float32(radius**2))
    return here, there


def _is_nearest(
    owner: NDArray[np.intp], distance: NDArray[np.floating], residual: NDArray[np.floating]
) -> NDArray[np.bool_]:
    """Which pairs are the nearest of their owner; of equally near ones, as of SIFT's doubles, the best aligned."""
    order = np.lexsort((residual, distance, owner))
    first_of_owner = np.ones(len(order), np.bool_)
    first_of_owner[1:] = owner[order][1:] != owner[order][:-1]
    result = np.zeros(len(order), np.bool_)
    result[order[first_of_owner]] = True
    return result
