"""Alignment of a reconstruction's cameras to the true ones, and the errors that remain.

The similarity between the two worlds is found by consensus, since single cameras may be far off. Any two cameras give a
proposal: its rotation from the orientation of one, scale and shift from the centres of both. The cameras that agree
with the best proposal give the similarity: the mean of their rotations, then scale and shift by least squares of their
centres. All pairs propose, so the result is deterministic.

COLMAP's own alignment (``pycolmap.align_reconstruction_to_locations``) uses centres only: it needs three cameras, and
leaves the rotation around a line of cameras undetermined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from logpolar.geometry.cameras import Matrix, rotation_degrees

AGREE_DEGREES = 5.0
AGREE_FRACTION = 0.1
"""Cameras agree within these degrees and this fraction of the extent."""


@dataclass(frozen=True, eq=False)
class Poses:
    """N cameras: X_camera = rotations[k] @ (X_world - centres[k])."""

    rotations: Matrix  # (N, 3, 3)
    centres: Matrix  # (N, 3)

    @classmethod
    def of(cls, poses: Sequence[tuple[Matrix, Matrix]]) -> Poses:
        """From rotations and centres."""
        rotations = np.array([rotation for rotation, _ in poses], np.float64).reshape(-1, 3, 3)
        return cls(rotations, np.array([centre for _, centre in poses], np.float64).reshape(-1, 3))

    def __len__(self) -> int:
        return len(self.centres)

    @property
    def extent(self) -> float:
        """The median distance of cameras from the median of their centres."""
        return float(np.median(np.linalg.norm(self.centres - np.median(self.centres, axis=0), axis=1)))


@dataclass(frozen=True, eq=False)
class Similarity:
    """X' = scale * rotation @ X + shift."""

    rotation: Matrix
    scale: float
    shift: Matrix

    def of(self, poses: Poses) -> Poses:
        """The same cameras in the other world."""
        centres = self.scale * poses.centres @ self.rotation.T + self.shift
        return Poses(poses.rotations @ self.rotation.T, centres)


@dataclass(frozen=True, eq=False)
class PoseErrors:
    """Of N cameras: rotations in degrees, and distances as fractions of the extent."""

    degrees: Matrix
    fractions: Matrix

    @property
    def agree(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return (self.degrees <= AGREE_DEGREES) & (self.fractions <= AGREE_FRACTION)


def align(found: Poses, truth: Poses, extent: float) -> Similarity | None:
    """From the world of the found cameras to the true one; None unless two cameras have different centres.

    ``extent``: the unit of distances in the true world.
    """
    proposals = (_propose(found, truth, i, j) for i in range(len(found)) for j in range(len(found)) if i != j)
    best, least = None, np.inf
    for proposal in proposals:
        if proposal is not None and (cost := _cost(pose_errors(proposal.of(found), truth, extent))) < least:
            best, least = proposal, cost
    if best is None:
        return None
    agree = pose_errors(best.of(found), truth, extent).agree
    if agree.sum() < 2:
        return best
    refined = _fit(Poses(found.rotations[agree], found.centres[agree]), truth.rotations[agree], truth.centres[agree])
    return refined or best


def pose_errors(found: Poses, truth: Poses, extent: float) -> PoseErrors:
    """Camera by camera, both in the same world."""
    degrees = rotation_degrees(found.rotations, truth.rotations)
    return PoseErrors(degrees, np.linalg.norm(found.centres - truth.centres, axis=1) / extent)


def _cost(errors: PoseErrors) -> float:
    """Truncated squared errors, in units of the limits of agreement."""
    squares = (errors.degrees / AGREE_DEGREES) ** 2 + (errors.fractions / AGREE_FRACTION) ** 2
    return float(np.minimum(squares, 2).sum())


def _propose(found: Poses, truth: Poses, i: int, j: int) -> Similarity | None:
    rotation = truth.rotations[i].T @ found.rotations[i]
    here, there = (np.linalg.norm(poses.centres[i] - poses.centres[j]) for poses in (found, truth))
    if here == 0 or there == 0:
        return None
    middles = [(poses.centres[i] + poses.centres[j]) / 2 for poses in (found, truth)]
    scale = float(there / here)
    return Similarity(rotation, scale, middles[1] - scale * rotation @ middles[0])


def _fit(found: Poses, rotations: Matrix, centres: Matrix) -> Similarity | None:
    """Least squares: the mean rotation, then scale and shift; None if centres coincide or the scale is not positive."""
    left, _, right = np.linalg.svd(np.einsum("nji,njk->ik", rotations, found.rotations))
    rotation = left @ np.diag([1, 1, np.linalg.det(left @ right)]) @ right
    middle, true_middle = found.centres.mean(axis=0), centres.mean(axis=0)
    rotated = (found.centres - middle) @ rotation.T
    spread = float((rotated**2).sum())
    scale = float((rotated * (centres - true_middle)).sum()) / spread if spread else 0.0
    return Similarity(rotation, scale, true_middle - scale * rotation @ middle) if scale > 0 else None
