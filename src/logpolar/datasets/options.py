"""How correspondences are made: every choice, its default and what it means. The command line is made of these.

Nothing heavy is imported here, so that the command line can list its options quickly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from logpolar.settings import setting


@dataclass(frozen=True)
class CorrespondenceRules:
    """When keypoints of two images correspond."""

    max_distance: float = setting(1.5, "Pixels between a keypoint and the place its partner is sent to.", 0)
    max_angle: float = setting(25.0, "Degrees between the orientations.", 0, 180)
    max_mismatch: float = setting(8.0, "Factor between the detected scales, given the warp; more is chance.", 1)
    min_spacing: float = setting(7.0, "Pixels between correspondences, in both images.", 0)
    max_count: int = setting(512, "Correspondences of an image pair; large scale mismatches go first.", 1)


@dataclass(frozen=True)
class KeypointRules:
    """Which keypoints SIFT finds."""

    max_keypoints: int = setting(8000, "SIFT keypoints of an image, the strongest.", 1)
    contrast: float = setting(0.02, "SIFT's contrast threshold; lower finds more and fainter keypoints.", 0)
    distractors: int = setting(
        1000,
        "The file keeps this many keypoints of an image that have no partner (scenes: no depth), the strongest.",
        0,
    )


@dataclass(frozen=True)
class PairRules:
    """Which images are paired: the paper's visibility test, and limits of our own."""

    min_shared: int = setting(30, "Points of the sparse model that both images of a pair see.", 1)
    min_overlap: float = setting(0.5, "Share of each image that the box around the shared points covers.", 0, 1)
    max_per_image: int = setting(60, "Pairs of one image; 0 for no limit.", 0)


@dataclass(frozen=True)
class DepthRules:
    """Which depths count, and how well the surfaces that two images see must agree."""

    min_views: int = setting(2, "Other views that must confirm a depth; 0 takes depth maps as they are.", 0)
    max_neighbours: int = setting(15, "Views that are asked to confirm, those that share most points.", 1)
    max_drift: float = setting(1.5, "Confirming: pixels, to the other view, to its surface, and back.", 0)
    max_difference: float = setting(0.015, "Confirming: difference of the depths, as a share.", 0)
    max_roughness: float = setting(0.03, "Deviation from a plane around a keypoint, as a share; more is an edge.", 0)
    max_occlusion: float = setting(0.03, "Pairing: difference of the two surfaces, as a share of the depth.", 0)
    max_cycle: float = setting(1.5, "Pairing: pixels, to the other image by this depth and back by the other's.", 0)


@dataclass(frozen=True)
class ImageRules:
    """What is kept of an image."""

    max_size: int = setting(1024, "Images with a longer side than this are reduced to it.", 64)
    embed: bool = setting(True, "Images go into the file; otherwise their relative paths.")
    quality: int = setting(95, "Of the JPEGs of images that are reduced, or made; 100 for PNG.", 1, 100)


@dataclass(frozen=True)
class SecondViewRules:
    """How the second image of each pair of a scene is altered. Altered copies are always inside the file."""

    shrink: float = setting(
        1.0, "The second image of each pair is reduced by this factor before keypoints are found.", 1
    )
    turn: float = setting(
        0.0,
        "Degrees by which the second image of each pair is turned, clockwise on the screen, "
        "before keypoints are found.",
        -180,
        180,
    )

    @property
    def alters(self) -> bool:
        return self.shrink != 1 or self.turn != 0


@dataclass(frozen=True)
class SplitRules:
    """What the images are for."""

    validation: float = setting(0.3, "Share of the images that is kept for validation.", 0, 1)
    test: bool = setting(False, "Mark all of it as test data; nothing is kept for validation.")
    seed: int = setting(0, "Decides which images validate, and whatever else is left to chance.", 0)


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
    max_tilt: float = setting(0.25, "Corners move by up to this share of the image's sides.", 0, 0.5)
    max_turn: float = setting(180.0, "Degrees in the plane; half of the pairs turn by at most 20.", 0, 180)
    min_crop: float = setting(0.6, "The first view shows at least this share of the photo's sides.", 0.1, 1)
    min_side: int = setting(120, "Pixels; the second view is not made smaller than this.", 32)
    max_size: int = setting(1024, "Photos with a longer side than this are reduced to it.", 64)
    quality: int = setting(95, "Of the JPEGs of the views; half are compressed more; 100 for PNG.", 1, 100)
    keypoints: KeypointRules = field(default_factory=lambda: KeypointRules(max_keypoints=3000))
    rules: CorrespondenceRules = field(default_factory=CorrespondenceRules)


@dataclass(frozen=True)
class PhotoOptions:
    """How photos become correspondences."""

    views: int = setting(5, "Pairs of views made of each photo.", 1)
    view: ViewOptions = field(default_factory=ViewOptions)
    split: SplitRules = field(default_factory=SplitRules)


@dataclass(frozen=True)
class AlignmentRules:
    """When two images count as showing the same view."""

    max_shift: float = setting(2.5, "Pixels by which matches may lie off the given warp; more, and the pair moved.", 0)
    min_matches: int = setting(
        12, "Matches that must agree before a pair can be judged; 0 takes all pairs on trust.", 0
    )


@dataclass(frozen=True)
class AlignedOptions:
    """How pairs of aligned images become correspondences."""

    max_size: int = setting(1024, "Images with a longer side than this are reduced to it.", 64)
    carried: int = setting(256, "Most places of a pair that only one image has a keypoint at, carried to the other.", 0)
    quality: int = setting(95, "Of the JPEGs in the file; 100 for PNG.", 1, 100)
    alignment: AlignmentRules = field(default_factory=AlignmentRules)
    keypoints: KeypointRules = field(default_factory=lambda: KeypointRules(max_keypoints=3000))
    rules: CorrespondenceRules = field(default_factory=CorrespondenceRules)
    split: SplitRules = field(default_factory=SplitRules)
