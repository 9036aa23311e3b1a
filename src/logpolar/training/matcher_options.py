"""Options of training a matcher: the sections of its config."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from logpolar.models.matcher_cards import MatcherOptions
from logpolar.settings import setting


@dataclass(frozen=True)
class MatcherData:
    """What views are made of, and how often they are drawn."""

    scenes: tuple[str, ...] = setting((), "Correspondence files of `dataset colmap`, globs allowed.")
    photos: tuple[str, ...] = setting((), "Photos, globs allowed: views are homographies of them.")
    aligned: tuple[str, ...] = setting((), "Lists of aligned pairs, as for `dataset aligned`.")
    held_out: tuple[str, ...] = setting((), "Names of scenes that are for validation only.")
    scene_share: float = setting(0.6, "Weight of pairs of a scene's images.", 0)
    photo_share: float = setting(0.3, "Weight of pairs of views of one image, photo or scene.", 0)
    aligned_share: float = setting(0.1, "Weight of aligned pairs.", 0)


@dataclass(frozen=True)
class ViewsOptions:
    """How images become views: on the device, all the time."""

    detector: str = setting("logpolar", "Network detector, shipped or a file, that finds the keypoints.")
    scene_views: int = setting(4, "Views of a scene's image.", 1)
    photo_views: int = setting(4, "Views of a photo.", 2)
    aligned_views: int = setting(4, "Views of an aligned image.", 1)
    new: int = setting(8, "Views that a step, on the average, replaces by new ones of the same images; 0: none.", 0)
    size: int = setting(512, "Pixels: side of a view, a multiple of 8.", 64)
    max_size: int = setting(1024, "Larger images are downscaled to this longer side, in pixels.", 64)
    max_zoom: float = setting(2.0, "Views show things larger or smaller than they fit by up to this factor.", 1)
    max_turn: float = setting(15.0, "Largest rotation, in degrees: keypoints are upright.", 0, 180)
    max_tilt: float = setting(0.2, "Largest displacement of a view's corners, as a fraction of half its side.", 0, 0.5)
    altered: float = setting(0.3, "Fraction of views under other conditions: night, haze, blur, noise.", 0, 1)
    copies: int = setting(1, "Copies of each image under other conditions, made before training.", 0)
    keypoints: int = setting(1024, "Keypoints kept of a view.", 8)

    def __post_init__(self) -> None:
        if self.size % 8:
            raise ValueError(f"size must be a multiple of 8, not {self.size}")


@dataclass(frozen=True)
class MatcherBatch:
    """The batch of a step."""

    pairs: int = setting(128, "Pairs of views in a batch.", 1)
    keypoints: int = setting(512, "Keypoints of a view.", 8)
    late: float = setting(0.3, "Fraction of the steps, the last ones: twice the keypoints, a third of the pairs.", 0, 1)
    noise: float = setting(0.1, "Largest length of a random vector that is added to each descriptor of unit length.", 0)
    moved: float = setting(0.5, "Fraction of views whose keypoints are moved and scaled all together.", 0, 1)
    positive: float = setting(3.0, "Pixels: keypoints closer than this, in both images, match.", 0)
    negative: float = setting(5.0, "Pixels: keypoints farther apart than this, in either image, do not.", 0)

    @property
    def later(self) -> MatcherBatch:
        """The batch of the last steps: as crowded as images are, in about the same memory."""
        return replace(self, keypoints=2 * self.keypoints, pairs=max(self.pairs // 3, 1))


@dataclass(frozen=True)
class MatcherOptimisation:
    """How the loss is minimised: AdamW, linear warm-up, cosine decay."""

    steps: int = setting(20000, "Total number of steps.", 1)
    learning_rate: float = setting(6e-4, "Learning rate after the warm-up.", 0)
    final_rate: float = setting(0.02, "Learning rate at the end, as a fraction.", 0, 1)
    warm_up: int = setting(500, "Steps over which the learning rate rises from 0.", 0)
    weight_decay: float = setting(0.05, "Weight decay.", 0)
    dropout: float = setting(0.1, "Of what each layer adds to the states.", 0, 0.9)
    blind: float = setting(0.25, "Fraction of pairs whose first states hold no descriptors, only likeness does.", 0, 1)
    clip: float = setting(1.0, "Largest norm of the gradient.", 0)


@dataclass(frozen=True)
class MatcherRun:
    """Where and how it runs."""

    seed: int = setting(0, "Random seed.", 0, 2**63 - 1)
    device: str = setting("auto", "auto (a GPU if there is one), cpu, cuda, cuda:1, ...")
    compile: bool = setting(True, "On a GPU, use torch.compile.")
    seconds: float = setting(0.0, "Stop, with a checkpoint, after this time; 0 for no limit.", 0)
    report_every: int = setting(100, "Steps between lines of the log.", 1)
    checkpoint_every: int = setting(1000, "Steps between checkpoints.", 1)
    validate_every: int = setting(4000, "Steps between validations.", 1)


@dataclass(frozen=True)
class MatcherConfig:
    """Everything that determines the trained matcher."""

    name: str = setting("matcher", "Name of the matcher and its file.")
    description: str = setting("", "One line for the matcher's card.")
    licence: str = setting("not stated", "Licence of the matcher.")
    descriptor: str = setting("logpolar-96-upright", "Descriptor model: a shipped one, or a file relative to this one.")
    init: str = setting("", "Matcher to start from: a shipped one, or a file relative to this one.")
    data: MatcherData = field(default_factory=MatcherData)
    views: ViewsOptions = field(default_factory=ViewsOptions)
    network: MatcherOptions = field(default_factory=MatcherOptions)
    batch: MatcherBatch = field(default_factory=MatcherBatch)
    optimisation: MatcherOptimisation = field(default_factory=MatcherOptimisation)
    run: MatcherRun = field(default_factory=MatcherRun)

    @property
    def late_from(self) -> int:
        """The first step with the later batch."""
        return round((1 - self.batch.late) * self.optimisation.steps)

    def batch_at(self, step: int) -> MatcherBatch:
        """The batch of step 0, 1, ..."""
        return self.batch if step < self.late_from else self.batch.later

    def pairs_before(self, step: int) -> int:
        """Pairs in all batches before a step."""
        early = min(step, self.late_from)
        return early * self.batch.pairs + (step - early) * self.batch.later.pairs
