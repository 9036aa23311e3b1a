"""Small training runs for tests: a correspondence file of crops of the shipped photo, and a config that uses it."""

from __future__ import annotations

import csv
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from logpolar.datasets.homographies import build_photos
from logpolar.datasets.options import CorrespondenceRules, KeypointRules, PhotoOptions, SplitRules, ViewOptions
from logpolar.models import export
from logpolar.training import run

VIEW = ViewOptions(
    max_zoom=1.5,
    min_side=90,
    keypoints=KeypointRules(max_keypoints=150, distractors=20),
    rules=CorrespondenceRules(max_count=30),
)
CONFIG = """
recipe = "default"
name = "tiny"
description = "Of a test."
sources = "crops of a photo"
[[data]]
files = ["one.h5"]
[sampling]
rows = 8
columns = 8
lambda = 24.0
[network]
channels = [16, 16, 32]
strides = [1, 2, 2]
[batch]
pairs = 2
per_pair = 8
[optimisation]
steps = 6
warm_up = 2
[run]
seed = 3
device = "cpu"
report_every = 1
checkpoint_every = 4
validate_every = 3
tensorboard = false
"""


def build_set(photo: np.ndarray, folder: Path) -> None:
    """``one.h5`` and ``two.h5``, each with pairs to train on and to validate on."""
    for name, corners in {"one": [(0, 0), (0, 200), (250, 120), (200, 260)], "two": [(100, 60), (150, 200)]}.items():
        photos = {}
        for number, (top, left) in enumerate(corners):
            path = folder / f"{name}{number}.png"
            cv2.imwrite(str(path), photo[top : top + 200, left : left + 220])
            photos[path.name] = path
        split = SplitRules(validation=1 / len(corners))
        build_photos(photos, folder / f"{name}.h5", PhotoOptions(views=2, view=VIEW, split=split))
    (folder / "tiny.toml").write_text(CONFIG)


def without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the ONNX graphs, which take longer than everything else."""
    monkeypatch.setattr(export, "export_graph", lambda network: b"no graph")
    monkeypatch.setattr(run, "network_file", lambda model: b"no graph")


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def state_of(folder: Path) -> dict:
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def leaves(value: object) -> list[object]:
    """All that is in nested tables and lists, in order."""
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in (key, *leaves(inner))]
    return [leaf for inner in value for leaf in leaves(inner)] if isinstance(value, list | tuple) else [value]


def assert_same_training(one: Path, other: Path) -> None:
    """Checkpoints with the same weights and optimiser, to the bit, and models with the same weights."""
    ours, theirs = (leaves(state_of(folder)["trainer"]) for folder in (one, other))
    assert len(ours) == len(theirs)
    for mine, yours in zip(ours, theirs, strict=True):
        if isinstance(mine, torch.Tensor):
            assert torch.equal(mine, yours)
        else:
            assert mine == yours


def assert_same_records(one: Path, other: Path) -> None:
    """The same validations, and the same rows of the log but for the time they took."""
    assert read_rows(one / "validation.csv") == read_rows(other / "validation.csv")
    ours, theirs = (
        [(row["step"], row["loss"], row["learning_rate"]) for row in read_rows(folder / "log.csv")]
        for folder in (one, other)
    )
    assert ours == theirs
