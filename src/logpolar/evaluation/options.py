"""Options of the protocols. Imports nothing heavy: the command line is built from these."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from logpolar.datasets.options import CorrespondenceRules
from logpolar.geometry.options import EstimationOptions, SecondLookOptions
from logpolar.matching.options import MATCHER_HELP, PairMatchingOptions
from logpolar.settings import DEFAULT_RATIO, DEFAULT_THRESHOLDS, DetectionOptions, check_settings, setting

RATIOS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)
"""Candidates when the ratio is tuned."""

_KEYS = {"split": "part", "rotation": "turn", "downscale": "shrink"}
"""Options whose keys in result files have other names, those of the first version."""


def recorded(options: Any) -> dict[str, Any]:
    """Options as result files keep them."""
    return {_KEYS.get(name, name): value for name, value in asdict(options).items()}


@dataclass(frozen=True)
class RunOptions:
    """Which methods are compared, where they run, and where results go."""

    specs: tuple[str, ...]
    output: Path
    cache: Path | None = None
    skip_missing: bool = False
    engine: dict[str, Any] = field(default_factory=lambda: {"device": "cpu"})  # keywords of ``open_describer``


@dataclass(frozen=True)
class FileOptions:
    """Which image pairs of correspondence files are used."""

    split: str | None = None
    pairs: int = setting(0, "Image pairs of a file, drawn at random; 0 takes all.", 0)
    seed: int = setting(0, "Random seed.", 0)
    fixed_size: str | float | None = None  # see ``keypoint_sources.FixedSize``

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class PatchesOptions(FileOptions):
    resamples: int = setting(1000, "Bootstrap resamples for the intervals.", 0)


@dataclass(frozen=True)
class RetrievalOptions(FileOptions):
    matches: int = setting(500, "Most correspondences per image pair.", 1)
    distractors: int = setting(3000, "Most other keypoints of the second image.", 0)


@dataclass(frozen=True)
class HPatchesOptions:
    """Which pairs the sequences give, and how."""

    mode: str = setting("paper", "Protocol: the paper's, or all pairs of all sequences.", choices=("paper", "full"))
    max_size: int = setting(0, "Downscale images to this longer side in pixels; 0 for no limit.", 0)
    keypoints: int = setting(3000, "Strongest keypoints kept per image.", 1)
    contrast: float = setting(0.04, "SIFT's contrast threshold; lower finds more and fainter keypoints.", 0)
    max_angle: float = setting(25.0, "Degrees between corresponding orientations; 180 for no limit.", 0, 180)
    rotation: float = setting(0.0, "Rotate second images by these degrees, clockwise on screen.", -180, 180)
    zoom: float = setting(1.0, "Rescale second images by this factor.", 0.25, 4)
    pool_limit: int = setting(20000, "Mode paper: stop adding sequences once a split has more correspondences.", 0)
    seed: int = setting(0, "Mode full: random seed for choosing among close correspondences.", 0)

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def rules(self) -> CorrespondenceRules:
        """Mutual nearest keypoints within 1.5 px in the second image as it is described."""
        if self.mode == "paper":
            return CorrespondenceRules(
                max_angle=self.max_angle, max_mismatch=math.inf, min_spacing=0, max_count=sys.maxsize
            )
        return CorrespondenceRules(max_angle=self.max_angle, max_count=sys.maxsize)


@dataclass(frozen=True)
class AmosOptions:
    """Which pairs are drawn."""

    mode: str = setting("paper", "Without the views that the paper excludes, or all views.", choices=("paper", "full"))
    seed: int = setting(42, "Random seed for drawing the two images of a keypoint; the paper's is 42.", 0)

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class DetectorsOptions:
    """Which keypoints are compared, and how."""

    keypoints: int = setting(2048, "Strongest keypoints kept per image.", 1)
    contrast: float = setting(0.0, "SIFT's contrast threshold; 0 admits faint keypoints.", 0)
    threshold: float = setting(3.0, "Pixels within which a keypoint is found again.", 0)
    zoom: float = setting(1.0, "Downscale the second image of each pair by this factor.", 1, 16)
    max_size: int = setting(1024, "Downscale larger images to this longer side in pixels first; 0 never does.", 0)
    pairs: int = setting(0, "Image pairs of each data set, drawn at random; 0 takes all.", 0)
    seed: int = setting(0, "Random seed for drawing pairs.", 0)

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class PhototourismOptions(DetectionOptions, PairMatchingOptions, EstimationOptions, SecondLookOptions):
    """How keypoints become matches and matches poses, and which images form sets."""

    keypoints: int = setting(2048, "Keypoints kept per image; 2048 and 8000 are usual.", 1)
    contrast: float = setting(0.0, "SIFT's contrast threshold; 0 admits faint keypoints.", 0)
    images: int = setting(0, "Pairs of that many images of a scene, drawn at random but connected; 0 takes all.", 0)
    threshold: float = setting(
        DEFAULT_THRESHOLDS["pose"], "Largest error of an inlier, in pixels of the image as described.", 0.01, 100
    )
    second_look: str = setting(
        "none",
        "Stereo: match again, and in the region that both images show, with this descriptor on its own keypoints, such "
        "as logpolar-sf; same: the one that is measured; see `logpolar match`.",
    )
    pairs: int = setting(1000, "Image pairs of a scene, drawn at random; 0 takes all.", 0)
    bags_5: int = setting(20, "Multi-view: sets of 5 images of a scene.", 0)
    bags_10: int = setting(10, "Multi-view: sets of 10 images of a scene.", 0)
    bags_25: int = setting(5, "Multi-view: sets of 25 images of a scene.", 0)
    zoom: float = setting(1.0, "Downscale the second image of each pair by this factor.", 1, 16)
    true_zoom: float = setting(
        1.0, "Crop the second image of each pair to 1 / factor of its sides, at the size of the whole image.", 1, 16
    )
    min_shared: int = setting(30, "Fewest points shared by a pair of a COLMAP scene.", 1)
    min_visibility: float = setting(0.1, "Lowest covisibility of a pair of a challenge scene.", 0, 1)
    seed: int = setting(0, "Random seed for drawing pairs and sets, for estimators and COLMAP.", 0)

    @property
    def bags(self) -> dict[int, int]:
        """Number of sets by their size, without zeros."""
        counts = {5: self.bags_5, 10: self.bags_10, 25: self.bags_25}
        return {size: count for size, count in counts.items() if count}


@dataclass(frozen=True)
class SfmTestOptions(DetectionOptions):
    """Which photos of a scene are reconstructed, and how."""

    images: int = setting(0, "Images of a scene, drawn at random; 0 takes all.", 0)
    downscale: float = setting(1.0, "Downscale every second image, by name, by this factor.", 1, 100)
    keypoints: int = setting(2000, "Most keypoints per image.", 1)
    ratio: float = setting(DEFAULT_RATIO, "Ratio test of learned descriptors.", 0.01, 1)
    matcher: str = setting("nearest", MATCHER_HELP)
    second_look: str = setting(
        "none", "Look again at pairs, with the keypoints and descriptors of this model; or none."
    )
    sift_ratio: float = setting(0.8, "Ratio test of SIFT; 0.8 is COLMAP's default.", 0.01, 1)
    repeats: int = setting(3, "Reconstructions from the same matches, with consecutive seeds; figures are means.", 1)
    seed: int = setting(0, "Random seed for drawing images, and for COLMAP.", 0)
