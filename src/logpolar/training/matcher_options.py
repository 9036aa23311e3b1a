"""Options of training a matcher: the sections of its config."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from logpolar.models.matcher_cards import MatcherOptions
from logpolar.settings import DEFAULT_MODEL, setting


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
    """How images become views."""

    scene_views: int = setting(4, "Views of a scene's image; the first is the image as it is.", 1)
    photo_views: int = setting(6, "Views of a photo.", 2)
    aligned_views: int = setting(4, "Views of an aligned image; the first is the image as it is.", 1)
    max_size: int = setting(1024, "Larger images are downscaled to this longer side, in pixels.", 64)
    max_zoom: float = setting(4.0, "Views are smaller, or show a smaller part, by up to this factor.", 1)
    turned: float = setting(0.2, "Fraction of views at any rotation; the others are within 15 degrees.", 0, 1)
    max_tilt: float = setting(0.2, "Largest displacement of a view's corners, as a fraction of its sides.", 0, 0.5)
    altered: float = setting(0.3, "Fraction of views under other conditions: night, haze, blur, noise.", 0, 1)
    keypoints: int = setting(1024, "Keypoints kept of a view.", 8)
    detector: str = setting("", "Network detector, shipped or a file, of every second view; empty: SIFT for all.")
    sift: bool = setting(True, "SIFT for the other half of the views; false: the network detector for all.")
    refresh: float = setting(
        0.2,
        "Fraction of the time, at most, that goes into replacing views by new ones that processes make. What a step "
        "sees then depends on their speed; 0: views are made once, and it depends on the seed alone.",
        0,
        1,
    )
    fixed_size: float = setting(6.0, "Pixels: size of keypoints whose size is ignored.", 1)

    def __post_init__(self) -> None:
        if not (self.detector or self.sift):
            raise ValueError("views without SIFT need a detector")
        if len(self.detectors) > 1 and min(self.photo_views, 2 * self.scene_views, 2 * self.aligned_views) < 4:
            raise ValueError("a detector of every second view needs photo_views of at least 4, and 2 of the others")

    @property
    def detectors(self) -> list[str]:
        """Of the views of an image in turn; empty: SIFT."""
        return [""] * self.sift + [self.detector] * bool(self.detector)


@dataclass(frozen=True)
class MatcherBatch:
    """The batch of a step."""

    pairs: int = setting(128, "Pairs of views in a batch.", 1)
    keypoints: int = setting(512, "Keypoints of a view.", 8)
    late: float = setting(0.3, "Fraction of the steps, the last ones: twice the keypoints, a third of the pairs.", 0, 1)
    upright: float = setting(0.15, "Fraction of pairs whose keypoints have sizes but no angles.", 0, 1)
    fixed: float = setting(0.25, "Fraction of pairs whose keypoints have neither.", 0, 1)
    noise: float = setting(0.1, "Largest length of a random vector that is added to each descriptor of unit length.", 0)
    moved: float = setting(
        0.5, "Fraction of images whose keypoints are moved, scaled and, with their angles, rotated all together.", 0, 1
    )
    positive: float = setting(3.0, "Pixels: keypoints closer than this, in both images, match.", 0)
    negative: float = setting(5.0, "Pixels: keypoints farther apart than this, in either image, do not.", 0)

    @property
    def later(self) -> MatcherBatch:
        """The batch of the last steps: as crowded as images are, in about the same memory."""
        return replace(self, keypoints=2 * self.keypoints, pairs=max(self.pairs // 3, 1))

    @property
    def variants(self) -> list[int]:
        """Rows of ``matcher_views.VARIANTS`` that pairs have."""
        shares = (1 - self.upright - self.fixed, self.upright, self.fixed)
        return [row for row, share in enumerate(shares) if share > 0]


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
    jobs: int = setting(0, "Processes that make views; 0 for all cores.", 0)
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
    descriptor: str = setting(DEFAULT_MODEL, "Descriptor model: a shipped one, or a file relative to this one.")
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
