"""What is known of a reconstruction, in plain values: photos, cameras, pairs, models."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from logpolar.geometry.cameras import Matrix

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Lens:
    """A camera: lens and sensor, not where it stood."""

    number: int
    kind: str  # COLMAP's name of the camera model
    width: int
    height: int
    focal: float  # pixels, mean of both directions
    parameters: tuple[float, ...]
    known_focal: bool = False  # from EXIF, or given


@dataclass(frozen=True)
class PhotoFacts:
    name: str
    keypoints: int | None = None  # None: not known
    lens: int | None = None  # number of its camera
    model: int | None = None  # number of the model it is registered in
    points: int = 0  # 3D points that it observes
    error: float | None = None  # mean reprojection error in pixels
    unreadable: str = ""  # why the photo cannot be read


@dataclass(frozen=True, eq=False)
class PairFacts:
    """Pairs of photos (P, 2), first < second, as rows of the list of photos."""

    rows: Rows
    matches: Rows  # (P,), -1: not known
    inliers: Rows  # (P,), of two-view verification; 0: not verified, -1: not known
    shared: Rows  # (P,), 3D points that both observe
    agreement: Matrix | None = None  # (P,), fraction of inliers that agree with a model; NaN: not checked

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def strength(self) -> Rows:
        """Inliers or, where they are not known, common 3D points."""
        return np.where(self.inliers >= 0, self.inliers, self.shared)


@dataclass(frozen=True, eq=False)
class SceneModel:
    """A sparse model: 3D points, and the poses of its photos."""

    number: int
    points: Matrix  # (N, 3)
    colours: NDArray[np.uint8]  # (N, 3), red, green, blue
    track_lengths: Rows  # (N,)
    photos: Rows  # (C,), rows of the list of photos
    poses: Matrix  # (C, 3, 4), world to camera
    observed: list[Rows]  # for each of these photos, rows of the points it observes, sorted
    error: float | None = None  # mean reprojection error in pixels: mean over points of the mean over their photos

    @property
    def centres(self) -> Matrix:
        """Where the cameras stood, (C, 3)."""
        return np.asarray(-np.einsum("nji,nj->ni", self.poses[:, :, :3], self.poses[:, :, 3]))


@dataclass(frozen=True, eq=False)
class Facts:
    """A reconstruction. ``models`` are sorted by size, the largest first; there may be none."""

    photos: list[PhotoFacts]
    lenses: dict[int, Lens]
    pairs: PairFacts
    models: list[SceneModel] = field(default_factory=list)

    @cached_property
    def verified(self) -> NDArray[np.bool_]:
        """(P,): pairs that hold together."""
        return self.pairs.strength > 0

    @cached_property
    def islands(self) -> list[list[int]]:
        """Photos that verified pairs connect, directly or through others; the largest set first."""
        return connected(len(self.photos), self.pairs.rows[self.verified])

    def best_pair(self, photo: int) -> tuple[int, int] | None:
        """The row of the strongest verified partner of a photo, and that strength."""
        touching = np.flatnonzero(self.verified & (self.pairs.rows == photo).any(axis=1))
        if not len(touching):
            return None
        best = touching[np.argmax(self.pairs.strength[touching])]
        return int(self.pairs.rows[best].sum() - photo), int(self.pairs.strength[best])


def connected(count: int, links: NDArray[np.integer]) -> list[list[int]]:
    """Connected components of ``count`` nodes, each sorted; large ones first, then by their first node."""
    parent = list(range(count))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for first, second in links.tolist():
        parent[root(first)] = root(second)
    groups: dict[int, list[int]] = {}
    for node in range(count):
        groups.setdefault(root(node), []).append(node)
    return sorted(groups.values(), key=lambda group: (-len(group), group))
