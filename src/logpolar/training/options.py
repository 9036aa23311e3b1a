"""Training options with their defaults, help and ranges: the sections of a config file."""

from __future__ import annotations

from dataclasses import dataclass, field

from logpolar.models.cards import NetworkOptions
from logpolar.sampling.patterns import LogPolar, Pattern
from logpolar.settings import setting

PRECISIONS = ("auto", "bfloat16", "float32")


@dataclass(frozen=True)
class DataSource:
    """Correspondence files and their weight in a batch."""

    files: tuple[str, ...] = setting((), "Correspondence files, globs allowed, relative to this file.")
    share: float = setting(1.0, "Weight of this source: its image pairs in a batch are in proportion.", 0)


_MOST_IN_BATCH = 2**16


@dataclass(frozen=True)
class BatchOptions:
    """The batch of a step."""

    pairs: int = setting(16, "Image pairs in a batch, from different scenes as far as possible.", 1)
    per_pair: int = setting(64, "Correspondences per image pair; pairs with fewer are skipped.", 1)
    near: float = setting(
        7.0, "Pixels: keypoints closer than this to the true one, in either image, are not negatives.", 0
    )
    near_sizes: float = setting(0.5, "The same in keypoint sizes; the larger of the two applies.", 0)

    def __post_init__(self) -> None:
        if self.pairs * self.per_pair > _MOST_IN_BATCH:
            raise ValueError(f"[batch] pairs x per_pair must be {_MOST_IN_BATCH} at most: all distances are computed")


@dataclass(frozen=True)
class AugmentationOptions:
    """Random changes to the keypoints and images of a batch."""

    aligned: bool = setting(False, "Rotate the second keypoint to its true angle first; otherwise both keep SIFT's.")
    angle_jitter: float = setting(10.0, "Standard deviation in degrees, first patch.", 0)
    scale_jitter: float = setting(0.4, "Standard deviation of ln(size), first patch.", 0)
    fixed: float = setting(0.0, "Fraction of image pairs with one keypoint size and angle per image.", 0, 1)
    fixed_size: float = setting(6.0, "Pixels: mean of these sizes.", 1)
    fixed_mismatch: float = setting(4.0, "Largest scale mismatch between these sizes, as a factor.", 1)
    altered: float = setting(0.0, "Fraction of image pairs whose second image is an altered copy.", 0, 1)
    copies: int = setting(2, "Altered copies of each image: night, shadows, haze, motion blur, noise, JPEG.", 1, 100)

    @property
    def used_copies(self) -> int:
        return self.copies if self.altered else 0


@dataclass(frozen=True)
class LossOptions:
    """The loss."""

    softmax: float = setting(0.0, "Weight of the cross-entropy of each positive among the negatives of the batch.", 0)
    scale: float = setting(
        16.0, "Of the cosines in the cross-entropy: the larger, the more the hardest count.", 1, 1000
    )
    angular_margin: float = setting(0.2, "Radians by which the cross-entropy enlarges the positives' angles.", 0, 1.5)
    triplet: float = setting(1.0, "Weight of the hardest-in-batch triplets.", 0)
    margin: float = setting(1.0, "Margin of the triplets, in plain distances.", 0)
    second_order: float = setting(0.0, "Weight of the second-order similarity term (SOSNet).", 0)


@dataclass(frozen=True)
class DistillationOptions:
    """Learning from a better model."""

    teacher: str = setting("", "Model whose descriptors are the target: a shipped one, or a file relative to this one.")
    weight: float = setting(1.0, "Weight of the mean squared distance to the teacher's descriptors.", 0)

    @property
    def wanted(self) -> bool:
        return bool(self.teacher) and self.weight > 0


@dataclass(frozen=True)
class OptimisationOptions:
    """How the loss is minimised."""

    steps: int = setting(10000, "Total number of steps.", 1)
    optimiser: str = setting("sgd", "Optimiser; sgd has dampened momentum.", choices=("sgd", "adamw"))
    learning_rate: float = setting(10.0, "Learning rate at the start, or after the warm-up.", 0)
    momentum: float = setting(0.9, "Momentum of sgd, and its dampening, without which steps would be 10x longer.", 0, 1)
    weight_decay: float = setting(1e-4, "Weight decay.", 0)
    warm_up: int = setting(0, "Steps over which the learning rate rises from 0.", 0)
    schedule: str = setting("linear", "How the learning rate falls to 0.", choices=("linear", "cosine"))


@dataclass(frozen=True)
class RunOptions:
    """Where and how it runs; only seed and precision affect the result."""

    seed: int = setting(0, "Random seed.", 0, 2**63 - 1)
    device: str = setting("auto", "auto (a GPU if there is one), cpu, cuda, cuda:1, ...")
    precision: str = setting("auto", "auto: bfloat16 on a GPU, float32 on a CPU.", choices=PRECISIONS)
    compile: bool = setting(True, "On a GPU, use torch.compile: takes half a minute, then 2x faster.")
    report_every: int = setting(100, "Steps between lines of the log.", 1)
    checkpoint_every: int = setting(1000, "Steps between checkpoints.", 1)
    validate_every: int = setting(5000, "Steps between validations; there is always one after the last step.", 1)
    validation_pairs: int = setting(50, "Image pairs of each file used for validation; 0 for all.", 0)
    tensorboard: bool = setting(True, "Write TensorBoard event files too, if it is installed.")


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that determines the trained model."""

    name: str = setting("model", "Name of the model and its file.")
    description: str = setting("", "One line for the model's card.")
    sources: str = setting("", "Origin of the data, for the model's card.")
    licence: str = setting("not stated", "Licence of the model.")
    init: str = setting("", "Model to start from: a shipped one, or a file relative to this one.")
    own_network: str = setting("", "Network of your own, FILE.py:NAME, relative to this file; see docs/training.md.")
    own_loss: str = setting("", "Loss of your own, FILE.py:NAME, relative to this file, added to that of [loss].")
    data: tuple[DataSource, ...] = ()
    sampling: Pattern = field(default_factory=LogPolar)
    network: NetworkOptions = field(default_factory=lambda: NetworkOptions(circular=True))
    batch: BatchOptions = field(default_factory=BatchOptions)
    augmentation: AugmentationOptions = field(default_factory=AugmentationOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    distillation: DistillationOptions = field(default_factory=DistillationOptions)
    optimisation: OptimisationOptions = field(default_factory=OptimisationOptions)
    run: RunOptions = field(default_factory=RunOptions)
