"""Quality presets of a reconstruction: one word for number of keypoints, image size, refinement and mapper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

QualityName = Literal["low", "medium", "high", "extreme"]
QUALITY_NAMES: tuple[QualityName, ...] = get_args(QualityName)
DEFAULT_QUALITY: QualityName = "high"


@dataclass(frozen=True)
class Quality:
    """What a preset sets, unless an option says otherwise."""

    max_keypoints: int
    max_size: int  # longer side in pixels; 0: as it is
    contrast_threshold: float  # of SIFT; lower finds fainter keypoints
    refine: bool  # keypoints along tracks, see ``refinement``
    ba_iterations: float = 1.0  # iterations of bundle adjustment relative to COLMAP's default


QUALITIES: dict[QualityName, Quality] = {
    "low": Quality(2048, 1000, 0.04, False, 0.5),
    "medium": Quality(4096, 1600, 0.04 / 3, True),
    "high": Quality(8192, 2400, 0.04 / 3, True),
    "extreme": Quality(16384, 0, 0.04 / 3, True),
}
