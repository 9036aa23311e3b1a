"""Telling patches of scenes apart: the paper's Tables 1 and 2, and its Fig. 4.

Right pairs are the correspondences of image pairs; wrong ones are a keypoint and any other of the second image that is
not near to a matched one, see ``evaluation.pairs``. FPR95 has one threshold for all pairs of a scene; what is said of
several scenes is their mean, each counting the same.

Fig. 4 breaks FPR95 down by how far the detector is off: by the ratio of the scales, 1 and more, once the warp between
the images is taken into account, and by the angle between the orientations. The paper does not say how. Here a class
has the threshold that accepts 95 % of its own right pairs, and its figure is the share of all wrong pairs of the scene
that are then accepted. With one threshold for all classes, what differs between them would be recall. Classes with
fewer than ``FEWEST`` right pairs are left out of the mean over scenes: their threshold is about the worst of a handful.

Intervals are those of a bootstrap over image pairs, within each scene: they say how much the choice of the pairs
matters, not how much that of the scenes does. A resample has a threshold of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.files import CorrespondenceFile
from logpolar.errors import LogpolarError
from logpolar.evaluation.cache import DescriptorCache, scene_identity
from logpolar.evaluation.descriptors.keypoint_sources import FixedSize, with_fixed_size
from logpolar.evaluation.descriptors.registry import Descriptor
from logpolar.evaluation.metrics import threshold95
from logpolar.evaluation.pairs import (
    DescribedFile,
    DescribedPair,
    Gathered,
    Resize,
    Score,
    count_accepted,
    gather,
    mean_score,
)
from logpolar.storage.documents import rounded

SCALE_EDGES = tuple(np.geomspace(1, 4, 7).tolist())
"""Classes of the ratio of scales, equally wide in its logarithm; 2x is an edge."""

ANGLE_EDGES = (0.0, 5.0, 10.0, 15.0, 20.0, 25.0)
"""Classes of the angle between orientations, in degrees."""

FEWEST = 50
"""Right pairs that a class needs."""

Table = NDArray[np.float64]
Progress = Callable[[list[int]], Iterable[int]]


@dataclass(frozen=True)
class SceneOptions:
    """Which image pairs of scenes are taken, and what of their keypoints; see ``keypoint_sources``."""

    part: str | None = None
    pairs: int = 0  # at most, 0 for all
    seed: int = 0
    fixed_size: FixedSize = None

    def resize(self) -> Resize | None:
        if self.fixed_size is None:
            return None
        return lambda size, keypoints: with_fixed_size(size, keypoints, self.fixed_size)

    def cached(self, folder: Path | None, descriptor: Descriptor, file: CorrespondenceFile) -> DescriptorCache:
        """The cache of a descriptor on a file: all protocols on scenes share it, for they describe all keypoints."""
        settings = {"fixed_size": self.fixed_size, "opencv": cv2.__version__}  # OpenCV decodes the images
        return DescriptorCache(folder, descriptor, "scene", scene_identity(file), settings)


@dataclass(frozen=True, eq=False)
class Classes:
    """Fig. 4 of a scene, or of several: (angles, scales), see ``ANGLE_EDGES`` and ``SCALE_EDGES``."""

    counts: NDArray[np.int64]  # right pairs
    fpr95: Table  # NaN where there are too few

    def to_dict(self) -> dict[str, Any]:
        shares = [[rounded(value, 7) for value in row] for row in self.fpr95.tolist()]
        return {"counts": self.counts.tolist(), "fpr95": shares}


@dataclass(frozen=True, eq=False)
class SceneResult:
    """A descriptor on a scene, or on the mean of several."""

    score: Score
    fpr95_samples: Table  # (B,) of resampled image pairs
    rank1_samples: Table  # (B,)
    classes: Classes

    def interval(self, name: str) -> tuple[float, float]:
        """95 % of the resamples are within; ``name`` is fpr95 or rank1."""
        samples: Table = getattr(self, f"{name}_samples")
        if len(samples) == 0:
            return math.nan, math.nan
        low, high = np.quantile(samples, [0.025, 0.975]).tolist()
        return low, high

    def to_dict(self) -> dict[str, Any]:
        """Plain values; FPR95 to more digits than usual, since that of a good descriptor is small."""
        values: dict[str, Any] = {name: rounded(value, 7) for name, value in asdict(self.score).items()}
        intervals = {f"{name}_interval": [rounded(v, 7) for v in self.interval(name)] for name in ("fpr95", "rank1")}
        return values | intervals | {"classes": self.classes.to_dict()}


def describe_scene(
    file: CorrespondenceFile,
    descriptor: Descriptor,
    options: SceneOptions,
    cache: Path | None = None,
    progress: Progress = iter,
) -> DescribedFile:
    """Pairs of a scene with their descriptors, which are kept in the folder ``cache``; without any pair, an error."""
    with options.cached(cache, descriptor, file) as described:
        pairs = DescribedFile(file, described, options.part, options.pairs, options.seed, options.resize(), progress)
    if len(pairs) == 0:
        where = f"the part {options.part} of this file" if options.part else "this file"
        raise LogpolarError(f"{file.path}: there are no correspondences in {where}")
    return pairs


def score_scene(pairs: Iterable[DescribedPair], resamples: int = 1000, seed: int = 0) -> SceneResult:
    """The result of the pairs of one scene, at least one.

    Goes through them twice: thresholds, of resamples and of classes too, depend on right pairs alone.
    """
    gathered = gather(pairs)
    class_of = classes_of(gathered)
    cells = (len(ANGLE_EDGES) - 1) * (len(SCALE_EDGES) - 1)
    counts = np.bincount(class_of[class_of >= 0], minlength=cells)
    weights = _draw(int(gathered.pair.max()) + 1, resamples, seed)
    by_class = [threshold95(gathered.positive[class_of == cell]) if counts[cell] else 0.0 for cell in range(cells)]
    thresholds = [threshold95(gathered.positive), *by_class, *_resampled_thresholds(gathered, weights)]
    accepted, totals = count_accepted(pairs, thresholds)
    shares = accepted[:, : 1 + cells].sum(axis=0) / max(int(totals.sum()), 1)
    fpr95 = np.where(counts < FEWEST, np.nan, shares[1:])
    shape = len(ANGLE_EDGES) - 1, len(SCALE_EDGES) - 1
    return SceneResult(
        score=gathered.score(float(shares[0]) if totals.sum() else math.nan),
        fpr95_samples=(weights * accepted[:, 1 + cells :].T).sum(axis=1) / np.maximum(weights @ totals, 1),
        rank1_samples=_resampled_mean(gathered, weights),
        classes=Classes(counts.reshape(shape), fpr95.reshape(shape)),
    )


def classes_of(gathered: Gathered) -> NDArray[np.intp]:
    """(N,): the class of each right pair, angles by scales row by row; -1 of those beyond the last edge."""
    mismatch = np.exp(np.abs(gathered.log_scale_ratio.astype(np.float64)))
    angle, scale = _bin(np.abs(gathered.angle_residual), ANGLE_EDGES), _bin(mismatch, SCALE_EDGES)
    return np.where((angle < 0) | (scale < 0), -1, angle * (len(SCALE_EDGES) - 1) + scale)


def mean_result(results: Sequence[SceneResult]) -> SceneResult:
    """The mean of scenes, each counting the same; a class is that of the scenes which have enough right pairs in it."""
    tables = np.stack([result.classes.fpr95 for result in results])
    known = np.isfinite(tables).sum(axis=0)
    means = np.where(known > 0, np.nansum(tables, axis=0) / np.maximum(known, 1), np.nan)
    return SceneResult(
        score=mean_score([result.score for result in results]),
        fpr95_samples=np.mean([result.fpr95_samples for result in results], axis=0),
        rank1_samples=np.mean([result.rank1_samples for result in results], axis=0),
        classes=Classes(np.sum([result.classes.counts for result in results], axis=0), means),
    )


def _bin(values: NDArray[np.floating], edges: Sequence[float]) -> NDArray[np.intp]:
    """The class of each value, the last one with its upper edge; -1 outside."""
    found = np.searchsorted(edges, values, side="right") - 1
    found[values == edges[-1]] = len(edges) - 2
    return np.where((found < 0) | (found > len(edges) - 2), -1, found)


def _draw(pairs: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """(B, P): how often each image pair is in a resample."""
    drawn = np.random.default_rng(seed).integers(0, pairs, (resamples, pairs))
    rows = np.arange(resamples)[:, None] * pairs
    return np.bincount((drawn + rows).ravel(), minlength=resamples * pairs).reshape(resamples, pairs)


def _resampled_thresholds(gathered: Gathered, weights: NDArray[np.int64]) -> list[float]:
    """``threshold95`` of each resample: where the sorted right pairs, as often as they were drawn, reach 95 %."""
    order = np.argsort(gathered.positive, kind="stable")
    distance, pair = gathered.positive[order], gathered.pair[order]
    thresholds = []
    for weight in weights:
        reached = np.cumsum(weight[pair])
        needed = math.ceil(0.95 * int(reached[-1]) - 1e-9)
        thresholds.append(float(distance[np.searchsorted(reached, needed)]))
    return thresholds


def _resampled_mean(gathered: Gathered, weights: NDArray[np.int64]) -> Table:
    hits = np.bincount(gathered.pair, gathered.hit, weights.shape[1])
    counts = np.bincount(gathered.pair, minlength=weights.shape[1])
    return np.asarray((weights @ hits) / np.maximum(weights @ counts, 1), np.float64)
