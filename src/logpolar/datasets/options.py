"""Options of the builders of correspondence files: defaults, help texts and ranges, also of the command line.

Imports nothing heavy, so that the command line lists its options quickly.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from logpolar.settings import setting


@dataclass(frozen=True)
class CorrespondenceRules:
    """When two keypoints correspond."""

    max_distance: float = setting(1.5, "Pixels between a keypoint and its warped partner.", 0)
    max_angle: float = setting(25.0, "Degrees between the orientations, given the warp.", 0, 180)
    max_mismatch: float = setting(8.0, "Scale mismatch, given the warp; more is coincidence.", 1)
    min_spacing: float = setting(7.0, "Pixels between correspondences, in both images.", 0)
    max_count: int = setting(512, "Correspondences of an image pair; large scale mismatches first.", 1)


@dataclass(frozen=True)
class KeypointRules:
    """Which keypoints are detected."""

    max_keypoints: int = setting(8000, "Strongest keypoints of an image.", 1)
    contrast: float = setting(0.02, "SIFT's contrast threshold; lower detects more and fainter keypoints.", 0)
    distractors: int = setting(
        1000,
        "Strongest keypoints without a partner (scenes: without depth) that the file keeps of an image.",
        0,
    )
    detector: str = setting(
        "sift", "Finds the keypoints: sift, or a network detector, shipped or a file (one size, upright)."
    )


@dataclass(frozen=True)
class PairRules:
    """Which images are paired: the paper's visibility test, and further limits."""

    min_shared: int = setting(30, "Points of the sparse model that both images observe.", 1)
    min_overlap: float = setting(0.5, "Fraction of each image that the bounding box of the shared points covers.", 0, 1)
    max_per_image: int = setting(60, "Pairs of one image; 0: no limit.", 0)


@dataclass(frozen=True)
class DepthRules:
    """Which depths are trusted, and how well the surfaces of two images must agree."""

    min_views: int = setting(2, "Other views that must confirm a depth; 0 trusts all depth maps.", 0)
    max_neighbours: int = setting(15, "Views that may confirm a depth: those that share most points.", 1)
    max_drift: float = setting(1.5, "Confirmation: pixels of the cycle error through the other view.", 0)
    max_difference: float = setting(0.015, "Confirmation: relative difference of the depths.", 0)
    max_roughness: float = setting(0.03, "Relative deviation from a plane around a keypoint; more is a depth edge.", 0)
    max_occlusion: float = setting(0.03, "Pairing: relative difference of the two surfaces' depths.", 0)
    max_cycle: float = setting(1.5, "Pairing: pixels of the cycle error, there by one depth and back by the other.", 0)


@dataclass(frozen=True)
class ImageRules:
    """How images are stored."""

    max_size: int = setting(1024, "Larger images are downscaled to this longer side, in pixels.", 64)
    embed: bool = setting(True, "Embed images in the file; otherwise store relative paths.")
    quality: int = setting(95, "JPEG quality of downscaled and transformed images; 100: PNG.", 1, 100)


@dataclass(frozen=True)
class SecondViewRules:
    """How the second image of each pair is transformed before detection. Such copies are always embedded."""

    downscale: float = setting(1.0, "Factor by which the second image of each pair is downscaled.", 1)
    rotate: float = setting(0.0, "Clockwise rotation of the second image of each pair, in degrees.", -180, 180)

    @property
    def transforms(self) -> bool:
        return self.downscale != 1 or self.rotate != 0


@dataclass(frozen=True)
class SplitRules:
    """Training, validation and test images."""

    validation: float = setting(0.3, "Fraction of validation images.", 0, 1)
    test: bool = setting(False, "Mark all images as test data.")
    seed: int = setting(0, "Random seed, also for choosing validation images.", 0)


@dataclass(frozen=True)
class SceneOptions:
    """How a COLMAP scene becomes correspondences."""

    pairs: PairRules = field(default_factory=PairRules)
    images: ImageRules = field(default_factory=ImageRules)
    second: SecondViewRules = field(default_factory=SecondViewRules)
    keypoints: KeypointRules = field(default_factory=KeypointRules)
    depth: DepthRules = field(default_factory=DepthRules)
    rules: CorrespondenceRules = field(default_factory=lambda: CorrespondenceRules(max_count=1000))
    split: SplitRules = field(default_factory=SplitRules)


@dataclass(frozen=True)
class ViewOptions:
    """How a photo becomes two views of it."""

    max_zoom: float = setting(4.0, "The second view is smaller by up to this factor, or larger by its square root.", 1)
    max_tilt: float = setting(0.25, "Largest displacement of corners, as a fraction of the image's sides.", 0, 0.5)
    max_rotation: float = setting(180.0, "Degrees in the image plane; at most 20 for half of the pairs.", 0, 180)
    min_crop: float = setting(0.6, "Smallest crop of the first view, as a fraction of the photo's sides.", 0.1, 1)
    min_side: int = setting(120, "Shortest side of the second view, in pixels.", 32)
    max_size: int = setting(1024, "Larger photos are downscaled to this longer side, in pixels.", 64)
    quality: int = setting(95, "JPEG quality of the views; half are compressed more; 100: PNG.", 1, 100)
    keypoints: KeypointRules = field(default_factory=lambda: KeypointRules(max_keypoints=3000))
    rules: CorrespondenceRules = field(default_factory=CorrespondenceRules)


@dataclass(frozen=True)
class PhotoOptions:
    """How photos become correspondences."""

    views: int = setting(5, "Pairs of views per photo.", 1)
    view: ViewOptions = field(default_factory=ViewOptions)
    split: SplitRules = field(default_factory=SplitRules)


@dataclass(frozen=True)
class AlignedOptions:
    """How pairs of aligned images become correspondences."""

    max_size: int = setting(1024, "Larger images are downscaled to this longer side, in pixels.", 64)
    carried: int = setting(256, "Keypoints of a pair that are detected in one image only and carried to the other.", 0)
    max_shift: float = setting(
        2.5, "Pixels: median distance of matches from the given warp; more is a moved camera.", 0
    )
    min_matches: int = setting(12, "Consistent matches needed to check a pair; 0: no check.", 0)
    quality: int = setting(95, "JPEG quality of the images; 100: PNG.", 1, 100)
    keypoints: KeypointRules = field(default_factory=lambda: KeypointRules(max_keypoints=3000))
    rules: CorrespondenceRules = field(default_factory=CorrespondenceRules)
    split: SplitRules = field(default_factory=SplitRules)


_STORED_NAMES = {"downscale": "shrink", "rotate": "turn", "max_rotation": "max_turn"}
"""Names of options in files, which keep those of version 0.1."""


def stored_settings(options: SceneOptions | PhotoOptions | AlignedOptions) -> dict[str, Any]:
    """The options as they are stored in a file; those unknown to version 0.1 only where they are not the default,
    so that its files can be resumed."""

    def stored(items: list[tuple[str, Any]]) -> dict[str, Any]:
        return {_STORED_NAMES.get(key, key): value for key, value in items if (key, value) != ("detector", "sift")}

    return asdict(options, dict_factory=stored)
