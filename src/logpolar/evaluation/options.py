"""Settings of the protocols; nothing heavy is imported, since the command line is made of them."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from logpolar.datasets.options import CorrespondenceRules
from logpolar.settings import check_settings, setting


@dataclass(frozen=True)
class HPatchesOptions:
    """Which pairs are made of the sequences, and how."""

    mode: str = setting("paper", "Protocol: the paper's, or all pairs of all sequences.", choices=("paper", "full"))
    max_size: int = setting(0, "Images with a longer side than this are reduced to it; 0 for no limit.", 0)
    keypoints: int = setting(3000, "Keypoints of an image, the strongest.", 1)
    contrast: float = setting(0.04, "SIFT's contrast threshold; lower finds more and fainter keypoints.", 0)
    max_angle: float = setting(25.0, "Degrees between orientations that correspond; 180 for no limit.", 0, 180)
    turn: float = setting(0.0, "Degrees by which second images are turned, clockwise on the screen.", -180, 180)
    zoom: float = setting(1.0, "Factor by which second images are enlarged; below 1 they are reduced.", 0.25, 4)
    pool_limit: int = setting(20000, "Mode paper: no more sequences once a split has more correspondences.", 0)
    seed: int = setting(0, "Mode full: decides which of several close correspondences is taken.", 0)

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def rules(self) -> CorrespondenceRules:
        """Within 1.5 px in the second image as it is described, each the other's nearest."""
        if self.mode == "paper":
            return CorrespondenceRules(
                max_angle=self.max_angle, max_mismatch=math.inf, min_spacing=0, max_count=sys.maxsize
            )
        return CorrespondenceRules(max_angle=self.max_angle, max_count=sys.maxsize)


@dataclass(frozen=True)
class AmosOptions:
    """Which pairs are drawn."""

    mode: str = setting("paper", "Without the views that the paper leaves out, or with all.", choices=("paper", "full"))
    seed: int = setting(42, "Decides which two images of its view a keypoint is compared in; the paper's is 42.", 0)

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class RetrievalOptions:
    """How large the pools are that right answers are looked for in."""

    matches: int = setting(500, "Correspondences of an image pair, at most.", 1)
    distractors: int = setting(3000, "Other keypoints of the second image, at most.", 0)

    def __post_init__(self) -> None:
        check_settings(self)
