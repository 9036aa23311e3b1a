"""Orientation of keypoints by the gradients around them, as in SIFT, for detectors that give none.

Convention:
    Gradients g = (dI/dx, dI/dy), of the image smoothed by a Gaussian of sigma = size / 4, within a radius of 1.5 sizes
    vote for the angle atan2(dI/dy, dI/dx), clockwise on screen, with weight |g| exp(-r^2 / (2 (0.75 size)^2)), in 36
    bins of 10 degrees. The histogram is smoothed over three bins twice; the angle is that of its highest bin, refined
    by a parabola through its neighbours.
"""

from __future__ import annotations

import cv2
import numpy as np

from logpolar.types import FloatArray

_BINS = 36
_CHUNK = 1024  # keypoints at a time, to bound memory


def gradient_angles(gray: FloatArray, xy: FloatArray, size: FloatArray) -> FloatArray:
    """Angles (N,) in degrees from 0 to 360 of keypoints of one size; 0 where there is no gradient."""
    if len(xy) == 0:
        return np.zeros(0, np.float32)
    diameter = float(size[0])
    smooth = cv2.GaussianBlur(gray, (0, 0), diameter / 4)
    radius = max(round(1.5 * diameter), 1)
    steps = np.arange(-radius, radius + 1)
    dy, dx = (each.reshape(-1) for each in np.meshgrid(steps, steps, indexing="ij"))
    near = dx**2 + dy**2 <= radius**2
    dy, dx = dy[near], dx[near]
    falloff = np.exp(-(dx**2 + dy**2) / (2 * (0.75 * diameter) ** 2))
    centres = np.rint(xy).astype(np.intp)
    chunks = (centres[start : start + _CHUNK] for start in range(0, len(centres), _CHUNK))
    return np.concatenate([_dominant(np.asarray(smooth), chunk, dx, dy, falloff) for chunk in chunks])


def _dominant(
    smooth: FloatArray, centres: np.ndarray, dx: np.ndarray, dy: np.ndarray, falloff: np.ndarray
) -> FloatArray:
    height, width = smooth.shape
    x, y = centres[:, :1] + dx, centres[:, 1:] + dy
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    x, y = np.clip(x, 0, width - 1), np.clip(y, 0, height - 1)
    # Gradients where they are needed only: an array of them would be as large as the image. None across its edge.
    inner_x, inner_y = (x > 0) & (x < width - 1), (y > 0) & (y < height - 1)
    across = (smooth[y, np.minimum(x + 1, width - 1)] - smooth[y, np.maximum(x - 1, 0)]) * inner_x
    down = (smooth[np.minimum(y + 1, height - 1), x] - smooth[np.maximum(y - 1, 0), x]) * inner_y
    weight = np.hypot(across, down) * falloff * inside
    # Votes are divided between the two nearest bins.
    place = np.arctan2(down, across) % (2 * np.pi) * (_BINS / (2 * np.pi)) - 0.5
    lower = np.floor(place).astype(np.intp)
    share = place - lower
    row = np.arange(len(centres))[:, None] * _BINS
    votes = np.zeros(len(centres) * _BINS)
    for bin_, part in ((lower, 1 - share), (lower + 1, share)):
        votes += np.bincount((row + bin_ % _BINS).reshape(-1), (weight * part).reshape(-1), len(votes))
    histogram = votes.reshape(-1, _BINS)
    for _ in range(2):
        histogram = (np.roll(histogram, 1, axis=1) + 2 * histogram + np.roll(histogram, -1, axis=1)) / 4
    best = histogram.argmax(axis=1)
    left, middle, right = (histogram[np.arange(len(best)), (best + shift) % _BINS] for shift in (-1, 0, 1))
    curvature = 2 * middle - left - right
    offset = np.where(curvature > 0, (right - left) / np.where(curvature > 0, 2 * curvature, 1), 0)
    found = ((best + 0.5 + offset) * (360 / _BINS)) % 360
    return np.where(histogram.sum(axis=1) > 0, found, 0).astype(np.float32)
