"""Checkpoints: the state of a run in one file, written atomically."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from logpolar.errors import LogpolarError
from logpolar.storage.atomic_io import write_whole

_FORMAT, _VERSION = "logpolar-checkpoint", 2
_LAYOUT = {"step": int, "trainer": dict, "seconds": float | int, "scores": dict, "config": dict, "data": list}


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values; a failed write raises ``OSError`` and leaves the previous file intact."""
    buffer = io.BytesIO()
    torch.save({"format": _FORMAT, "version": _VERSION, **state}, buffer)
    write_whole(path, buffer.getvalue())


def load_checkpoint(path: Path, device: torch.device | str) -> dict[str, Any]:
    """Read what ``save_checkpoint`` wrote, without executing code from the file."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except (pickle.UnpicklingError, EOFError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise LogpolarError(f"{path}: not a checkpoint, or a damaged one; delete it or --overwrite") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise LogpolarError(f"{path}: not a checkpoint of logpolar")
    if state.get("version") != _VERSION:
        raise LogpolarError(f"{path}: checkpoint version {state.get('version')}, but this logpolar reads {_VERSION}")
    for key, kind in _LAYOUT.items():
        if not isinstance(state.get(key), kind):
            raise LogpolarError(f"{path}: this checkpoint is damaged ({key}); delete it or --overwrite")
    return state


@contextlib.contextmanager
def damaged_state(path: Path) -> Iterator[None]:
    """What trainers raise for a state that is not theirs, in one line."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise LogpolarError(f"{path}: this checkpoint is damaged; delete it or --overwrite") from error
