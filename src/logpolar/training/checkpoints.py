"""Checkpoints: the state of a run in one file, replaced whole or not at all."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import torch

from logpolar.errors import LogpolarError
from logpolar.storage.atomic_io import write_whole

_FORMAT, _VERSION = "logpolar-checkpoint", 1


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a state of tensors and plain values; raises ``OSError``, with the former file intact, if it cannot."""
    buffer = io.BytesIO()
    torch.save({"format": _FORMAT, "version": _VERSION, **state}, buffer)
    write_whole(path, buffer.getvalue())


def load_checkpoint(path: Path, device: torch.device | str) -> dict[str, Any]:
    """The state of ``save_checkpoint``; no code in the file is executed."""
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except (pickle.UnpicklingError, EOFError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise LogpolarError(f"{path}: not a checkpoint, or a damaged one; delete it or --overwrite") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise LogpolarError(f"{path}: not a checkpoint of logpolar")
    if state.get("version") != _VERSION:
        raise LogpolarError(f"{path}: checkpoint version {state.get('version')}, but this logpolar reads {_VERSION}")
    return state
