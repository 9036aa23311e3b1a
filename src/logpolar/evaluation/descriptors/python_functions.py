"""Functions and classes of a user's own Python file, named ``FILE.py:NAME``, and descriptors made of them.

The file is run: unlike weights, it must be trusted.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from logpolar.errors import LogpolarError, in_one_line, in_words
from logpolar.evaluation.descriptors.whole_features import unit_rows
from logpolar.keypoints import Keypoints
from logpolar.models.describers import Describer
from logpolar.types import FloatArray


@dataclass(frozen=True, eq=False)
class PythonFunction:
    """A function or class, and the hash of its file."""

    name: str  # FILE.py:NAME, without folders
    call: Callable[..., Any]
    digest: str


def load_python(text: str) -> PythonFunction:
    """``FILE.py:NAME``; raises ``LogpolarError``, in one line, if there is no such file or name in it."""
    file, _, name = text.rpartition(":")
    path = Path(file)
    if path.suffix != ".py" or not name.isidentifier():
        raise LogpolarError(f"'{text}' does not name a function of a Python file: FILE.py:NAME")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise LogpolarError(f"{path}: {in_words(error)}") from error
    digest = hashlib.sha256(content).hexdigest()
    spec = importlib.util.spec_from_loader(f"logpolar_user_{path.stem}", None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__file__ = str(path)
    try:
        exec(compile(content, str(path), "exec"), module.__dict__)
    except Exception as error:
        raise LogpolarError(f"{path}: cannot be run: {in_one_line(error)}") from error
    found = getattr(module, name, None)
    if not callable(found):
        raise LogpolarError(f"{path}: has no function '{name}'")
    return PythonFunction(f"{path.name}:{name}", found, digest)


class PythonDescriber(Describer):
    """Descriptors by a function (gray (H, W) float32 in [0, 1], ``Keypoints``) -> (N, D), scaled to unit length."""

    def __init__(self, function: PythonFunction) -> None:
        self._function = function

    def describe(self, gray: FloatArray, keypoints: Keypoints) -> FloatArray:
        try:
            found = np.asarray(self._function.call(gray, keypoints), np.float32)
        except Exception as error:
            raise LogpolarError(f"{self._function.name}: failed: {in_one_line(error)}") from error
        if found.ndim != 2 or len(found) != len(keypoints) or not found.shape[1] or not np.isfinite(found).all():
            shape = " x ".join(map(str, found.shape))
            raise LogpolarError(
                f"{self._function.name}: must return finite numbers, a row for each of the {len(keypoints)} keypoints, "
                f"not {shape or 'one number'}"
            )
        return unit_rows(found)
