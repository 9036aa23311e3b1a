"""Cameras of a reconstruction against the true ones: the similarity between the two worlds, and what is left.

A reconstruction has a world of its own, which a rotation, a scale and a shift take to the true one. They are found by
consensus, since single cameras may be quite wrong: any two cameras give a proposal, its rotation by the orientation of
one and scale and shift by the centres of both; the best proposal decides which cameras agree, and they together give
the similarity: the mean of their rotations, then scale and shift by least squares of their centres. Orientations are
used since centres alone say nothing about a turn around the line on which they may lie.

Nothing is left to chance: all pairs of cameras propose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from logpolar.geometry.cameras import Matrix, rotation_degrees

AGREE_DEGREES = 5.0
AGREE_SHARE = 0.1
"""Cameras agree that are turned by no more than these degrees and off by no more than this share of the extent."""


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
        """How far cameras are from their middle: the median distance from the median of centres."""
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
    """Of N cameras: degrees, and distances as shares of the extent."""

    degrees: Matrix
    shares: Matrix

    @property
    def agree(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return (self.degrees <= AGREE_DEGREES) & (self.shares <= AGREE_SHARE)


def align(found: Poses, truth: Poses, extent: float) -> Similarity | None:
    """From the world of the found cameras to the true one; None for fewer than two cameras, or where all coincide.

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
    """Squares of errors in units of what still agrees; what does not agree costs the same however wrong it is."""
    parts = (errors.degrees / AGREE_DEGREES) ** 2 + (errors.shares / AGREE_SHARE) ** 2
    return float(np.minimum(parts, 2).sum())


def _propose(found: Poses, truth: Poses, i: int, j: int) -> Similarity | None:
    rotation = truth.rotations[i].T @ found.rotations[i]
    here, there = (np.linalg.norm(poses.centres[i] - poses.centres[j]) for poses in (found, truth))
    if here == 0 or there == 0:
        return None
    middles = [(poses.centres[i] + poses.centres[j]) / 2 for poses in (found, truth)]
    scale = float(there / here)
    return Similarity(rotation, scale, middles[1] - scale * rotation @ middles[0])


def _fit(found: Poses, rotations: Matrix, centres: Matrix) -> Similarity | None:
    """Least squares: the rotation nearest to all, then scale and shift; None if centres coincide, or scale is none."""
    left, _, right = np.linalg.svd(np.einsum("nji,njk->ik", rotations, found.rotations))
    rotation = left @ np.diag([1, 1, np.linalg.det(left @ right)]) @ right
    middle, true_middle = found.centres.mean(axis=0), centres.mean(axis=0)
    turned = (found.centres - middle) @ rotation.T
    spread = float((turned**2).sum())
    scale = float((turned * (centres - true_middle)).sum()) / spread if spread else 0.0
    return Similarity(rotation, scale, true_middle - scale * rotation @ middle) if scale > 0 else None
