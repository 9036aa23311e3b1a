"""The card of a trained model: data, options, versions and validation scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from logpolar.evaluation.pairs import Score
from logpolar.models import Model
from logpolar.models.cards import ModelCard
from logpolar.storage.documents import versions
from logpolar.training.config import config_to_dict
from logpolar.training.data import TrainingData
from logpolar.training.options import TrainingConfig
from logpolar.training.processes import World
from logpolar.training.validation import summary


def make_card(
    config: TrainingConfig,
    sources: Sequence[Sequence[Path]],
    data: TrainingData,
    scores: Mapping[str, Score],
    seconds: float,
    device: torch.device,
    world: World,
    teacher: Model | None = None,
) -> ModelCard:
    recipe = config_to_dict(config)
    training: dict[str, Any] = {
        "data": config.sources or "not stated",
        "files": [[path.name for path in files] for files in sources],
        "image_pairs": data.pairs,
        "correspondences": data.correspondences,
        "scenes_and_photos": data.groups,
        **{key: recipe[key] for key in ("batch", "augmentation", "loss", "optimisation")},
        "shares": [source.share for source in config.data],
        **({"distillation": about_teacher(config, teacher)} if teacher else {}),
        "seed": config.run.seed,
        "seconds": round(seconds),
        "hardware": f"{world.size} x {torch.cuda.get_device_name(device) if device.type == 'cuda' else 'CPU'}",
        "versions": versions("torch"),
    }
    validation: dict[str, Any] = {name: score.to_dict() for name, score in scores.items()}
    figures = {"validation": {"mean": summary(dict(scores)).to_dict(), **validation}} if scores else {}
    about = config.name, config.description, config.sampling, config.network
    return ModelCard(*about, training, figures, config.licence)


def about_teacher(config: TrainingConfig, teacher: Model) -> dict[str, Any]:
    """The teacher, identified by its digest rather than its path."""
    return {"teacher": teacher.name, "digest": teacher.digest, "weight": config.distillation.weight}
