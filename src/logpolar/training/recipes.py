"""Named recipes, the starting points of configs. Their names differ from those of the shipped models."""

from __future__ import annotations

from dataclasses import replace

from logpolar.models.cards import NetworkOptions
from logpolar.sampling.patterns import LogPolar
from logpolar.settings import DEFAULT_MODEL
from logpolar.training.options import (
    AugmentationOptions,
    BatchOptions,
    DistillationOptions,
    LossOptions,
    OptimisationOptions,
    TrainingConfig,
)

DEFAULT = TrainingConfig(
    name="my-logpolar-96",
    sampling=LogPolar(inner_radius=0.5, outside="mean"),
    batch=BatchOptions(pairs=32, per_pair=32),
    augmentation=AugmentationOptions(scale_jitter=0.8, fixed=0.25, altered=0.2),
    loss=LossOptions(second_order=1.0),
    optimisation=OptimisationOptions(
        steps=36000, optimiser="adamw", learning_rate=0.005, weight_decay=0.01, warm_up=100, schedule="cosine"
    ),
)
"""The best settings found; docs/training.md lists what was tried."""

PAPER = TrainingConfig(
    name="my-paper-logpolar-96",
    sampling=LogPolar(inner_radius="paper", antialias=False),
    network=NetworkOptions(circular=False),
    batch=BatchOptions(pairs=10, per_pair=100, near_sizes=0.0),
    augmentation=AugmentationOptions(aligned=True, angle_jitter=25.0, scale_jitter=0.0),
    loss=LossOptions(),
    optimisation=OptimisationOptions(optimiser="sgd", learning_rate=10.0, weight_decay=1e-4, schedule="linear"),
)
"""The paper's code: plain bilinear look-up, 1 px innermost radius, zero padding, SGD with dampening, linear decay."""

SMALL = replace(
    DEFAULT,
    name="my-logpolar-96-small",
    network=NetworkOptions(circular=True, dropout=0.0, channels=(32, 64, 64, 128, 128), strides=(2, 2, 1, 2, 1)),
    loss=LossOptions(triplet=0.0),
    distillation=DistillationOptions(teacher=DEFAULT_MODEL),
    optimisation=replace(DEFAULT.optimisation, steps=70000),
)
"""A fifth of the default's multiply-adds, for machines without a GPU; trained by distillation alone."""

RECIPES = {"default": DEFAULT, "paper": PAPER, "small": SMALL}
