"""Validation during training, on the validation splits of the training files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from logpolar.datasets.files import CorrespondenceFile, file_names
from logpolar.evaluation.pairs import Score, mean_score, score_file
from logpolar.models.network import DescriptorNetwork
from logpolar.models.runtimes.torch_device import TorchDescriber
from logpolar.sampling.patterns import Pattern


def validate(
    network: DescriptorNetwork, pattern: Pattern, files: Sequence[Path], most: int, device: torch.device
) -> dict[str, Score]:
    """Scores by file, for files with a validation split; at most ``most`` pairs of each, always the same, 0 for all."""
    scores = {}
    describer = TorchDescriber(network, pattern, device)
    for path, name in zip(files, file_names(files), strict=True):
        with CorrespondenceFile(path) as file:
            score = score_file(file, describer, "validation", most)
        if score.pairs:
            scores[name] = score
    return scores


def summary(scores: dict[str, Score]) -> Score:
    """Unweighted mean over files."""
    return mean_score(list(scores.values()))
