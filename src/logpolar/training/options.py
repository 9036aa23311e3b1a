"""How a model is trained: every choice, its default and what it means. Config files are made of these."""

from __future__ import annotations

from dataclasses import dataclass, field

from logpolar.models import NetworkOptions
from logpolar.sampling.patterns import LogPolar, Pattern
from logpolar.settings import setting


@dataclass(frozen=True)
class DataSource:
    """Correspondence files and how much of a batch comes from them."""

    files: tuple[str, ...] = setting((), "Correspondence files, globs allowed, relative to this file.")
    share: float = setting(1.0, "Weight: how many of a batch's image pairs, against the other sources.", 0)


@dataclass(frozen=True)
class BatchOptions:
    """What a step sees."""

    pairs: int = setting(16, "Image pairs in a batch, of different scenes as far as there are any.", 1)
    per_pair: int = setting(64, "Correspondences from each; image pairs with fewer are not used.", 1)
    near: float = setting(7.0, "Pixels: what is nearer to the truth, in either image, is no wrong answer.", 0)
    near_sizes: float = setting(0.5, "The same in keypoint sizes; the larger of the two counts.", 0)


@dataclass(frozen=True)
class AugmentationOptions:
    """What is changed at random in what a step sees."""

    aligned: bool = setting(False, "Turn the second keypoint to the true angle first; otherwise both keep SIFT's.")
    angle_jitter: float = setting(10.0, "Standard deviation in degrees, first patch.", 0)
    scale_jitter: float = setting(0.4, "Standard deviation of ln(size), first patch.", 0)
    gamma: float = setting(0.0, "Standard deviation of ln(gamma), a value for each image.", 0)
    noise: float = setting(0.0, "Largest standard deviation of noise, intensities from 0 to 1.", 0, 1)
    occlusion: float = setting(0.0, "Share of patches whose outer columns come from another patch.", 0, 1)
    fixed: float = setting(0.0, "Share of image pairs whose keypoints all get one size and angle an image.", 0, 1)
    fixed_size: float = setting(6.0, "Pixels: the size that such keypoints have on average.", 1)
    fixed_mismatch: float = setting(4.0, "Largest factor between what the two images' sizes cover then.", 1)
    copies: int = setting(0, "Copies of each image under other conditions: night, weather, another sensor.", 0)
    altered: float = setting(0.0, "Share of image pairs whose second image is such a copy.", 0, 1)


@dataclass(frozen=True)
class LossOptions:
    """What is minimised."""

    triplet: float = setting(1.0, "Weight of the hardest-in-batch triplets.", 0)
    margin: float = setting(1.0, "Of these triplets, in plain distances.", 0)
    second_order: float = setting(0.0, "Weight of the second-order similarity term (SOSNet).", 0)
    softmax: float = setting(0.0, "Weight of a cross-entropy over all wrong answers of the batch.", 0)
    temperature: float = setting(0.06, "Of that cross-entropy.", 0.001)


@dataclass(frozen=True)
class DistillationOptions:
    """Learning from a better model as well."""

    teacher: str = setting("", "Whose descriptors are imitated: a shipped model, or a file relative to this one.")
    weight: float = setting(1.0, "Of the mean squared distance to the teacher's descriptors, beside the loss.", 0)

    @property
    def wanted(self) -> bool:
        return bool(self.teacher) and self.weight > 0


@dataclass(frozen=True)
class OptimisationOptions:
    """How it is minimised."""

    steps: int = setting(10000, "Steps in all.", 1)
    optimiser: str = setting("sgd", "sgd: momentum that is an average (dampening); adamw.", choices=("sgd", "adamw"))
    learning_rate: float = setting(10.0, "At the start, or after the warm-up.", 0)
    momentum: float = setting(0.9, "Of sgd, and its dampening: without that a step would be 10 times longer.", 0, 1)
    weight_decay: float = setting(1e-4, "Pull of all weights towards 0.", 0)
    warm_up: int = setting(0, "Steps over which the learning rate rises from 0.", 0)
    schedule: str = setting("linear", "How the learning rate falls to 0.", choices=("linear", "cosine"))
    averaging: float = setting(0.0, "Decay of the running mean of the weights, which is what is kept; 0: none.", 0, 1)


@dataclass(frozen=True)
class RunOptions:
    """Where and how it runs; nothing here but the seed is meant to change what comes out."""

    seed: int = setting(0, "Decides all that is left to chance.", 0, 2**63 - 1)
    device: str = setting("auto", "auto (a GPU if there is one), cpu, cuda, cuda:1, ...")
    precision: str = setting(
        "auto", "Of the network; auto: bfloat16 on a GPU, float32 on a CPU.", choices=("auto", "bfloat16", "float32")
    )
    compile: bool = setting(
        True, "On a GPU, fuse sampling and network with torch.compile: half a minute, then 2x faster."
    )
    report_every: int = setting(100, "Steps between lines of the log.", 1)
    checkpoint_every: int = setting(1000, "Steps between checkpoints.", 1)
    validate_every: int = setting(5000, "Steps between validations; the last step is always followed by one.", 1)
    validation_pairs: int = setting(50, "Image pairs of each file that validate; 0 for all.", 0)
    tensorboard: bool = setting(True, "Write TensorBoard's event files as well, if it is installed.")


@dataclass(frozen=True)
class TrainingConfig:
    """Everything that decides how a model comes out."""

    name: str = setting("model", "Of the model; its file is called so.")
    description: str = setting("", "A line for the model's card.")
    sources: str = setting("", "What the data are and where they come from, for the model's card.")
    licence: str = setting("not stated", "Under which others may use the model.")
    data: tuple[DataSource, ...] = ()
    sampling: Pattern = field(default_factory=LogPolar)
    network: NetworkOptions = field(default_factory=lambda: NetworkOptions(circular=True))
    batch: BatchOptions = field(default_factory=BatchOptions)
    augmentation: AugmentationOptions = field(default_factory=AugmentationOptions)
    loss: LossOptions = field(default_factory=LossOptions)
    distillation: DistillationOptions = field(default_factory=DistillationOptions)
    optimisation: OptimisationOptions = field(default_factory=OptimisationOptions)
    run: RunOptions = field(default_factory=RunOptions)
