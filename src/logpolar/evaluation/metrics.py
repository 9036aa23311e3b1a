"""The figures of merit of a descriptor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def fpr95(positive: NDArray[np.floating], negative: NDArray[np.floating]) -> float:
    """Share of wrong pairs accepted at the distance that accepts 95 % of the right pairs.

    A wrong pair counts if its distance is strictly below ``threshold95``. NaN if either is empty.
    """
    if len(positive) == 0 or len(negative) == 0:
        return float("nan")
    return float(np.mean(negative < threshold95(positive)))


def threshold95(positive: NDArray[np.floating]) -> float:
    """The smallest distance such that at least 95 % of ``positive`` are at or below it."""
    needed = int(np.ceil(0.95 * len(positive) - 1e-9))
    return float(np.partition(positive, needed - 1)[needed - 1])


def ranks(distances: NDArray[np.floating], truth: NDArray[np.integer]) -> NDArray[np.intp]:
    """For each row of distances (N, M): how many columns are strictly nearer than the true one; 0 is a match."""
    own = np.take_along_axis(distances, np.asarray(truth)[:, None], axis=1)
    return np.asarray((distances < own).sum(axis=1), np.intp)
