"""Training on single photos: homography pairs made once, patches sampled in line, a model file at the end."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from logpolar.datasets.homographies import ViewPair, view_pairs
from logpolar.datasets.options import ViewOptions
from logpolar.defaults import DESCRIPTOR_SIZE
from logpolar.errors import LogpolarError
from logpolar.evaluation.pairs import Describe, Score, score_pairs
from logpolar.keypoints import FloatArray, Keypoints
from logpolar.models import ModelCard, NetworkOptions, save_model
from logpolar.network import DescriptorNetwork
from logpolar.sampling.patterns import LogPolar, Pattern, pattern_to_dict
from logpolar.sampling.torch_lookup import TorchPyramids
from logpolar.training.batches import BatchOptions, PairSampler
from logpolar.training.loop import Progress, TrainingOptions, train

_CHUNK = 1024  # patches described at a time; always filled up, so that shapes stay the same on a GPU


@dataclass(frozen=True)
class PhotoRecipe:
    """Everything that decides how a model trained on photos comes out, but for the photos."""

    pattern: Pattern = field(default_factory=lambda: LogPolar(inner_radius=0.5))
    circular: bool = True  # rows continue from last to first: right for log-polar, wrong for cartesian patches
    views: int = 5  # pairs made of each photo
    validation: int = 16  # one photo in so many is kept for validation
    view: ViewOptions = field(default_factory=ViewOptions)
    batch: BatchOptions = field(default_factory=BatchOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)

    def __post_init__(self) -> None:
        if self.validation < 2:
            raise ValueError(f"validation must be at least 2, not {self.validation}")

    @property
    def network(self) -> NetworkOptions:
        return NetworkOptions(self.pattern.rows, self.pattern.columns, self.circular)


def train_on_photos(
    photos: Sequence[Path],
    output: Path,
    recipe: PhotoRecipe,
    device: str = "cpu",
    jobs: int = 1,
    data: str = "",
    progress: bool = False,
) -> Score:
    """Make pairs, train, validate, and write the model file; its name becomes the model's."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise LogpolarError(f"torch cannot use the device '{device}': {str(error).splitlines()[0]}") from error
    training, validation = split_photos(photos, recipe.validation)
    pairs = _make_pairs(training, recipe.views, recipe.training.seed, recipe.view, jobs, progress)
    try:
        sampler = PairSampler(pairs, recipe.pattern, recipe.batch, device)
    except ValueError as error:
        raise LogpolarError(f"too little to train on: {error}") from error
    with tqdm(total=recipe.training.steps, desc="training", unit="step", disable=None if progress else True) as bar:

        def report(state: Progress) -> None:
            bar.set_postfix(loss=f"{state.loss:.4f}")
            bar.update(state.step - bar.n)

        network = train(sampler, recipe.network, recipe.training, device, report, report_every=10)
    held_out = _make_pairs(validation, 4, recipe.training.seed + 1, recipe.view, jobs, progress)
    score = score_pairs(held_out, torch_describer(network, recipe.pattern, device))
    sampling = pattern_to_dict(recipe.pattern)
    description = f"{sampling['pattern']}, lambda {sampling['lambda']:g}, trained on homography pairs of single photos."
    save_model(output, network.cpu(), make_card(output.stem, description, recipe, data, pairs, score))
    return score


def _make_pairs(
    photos: Sequence[Path], views: int, seed: int, options: ViewOptions, jobs: int, progress: bool
) -> list[ViewPair]:
    made = view_pairs(photos, views, seed, options, jobs)
    return list(tqdm(made, desc="pairs", total=len(photos) * views, unit="pair", disable=None if progress else True))


def split_photos(photos: Sequence[Path], every: int) -> tuple[list[Path], list[Path]]:
    """Training and validation photos: every ``every``-th of the sorted photos validates."""
    ordered = sorted(photos)
    return [p for n, p in enumerate(ordered) if n % every], [p for n, p in enumerate(ordered) if n % every == 0]


def torch_describer(network: DescriptorNetwork, pattern: Pattern, device: torch.device | str) -> Describe:
    """Describe with a torch network on its device, sampling included."""

    def describe(view: NDArray[np.uint8], keypoints: Keypoints) -> FloatArray:
        pyramids = TorchPyramids([torch.from_numpy(view).to(device) / 255])
        table = torch.from_numpy(keypoints.table).to(device)
        count = len(table)
        if count == 0:
            return np.zeros((0, DESCRIPTOR_SIZE), np.float32)
        padded = torch.cat([table, table[:1].expand(-count % _CHUNK, -1)])
        parts = []
        with torch.inference_mode():
            for part in padded.reshape(-1, _CHUNK, padded.shape[1]):
                image = torch.zeros(len(part), dtype=torch.int64, device=device)
                parts.append(network(pyramids.sample(image, part[:, :2], part[:, 2], part[:, 3], pattern)))
        return np.asarray(torch.cat(parts)[:count].cpu().numpy(), np.float32)

    return describe


def make_card(
    name: str, description: str, recipe: PhotoRecipe, data: str, pairs: Sequence[ViewPair], score: Score
) -> ModelCard:
    """The card of a model trained on photos: what it saw, how, with what, and how well it does."""
    training: dict[str, Any] = {
        "data": data or "not stated",
        "image_pairs": len(pairs),
        "correspondences": sum(len(pair.correspondences) for pair in pairs),
        "views": recipe.views,
        "view": asdict(recipe.view),
        "batch": asdict(recipe.batch),
        "optimisation": asdict(recipe.training),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "opencv": cv2.__version__},
    }
    figures = {"homographies of held-out photos": score.to_dict()}
    return ModelCard(name, description, recipe.pattern, recipe.network, training, figures)
