"""What the tests of training runs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from logpolar.training.config import read_config
from logpolar.training.options import TrainingConfig
from training_runs import build_set, without_graphs


@pytest.fixture(scope="session")
def place(photo, tmp_path_factory) -> Path:
    """A folder with ``one.h5``, ``two.h5`` and ``tiny.toml``; not to be changed."""
    folder = tmp_path_factory.mktemp("set")
    build_set(photo, folder)
    return folder


@pytest.fixture
def tiny(place):
    """The config of ``tiny.toml`` with changes."""

    def make(*changes: str) -> TrainingConfig:
        return read_config(place / "tiny.toml", changes)

    return make


@pytest.fixture
def quick(monkeypatch):
    without_graphs(monkeypatch)
