"""Options of detector training with their defaults, help and ranges: the sections of a config file."""

from __future__ import annotations

from dataclasses import dataclass, field

from logpolar.models.cards import DetectorOptions
from logpolar.settings import setting
from logpolar.training.options import OptimisationOptions, RunOptions

KINDS = ("photos", "scenes", "aligned")


@dataclass(frozen=True)
class DetectorSource:
    """Images and their weight in a batch."""

    kind: str = setting("photos", "What the files are.", choices=KINDS)
    files: tuple[str, ...] = setting(
        (),
        "Photos or folders of them; COLMAP workspaces with depth maps, or files of `dataset colmap`; lists of aligned "
        "pairs. Relative to this file.",
    )
    share: float = setting(1.0, "Weight of this source: its image pairs in a batch are in proportion.", 0)


@dataclass(frozen=True)
class CropOptions:
    """The crops of a step."""

    pairs: int = setting(8, "Pairs of crops in a batch.", 1)
    side: int = setting(320, "Pixels: side of a crop, a multiple of 8.", 64, 2048)
    max_zoom: float = setting(4.0, "Largest ratio of scales between the crops of a pair.", 1, 16)
    zoomed: float = setting(0.6, "Fraction of pairs with any such ratio; the others are of about equal scale.", 0, 1)
    altered: float = setting(0.4, "Fraction of pairs whose second image is a copy under other conditions.", 0, 1)
    copies: int = setting(1, "Altered copies of each image: night, shadows, haze, motion blur, noise, JPEG.", 1)
    light: float = setting(0.3, "Strength of the changes of contrast, brightness and gamma of every crop.", 0, 1)

    @property
    def used_copies(self) -> int:
        return self.copies if self.altered else 0


@dataclass(frozen=True)
class ObjectiveOptions:
    """Weights of the objectives, each 0 to leave it out, and what they count as correct."""

    imitation: float = setting(0.0, "Keypoints on which other detectors agree over random homographies.", 0)
    matchability: float = setting(1.0, "Policy gradient: correct mutual nearest neighbours of a frozen descriptor.", 0)
    repeatability: float = setting(0.5, "Keypoints found again in the other crop, and at the same place.", 0)
    peakiness: float = setting(0.1, "Scores concentrated at keypoints.", 0)
    keypoints: int = setting(384, "Keypoints of a crop that are matched.", 8)
    tolerance: float = setting(3.0, "Pixels within which keypoints correspond.", 0.5)
    incorrect: float = setting(0.25, "Penalty of an incorrect match, against the reward 1 of a correct one.", 0)
    cost: float = setting(0.01, "Penalty of any keypoint.", 0)
    found: float = setting(0.1, "Reward of an unmatched keypoint that is found again.", 0)
    descriptor: str = setting("logpolar-96", "Model whose descriptors are matched.")
    size: float = setting(6.0, "Pixels: size of all keypoints.", 1, 100)


@dataclass(frozen=True)
class DetectorConfig:
    """Everything that determines the trained detector."""

    name: str = setting("detector", "Name of the model and its file.")
    description: str = setting("", "One line for the model's card.")
    sources: str = setting("", "Origin of the data, for the model's card.")
    licence: str = setting("not stated", "Licence of the model.")
    init: str = setting("", "Detector to start from: a shipped one, or a file relative to this one.")
    data: tuple[DetectorSource, ...] = ()
    network: DetectorOptions = field(default_factory=DetectorOptions)
    crops: CropOptions = field(default_factory=CropOptions)
    objectives: ObjectiveOptions = field(default_factory=ObjectiveOptions)
    optimisation: OptimisationOptions = field(
        default_factory=lambda: OptimisationOptions(20000, "adamw", 1e-3, warm_up=200, schedule="cosine")
    )
    run: RunOptions = field(default_factory=RunOptions)
