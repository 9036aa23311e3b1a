"""Checks that several tests share."""

from __future__ import annotations

from pathlib import Path

import cv2
import h5py
import numpy as np

from logpolar.models import load_model, shipped_models


def assert_one_error(result, *words: str) -> None:
    """A command ended with exit code 2 and one line on stderr that holds these words."""
    lines = result.stderr.splitlines()
    assert result.exit_code == 2
    assert len(lines) == 1, lines
    assert lines[0].startswith("logpolar: error: ")
    assert all(word in lines[0] for word in words), lines[0]


def assert_picture(path) -> None:
    """An image file that shows something."""
    picture = cv2.imread(str(path))
    assert picture.shape[0] > 200
    assert picture.std() > 5


def content_of(path: Path) -> dict[str, np.ndarray]:
    """All that is in an HDF5 file, by name."""
    found: dict[str, np.ndarray] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: found.update({name: np.asarray(item[()])}) if isinstance(item, h5py.Dataset) else None
        )
        found |= {f"@{name}": np.asarray(value) for name, value in file.attrs.items()}
    return found


def assert_same_content(one: Path, other: Path) -> None:
    ours, theirs = content_of(one), content_of(other)
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        np.testing.assert_array_equal(values, theirs[name], err_msg=name)


def trained_models() -> list[str]:
    """The shipped models that torch can run: those that are not variants in fewer bits."""
    return [name for name in shipped_models() if load_model(name).card.variant is None]
