"""How well a network tells the keypoints of image pairs apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.correspondences import ImagePair
from logpolar.evaluation.metrics import fpr95, ranks
from logpolar.keypoints import FloatArray, Keypoints

Describe = Callable[[NDArray[np.uint8], Keypoints], FloatArray]
"""An 8 bit view and its keypoints in, descriptors out."""

_NEAR = 7.0
"""Keypoints this near to the truth, in pixels, are not counted as wrong answers."""


@dataclass(frozen=True)
class Score:
    """Negatives are all other keypoints of the second view. Shares, not percent; NaN where there is nothing."""

    pairs: int
    correspondences: int
    fpr95: float
    rank1: float
    scales_differ_2x: int  # correspondences whose detected scales disagree by more than 2x
    rank1_scales_differ_2x: float
    zoom_2x: int  # correspondences that are at least 2x smaller in the second view and whose scales agree within 1.25x
    rank1_zoom_2x: float

    def to_dict(self) -> dict[str, float | None]:
        """Plain values for a card; None, unlike NaN, is JSON."""
        return {name: None if math.isnan(value) else round(value, 4) for name, value in asdict(self).items()}


def score_pairs(pairs: Iterable[ImagePair], describe: Describe) -> Score:
    """FPR95 pooled over all pairs, and the share of keypoints whose nearest neighbour is the right one."""
    positive, negative, hits, mismatch, zoom = [], [], [], [], []
    for pair in pairs:
        found = pair.correspondences
        if len(found) == 0:
            continue
        pool = _without_near(pair.second_keypoints, found.second)
        first = describe(pair.first, found.first)
        second = describe(pair.second, found.second + pool)
        distances = np.sqrt(np.maximum(2 - 2 * first @ second.T, 0))
        truth = np.arange(len(found))
        own = np.zeros(distances.shape, np.bool_)
        own[truth, truth] = True
        positive.append(distances[own])
        negative.append(distances[~own])
        hits.append(ranks(distances, truth) == 0)
        mismatch.append(np.abs(found.log_scale_ratio))
        zoom.append(found.zoom)
    if not hits:
        return Score(0, 0, math.nan, math.nan, 0, math.nan, 0, math.nan)
    hit, ratio, scale = (np.concatenate(values) for values in (hits, mismatch, zoom))
    differ, zoomed = ratio > np.log(2), (scale <= 0.5) & (ratio < np.log(1.25))
    return Score(
        pairs=len(hits),
        correspondences=len(hit),
        fpr95=fpr95(np.concatenate(positive), np.concatenate(negative)),
        rank1=float(hit.mean()),
        scales_differ_2x=int(differ.sum()),
        rank1_scales_differ_2x=_mean(hit[differ]),
        zoom_2x=int(zoomed.sum()),
        rank1_zoom_2x=_mean(hit[zoomed]),
    )


def _without_near(keypoints: Keypoints, matched: Keypoints) -> Keypoints:
    gap = np.linalg.norm(keypoints.xy[:, None] - matched.xy[None], axis=2)
    return keypoints[gap.min(axis=1) >= _NEAR]


def _mean(values: NDArray[np.bool_]) -> float:
    return float(values.mean()) if len(values) else math.nan
