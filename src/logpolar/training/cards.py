"""The card of a trained model: data, options, versions and validation scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from logpolar.evaluation.pairs import Score
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
    parts: Mapping[str, Any] | None = None,
) -> ModelCard:
    """``parts``: the ``identity`` of the config's ``Parts``."""
    recipe = config_to_dict(config)
    training: dict[str, Any] = {
        "data": config.sources or "not stated",
        "files": [[path.name for path in files] for files in sources],
        "image_pairs": data.pairs,
        "correspondences": data.correspondences,
        "scenes_and_photos": data.groups,
        **{key: recipe[key] for key in ("batch", "augmentation", "loss", "optimisation")},
        "shares": [source.share for source in config.data],
        **(parts or {}),
        "seed": config.run.seed,
        "seconds": round(seconds),
        "hardware": f"{world.size} x {torch.cuda.get_device_name(device) if device.type == 'cuda' else 'CPU'}",
        "versions": versions("torch"),
    }
    validation: dict[str, Any] = {name: score.to_dict() for name, score in scores.items()}
    figures = {"validation": {"mean": summary(dict(scores)).to_dict(), **validation}} if scores else {}
    about = config.name, config.description, config.sampling, config.network
    return ModelCard(*about, training, figures, config.licence)
