"""Keypoints of a score map: local maxima with sub-pixel positions.

Convention:
    A pixel is a peak if no score within ``NMS_RADIUS`` rows and columns is higher and it is at least ``WINDOW`` from
    the map's edge. Its position is the soft-argmax of the scores s within ``WINDOW``: the mean of the pixels, weighted
    by exp(s / TEMPERATURE).
"""

from __future__ import annotations

import cv2
import numpy as np

from logpolar.types import FloatArray

NMS_RADIUS = 2
WINDOW = 2
TEMPERATURE = 0.5
"""Below 1: logits of a detector differ by a few units between neighbouring pixels."""


def find_peaks(
    scores: FloatArray,
    count: int | None,
    min_score: float = -np.inf,
    within: tuple[slice, slice] = (slice(None), slice(None)),
) -> tuple[FloatArray, FloatArray]:
    """Positions (N, 2) and scores (N,) of the ``count`` highest peaks of a map, or of all, highest first.

    ``within``: rows and columns that peaks may lie in. Peaks of equal score are in the order of rows. A flat region has
    none: all its pixels would be peaks.
    """
    height, width = scores.shape
    if min(height, width) <= 2 * WINDOW:
        return np.zeros((0, 2), np.float32), np.zeros(0, np.float32)
    kernel = np.ones((2 * NMS_RADIUS + 1, 2 * NMS_RADIUS + 1), np.uint8)
    is_peak = scores >= cv2.dilate(scores, kernel)
    is_peak &= (scores > cv2.erode(scores, kernel)) & (scores >= min_score)
    frame = np.zeros_like(is_peak)
    frame[WINDOW : height - WINDOW, WINDOW : width - WINDOW] = True
    inner = np.zeros_like(frame)
    inner[within] = frame[within]
    place = np.flatnonzero(is_peak & inner)
    values = scores.reshape(-1)[place]
    if count is not None and count < len(place):
        least = np.partition(values, len(values) - count)[len(values) - count]
        place, values = place[values >= least], values[values >= least]
    order = np.argsort(-values, kind="stable")[:count]
    return _refine(scores, place[order]), values[order].astype(np.float32)


def _refine(scores: FloatArray, place: np.ndarray[tuple[int], np.dtype[np.intp]]) -> FloatArray:
    steps = np.arange(-WINDOW, WINDOW + 1)
    down, across = (each.reshape(-1) for each in np.meshgrid(steps, steps, indexing="ij"))
    around = scores.reshape(-1)[place[:, None] + down * scores.shape[1] + across].astype(np.float32) / TEMPERATURE
    weights = np.exp(around - around.max(axis=1, keepdims=True, initial=-np.inf))
    weights /= weights.sum(axis=1, keepdims=True)
    centre = np.stack([place % scores.shape[1], place // scores.shape[1]], axis=1)
    shift = weights @ np.stack([across, down], axis=1).astype(np.float32)
    return np.asarray(centre + shift, np.float32)
