"""Descriptor discrimination on scenes: the paper's Tables 1 and 2, and its Fig. 4.

Positives are the correspondences of image pairs; negatives are a keypoint and any other of the second image that is not
near a matched one, see ``evaluation.pairs``. FPR95 has one threshold for all pairs of a scene; figures of several
scenes are unweighted means.

Fig. 4 breaks FPR95 down by the errors of the detector: the scale mismatch, as a ratio of 1 or more with the warp
between the images taken into account, and the angle between the orientations. The paper does not say how. Here a class
has the threshold that accepts 95 % of its own positives, and its figure is the fraction of all negatives of the scene
that are then accepted: with one threshold for all, classes would differ in recall. Classes with fewer than ``FEWEST``
positives are excluded from means: a handful of positives determines no threshold.

Intervals are bootstrapped over image pairs, within each scene: they reflect the choice of pairs, not of scenes. Each
resample has its own threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.files import CorrespondenceFile, file_names
from logpolar.errors import LogpolarError
from logpolar.evaluation.cache import scene_identity
from logpolar.evaluation.descriptors.keypoint_sources import with_fixed_size
from logpolar.evaluation.descriptors.registry import Method
from logpolar.evaluation.metrics import threshold95
from logpolar.evaluation.options import FileOptions, PatchesOptions, RunOptions, recorded
from logpolar.evaluation.pairs import (
    DescribedFile,
    DescribedPair,
    Gathered,
    Score,
    count_accepted,
    gather,
    mean_score,
)
from logpolar.evaluation.protocol import (
    MEAN_OF_SCENES,
    Protocol,
    Results,
    bar,
    check_scene_names,
    decimal,
    percent,
)
from logpolar.keypoints import Keypoints
from logpolar.storage.documents import rounded

MISMATCH_EDGES = tuple(np.geomspace(1, 4, 7).tolist())
"""Classes of the scale mismatch, equally wide in its logarithm; 2x is an edge."""

ANGLE_EDGES = (0.0, 5.0, 10.0, 15.0, 20.0, 25.0)
"""Classes of the angle between orientations, in degrees."""

FEWEST = 50
"""Fewest positives of a class."""

Table = NDArray[np.float64]


class FileProtocol(Protocol):
    """Protocols on correspondence files, one for each scene; they share their caches."""

    cached_as = "scene"

    def __init__(self, run: RunOptions, files: Sequence[Path], options: FileOptions) -> None:
        super().__init__(run)
        self.files, self._options, self.options = files, options, recorded(options)

    def prepare(self) -> None:
        identities = []
        for path in self.files:
            with CorrespondenceFile(path) as file:
                if not file.complete:
                    raise LogpolarError(f"{path}: is incomplete; rerun the command that builds it")
                identities.append({"file": path.name, **scene_identity(file)})
        names = list(file_names(self.files))
        check_scene_names(names, "mean")
        self.data = dict(zip(names, identities, strict=True))

    def described(self, method: Method) -> Iterator[tuple[str, DescribedFile]]:
        """The scenes, and their pairs with descriptors."""
        options = self._options
        settings = {"fixed_size": options.fixed_size, "opencv": cv2.__version__}  # OpenCV decodes the images
        for path, scene in zip(self.files, self.data, strict=True):
            with CorrespondenceFile(path) as file, self.cache(method, scene_identity(file), settings) as views:
                progress = bar(f"{scene}, {method.name}")
                resize = None if options.fixed_size is None else self._resize
                found = DescribedFile(file, views, options.split, options.pairs, options.seed, resize, progress)
            if len(found) == 0:
                where = f"the split {options.split} of this file" if options.split else "this file"
                raise LogpolarError(f"{path}: there are no correspondences in {where}")
            yield scene, found

    def _resize(self, size: tuple[int, int], keypoints: Keypoints) -> Keypoints:
        return with_fixed_size(size, keypoints, self._options.fixed_size)


class Patches(FileProtocol):
    """FPR95 and rank-1 by scene, and FPR95 by scale mismatch and orientation error."""

    name = "patches"
    _options: PatchesOptions

    def prepare(self) -> None:
        super().prepare()
        self.columns = [f"{scene}, FPR95 %" for scene in self.data]
        self.columns += ["mean", "95 %", "rank-1", "95 %", "rank-1, scale mismatch > 2x", "N (pairs)"]

    def score(self, method: Method) -> dict[str, SceneResult]:
        """Results by scene, and their mean."""
        resamples, seed = self._options.resamples, self._options.seed
        scenes = {scene: score_scene(pairs, resamples, seed) for scene, pairs in self.described(method)}
        return {**scenes, "mean": mean_result(list(scenes.values()))}

    def report(self, results: Results, scores: Mapping[str, dict[str, SceneResult]]) -> None:
        results.records["-classes"] = []
        for name, scenes in scores.items():
            results.results[name] = {scene: result.to_dict() for scene, result in scenes.items()}
            results.add(name, _cells(scenes))
            for scene, result in results.results[name].items():
                start, values = {"descriptor": name, "scene": scene}, dict(result)
                results.records["-classes"] += ({**start, **each} for each in _class_records(values.pop("classes")))
                for key in ("fpr95", "rank1"):
                    values[f"{key}_low"], values[f"{key}_high"] = values.pop(f"{key}_interval")
                results.records[""].append({**start, **values})
        if len(self.data) > 1:
            results.notes.append(MEAN_OF_SCENES)

        def draw() -> Any:
            from logpolar.evaluation.figures import plot_classes

            return plot_classes({name: scenes["mean"].classes for name, scenes in scores.items()})

        if scores:
            results.figures[""] = draw


def _cells(scenes: Mapping[str, SceneResult]) -> list[str]:
    mean = scenes["mean"]
    low, high = (percent(value) for value in mean.interval("fpr95"))
    least, most = (decimal(value) for value in mean.interval("rank1"))
    score = mean.score
    cells = [percent(result.score.fpr95) for result in scenes.values()]
    cells += [f"{low} - {high}", decimal(score.rank1), f"{least} - {most}", decimal(score.rank1_scales_differ_2x)]
    return [*cells, f"{score.correspondences} ({score.pairs})"]


def _class_records(classes: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for (low, high), counts, fractions in zip(pairwise(ANGLE_EDGES), classes["counts"], classes["fpr95"], strict=True):
        for (small, large), count, fraction in zip(pairwise(MISMATCH_EDGES), counts, fractions, strict=True):
            angles = {"degrees_from": low, "degrees_to": high}
            scales = {"scale_from": round(small, 4), "scale_to": round(large, 4)}
            yield {**angles, **scales, "right_pairs": count, "fpr95": fraction}


@dataclass(frozen=True, eq=False)
class Classes:
    """Fig. 4 of a scene, or of several: (angles, mismatches), see ``ANGLE_EDGES`` and ``MISMATCH_EDGES``."""

    counts: NDArray[np.int64]  # positives
    fpr95: Table  # NaN where there are too few

    def to_dict(self) -> dict[str, Any]:
        fractions = [[rounded(value, 7) for value in row] for row in self.fpr95.tolist()]
        return {"counts": self.counts.tolist(), "fpr95": fractions}


@dataclass(frozen=True, eq=False)
class SceneResult:
    """A method on a scene, or on the mean of several."""

    score: Score
    fpr95_samples: Table  # (B,) of resampled image pairs
    rank1_samples: Table  # (B,)
    classes: Classes

    def interval(self, name: str) -> tuple[float, float]:
        """The 95 % interval of ``name``, fpr95 or rank1."""
        samples: Table = getattr(self, f"{name}_samples")
        if len(samples) == 0:
            return math.nan, math.nan
        low, high = np.quantile(samples, [0.025, 0.975]).tolist()
        return low, high

    def to_dict(self) -> dict[str, Any]:
        """Plain values, with more digits than usual: FPR95 of a good descriptor is small."""
        values: dict[str, Any] = {name: rounded(value, 7) for name, value in asdict(self.score).items()}
        intervals = {f"{name}_interval": [rounded(v, 7) for v in self.interval(name)] for name in ("fpr95", "rank1")}
        return values | intervals | {"classes": self.classes.to_dict()}


def score_scene(pairs: Iterable[DescribedPair], resamples: int = 1000, seed: int = 0) -> SceneResult:
    """The result of the pairs of one scene, at least one. Iterates twice: thresholds depend on all positives."""
    gathered = gather(pairs)
    class_of = classes_of(gathered)
    cells = (len(ANGLE_EDGES) - 1) * (len(MISMATCH_EDGES) - 1)
    counts = np.bincount(class_of[class_of >= 0], minlength=cells)
    weights = _draw(int(gathered.pair.max()) + 1, resamples, seed)
    by_class = [threshold95(gathered.positive[class_of == cell]) if counts[cell] else 0.0 for cell in range(cells)]
    thresholds = [threshold95(gathered.positive), *by_class, *_resampled_thresholds(gathered, weights)]
    accepted, totals = count_accepted(pairs, thresholds)
    fractions = accepted[:, : 1 + cells].sum(axis=0) / max(int(totals.sum()), 1)
    fpr95 = np.where(counts < FEWEST, np.nan, fractions[1:])
    shape = len(ANGLE_EDGES) - 1, len(MISMATCH_EDGES) - 1
    return SceneResult(
        score=gathered.score(float(fractions[0]) if totals.sum() else math.nan),
        fpr95_samples=(weights * accepted[:, 1 + cells :].T).sum(axis=1) / np.maximum(weights @ totals, 1),
        rank1_samples=_resampled_mean(gathered, weights),
        classes=Classes(counts.reshape(shape), fpr95.reshape(shape)),
    )


def classes_of(gathered: Gathered) -> NDArray[np.intp]:
    """(N,): the class of each positive, angles by mismatches in row-major order; -1 beyond the last edges."""
    mismatch = np.exp(np.abs(gathered.log_scale_ratio.astype(np.float64)))
    angle, scale = _bin(np.abs(gathered.angle_residual), ANGLE_EDGES), _bin(mismatch, MISMATCH_EDGES)
    return np.where((angle < 0) | (scale < 0), -1, angle * (len(MISMATCH_EDGES) - 1) + scale)


def mean_result(results: Sequence[SceneResult]) -> SceneResult:
    """The unweighted mean of scenes; that of a class is over scenes with enough positives in it."""
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
    """The class of each value, the last one including its upper edge; -1 outside."""
    found = np.searchsorted(edges, values, side="right") - 1
    found[values == edges[-1]] = len(edges) - 2
    return np.where((found < 0) | (found > len(edges) - 2), -1, found)


def _draw(pairs: int, resamples: int, seed: int) -> NDArray[np.int64]:
    """(B, P): multiplicity of each image pair in a resample."""
    drawn = np.random.default_rng(seed).integers(0, pairs, (resamples, pairs))
    rows = np.arange(resamples)[:, None] * pairs
    return np.bincount((drawn + rows).ravel(), minlength=resamples * pairs).reshape(resamples, pairs)


def _resampled_thresholds(gathered: Gathered, weights: NDArray[np.int64]) -> list[float]:
    """``threshold95`` of each resample: where the sorted positives, with multiplicity, reach 95 %."""
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
