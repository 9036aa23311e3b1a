"""Checkpoints of a matcher in training: safetensors files below a size, so that they can be carried elsewhere.

Weights are float32, the moments of AdamW bfloat16 (the second as its root): small, and nothing is rounded to 0.
Training can be resumed from the weights alone; the moments then start anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from logpolar.errors import LogpolarError
from logpolar.models.matcher_network import MatcherNetwork
from logpolar.storage.atomic_io import write_whole
from logpolar.storage.inputs import check_regular, parse_json

PIECE_BYTES = 15 * 2**20
_FORMAT = "logpolar-matcher-checkpoint-1"


def save_pieces(
    folder: Path, network: MatcherNetwork, optimiser: torch.optim.AdamW, step: int, about: dict[str, Any]
) -> list[Path]:
    """Write ``checkpoint-N.safetensors``: first all weights, then the moments. Files of one step belong together.

    Those of an earlier step stay until all of these are there.
    """
    weights = {f"weight/{name}": value.detach() for name, value in network.named_parameters()}
    moments = {}
    for name, parameter in network.named_parameters():
        state = optimiser.state.get(parameter)
        if state:
            moments[f"first/{name}"] = state["exp_avg"].to(torch.bfloat16)
            moments[f"second/{name}"] = state["exp_avg_sq"].sqrt().to(torch.bfloat16)
    pieces = _divide(weights) + _divide(moments)
    metadata = {"format": _FORMAT, "step": str(step), "pieces": str(len(pieces)), "about": json.dumps(about)}
    paths = [folder / f"checkpoint-{number}.safetensors" for number in range(len(pieces))]
    new = [path.with_name(f"checkpoint-new-{number}.safetensors") for number, path in enumerate(paths)]
    for path, piece in zip(new, pieces, strict=True):
        write_whole(path, save({name: value.cpu().contiguous() for name, value in piece.items()}, metadata))
    for path, place in zip(new, paths, strict=True):
        path.replace(place)
    return paths


def _divide(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    pieces: list[dict[str, Tensor]] = []
    room = 0
    for name, value in tensors.items():
        size = value.numel() * value.element_size()
        if size > room:
            pieces.append({})
            room = PIECE_BYTES
        pieces[-1][name] = value
        room -= size
    return pieces


def load_pieces(folder: Path, network: MatcherNetwork, optimiser: torch.optim.AdamW) -> tuple[int, dict[str, Any]]:
    """Load a checkpoint; its step and what was said about it. Step 0 and nothing if there is none.

    It is the last complete one; without any, the last that has all weights: the moments then start anew.
    """
    steps: dict[int, tuple[dict[str, Any], dict[str, Tensor]]] = {}
    for path in sorted(folder.glob("checkpoint-*.safetensors")):
        step, about, found = _read(path)
        steps[step] = about, {**steps.get(step, (about, {}))[1], **found}
    if not steps:
        return 0, {}
    parameters = dict(network.named_parameters())

    def has(step: int, *kinds: str) -> bool:
        tensors = steps[step][1]
        wanted = {f"{kind}/{name}": value.shape for kind in kinds for name, value in parameters.items()}
        return all(name in tensors and tensors[name].shape == shape for name, shape in wanted.items())

    complete = [step for step in steps if has(step, "weight", "first", "second")]
    usable = complete or [step for step in steps if has(step, "weight")]
    if not usable:
        raise LogpolarError(f"{folder}: the checkpoint is of another network, or pieces of its weights are missing")
    step = max(usable)
    about, tensors = steps[step]
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(tensors[f"weight/{name}"])
    if complete:
        _set_moments(optimiser, parameters, tensors, step)
    return step, about


def _set_moments(
    optimiser: torch.optim.AdamW, parameters: dict[str, torch.nn.Parameter], tensors: dict[str, Tensor], step: int
) -> None:
    for name, parameter in parameters.items():
        optimiser.state[parameter] = {
            "step": torch.tensor(float(step), device=parameter.device),
            "exp_avg": tensors[f"first/{name}"].to(parameter),
            "exp_avg_sq": tensors[f"second/{name}"].to(parameter).square(),
        }


def _read(path: Path) -> tuple[int, dict[str, Any], dict[str, Tensor]]:
    """Step, what was said about it, and tensors of a piece."""
    damaged = f"{path}: not a checkpoint, or a damaged one; delete it or --overwrite"
    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata.get("format") != _FORMAT:
            raise LogpolarError(f"{path}: not a checkpoint of a matcher")
        step, about = int(metadata["step"]), parse_json(metadata["about"])
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise LogpolarError(damaged) from error
    if not isinstance(about, dict) or not 0 <= step < 2**53:
        raise LogpolarError(damaged)
    return step, about, found
