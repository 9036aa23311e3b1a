"""Detectors: how many keypoints are found again in another image, and how precisely.

Data are HPatches sequences, lists of aligned image pairs (``datasets.aligned``), and COLMAP workspaces with depth maps.

Convention:
    A keypoint counts if its place in the other image is known and visible there: within the image and, in workspaces,
    on a surface that both depth maps show. Repeatability is the fraction of these, of both images, with a keypoint of
    the other image within the threshold; the localisation error is the mean error of those. The error of two keypoints
    is the geometric mean of their distances in the first image and in the second, so that it does not depend on which
    image shows the scene larger; where one of the two is not known, the other distance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logpolar.evaluation.descriptors.keypoint_sources import open_source
from logpolar.evaluation.descriptors.registry import Method
from logpolar.evaluation.detector_pairs import DetectorPair, read_pairs
from logpolar.evaluation.options import DetectorsOptions, RunOptions, recorded
from logpolar.evaluation.protocol import Protocol, Results, bar, check_scene_names, decimal, percent
from logpolar.geometry.radius_search import close_pairs
from logpolar.images import to_bytes
from logpolar.storage.documents import rounded
from logpolar.types import FloatArray

_MEAN = "mean"


class Detectors(Protocol):
    """Repeatability and localisation error of detectors, named by ``-d`` as ``--detector`` elsewhere."""

    name = "detectors"
    compared = "detector"
    columns = ("data", "repeatability %", "error, px", "keypoints", "N (pairs)")

    def __init__(self, run: RunOptions, paths: Sequence[Path], options: DetectorsOptions) -> None:
        super().__init__(run)
        self._paths, self._test = paths, options
        self.options, self.max_keypoints = recorded(options), options.keypoints

    def open(self, spec: str) -> Method:
        source = open_source(spec, self._test.keypoints, self._test.contrast, device=self.run.engine["device"])
        return Method(spec, spec, source.identity, None, source)

    def prepare(self) -> None:
        names = [path.stem if path.is_file() else path.name for path in self._paths]
        check_scene_names(names, _MEAN)
        self._sets = {name: read_pairs(path, self._test) for name, path in zip(names, self._paths, strict=True)}
        self.data = {name: {"pairs": len(pairs)} for name, pairs in self._sets.items()}

    def score(self, method: Method) -> dict[str, DetectorScore]:
        assert method.source is not None
        found = {}
        for name, pairs in self._sets.items():
            known: dict[str, FloatArray] = {}
            scores = []
            for pair in bar(f"{method.name}, {name}", "pair")(pairs):
                for image in (pair.first, pair.second):
                    if image.key not in known:
                        known[image.key] = method.source.detect(to_bytes(image.read())).xy
                scores.append(measure(pair, known[pair.first.key], known[pair.second.key], self._test.threshold))
            found[name] = _mean_score(scores)
        return found

    def report(self, results: Results, scores: Mapping[str, dict[str, DetectorScore]]) -> None:
        for name, found in scores.items():
            rows = {**found, _MEAN: _mean_score(list(found.values()))} if len(found) > 1 else found
            results.results[name] = {each: score.to_dict() for each, score in rows.items()}
            for each, score in rows.items():
                count = f"{score.counted} ({score.pairs})"
                cells = [percent(score.repeatability), decimal(score.error, 3), f"{score.keypoints:.0f}", count]
                results.add(name, [each, *cells])
                results.records[""].append({"detector": name, "data": each, **score.to_dict()})


@dataclass(frozen=True)
class DetectorScore:
    """Means over image pairs."""

    pairs: int
    counted: int  # keypoints whose place in the other image is known, of all pairs
    keypoints: float  # of an image
    repeatability: float
    error: float  # pixels

    def to_dict(self) -> dict[str, Any]:
        fractions = {"repeatability": rounded(self.repeatability), "error": rounded(self.error)}
        return {"pairs": self.pairs, "counted": self.counted, "keypoints": rounded(self.keypoints), **fractions}


def measure(pair: DetectorPair, first: FloatArray, second: FloatArray, threshold: float) -> DetectorScore:
    """Repeatability of keypoints (N, 2) and (M, 2) of a pair."""
    sent, known = pair.forward(first)
    back, known_back = pair.backward(second)
    # One of the two distances of such a pair is within the threshold.
    ahead = close_pairs(np.where(known[:, None], sent, np.nan), second, threshold)
    behind = close_pairs(np.where(known_back[:, None], back, np.nan), first, threshold)
    rows, columns = np.unique(np.concatenate([np.stack(ahead, 1), np.stack(behind[::-1], 1)]), axis=0).T
    there = np.linalg.norm(sent[rows] - second[columns], axis=1)
    here = np.linalg.norm(back[columns] - first[rows], axis=1)
    error = np.where(known[rows], np.where(known_back[columns], np.sqrt(there * here), there), here)
    least = [np.full(len(first), np.inf), np.full(len(second), np.inf)]
    for best, index in zip(least, (rows, columns), strict=True):
        np.minimum.at(best, index, error)
    counted = np.concatenate([least[0][known], least[1][known_back]])
    again = counted <= threshold
    return DetectorScore(
        1,
        len(counted),
        (len(first) + len(second)) / 2,
        float(again.mean()) if len(counted) else math.nan,
        float(counted[again].mean()) if again.any() else math.nan,
    )


def _mean_score(scores: Sequence[DetectorScore]) -> DetectorScore:
    def mean(name: str) -> float:
        values = [value for each in scores if not math.isnan(value := getattr(each, name))]
        return float(np.mean(values)) if values else math.nan

    counts = sum(each.pairs for each in scores), sum(each.counted for each in scores)
    return DetectorScore(*counts, mean("keypoints"), mean("repeatability"), mean("error"))
