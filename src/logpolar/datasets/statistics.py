"""Statistics of a correspondence file: errors of detected scales and orientations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.files import CorrespondenceFile

SCALE_EDGES = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, np.inf)
"""Classes of the scale mismatch, a factor of 1 or more in either direction."""

ANGLE_EDGES = (0.0, 5.0, 10.0, 15.0, 20.0, 25.0)
"""Classes of the absolute orientation residual in degrees."""

QUANTILES = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, eq=False)
class Statistics:
    """Of all correspondences in a file."""

    log_scale_ratio: NDArray[np.floating]  # (N,)
    angle_residual: NDArray[np.floating]  # (N,), degrees
    rejects: dict[str, int]

    @classmethod
    def of(cls, file: CorrespondenceFile) -> Statistics:
        ratio, residual = (file.column("correspondences", name) for name in ("log_scale_ratio", "angle_residual"))
        return cls(ratio, residual, file.rejects())

    @property
    def mismatch(self) -> NDArray[np.floating]:
        """(N,) factor by which the detected scales disagree, 1 or more."""
        return np.asarray(np.exp(np.abs(self.log_scale_ratio)))

    def quantiles(self) -> dict[float, float]:
        """Quantiles of the mismatch; empty without correspondences."""
        if len(self.log_scale_ratio) == 0:
            return {}
        return dict(zip(QUANTILES, np.quantile(self.mismatch, QUANTILES).tolist(), strict=True))

    def fraction_above(self, factor: float) -> float:
        return float((self.mismatch > factor).mean()) if len(self.log_scale_ratio) else 0.0

    def table(self) -> NDArray[np.int64]:
        """(angles, scales): correspondences by class of both, the cells of the paper's Fig. 4."""
        counts, _, _ = np.histogram2d(np.abs(self.angle_residual), self.mismatch, bins=[ANGLE_EDGES, SCALE_EDGES])
        return np.asarray(counts, np.int64)
