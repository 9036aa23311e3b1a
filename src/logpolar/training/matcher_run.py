"""A run that trains a matcher: views, descriptors, steps, validation, checkpoints, model file."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from logpolar.errors import LogpolarError
from logpolar.models import Model, load_model
from logpolar.models.files import DetectorModel, load_detector
from logpolar.models.matcher_cards import MatcherCard
from logpolar.models.matcher_files import MatcherModel, load_matcher
from logpolar.models.runtimes.torch_device import find_device
from logpolar.storage.atomic_io import Lock
from logpolar.storage.documents import versions
from logpolar.training.matcher_data import CHUNK, Batch, PairSampler, ViewPool
from logpolar.training.matcher_loop import MatcherTrainer
from logpolar.training.matcher_options import MatcherConfig
from logpolar.training.matcher_plan import ViewPlan, make_plan
from logpolar.training.matcher_sources import read_sources
from logpolar.training.matcher_validation import validate, validation_pairs
from logpolar.training.matcher_views import ViewMaker, Views
from logpolar.training.records import Table
from logpolar.training.stopping import stop_requests

_VALIDATION_PAIRS = 24
"""Of each held-out scene."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class MatcherReport:
    """The outcome of a run; no model if it was stopped by its time limit."""

    model: Path | None
    step: int
    figures: dict[str, dict[str, float]]


def train_matcher(config: MatcherConfig, folder: Path, overwrite: bool = False, say: Say = print) -> MatcherReport:
    """Train a matcher in a folder, resuming from its checkpoint if there is one.

    Raises ``Stopped`` after Ctrl-C, once a checkpoint is written, and ``LogpolarError`` for user errors.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with Lock(folder / "checkpoint"):
        return _train(config, folder, overwrite, say)


def _train(config: MatcherConfig, folder: Path, overwrite: bool, say: Say) -> MatcherReport:
    began = time.perf_counter()
    if overwrite:
        for path in folder.glob("checkpoint-*.safetensors"):
            path.unlink()
    device = find_device(_device_name(config.run.device))
    model, detector = load_model(config.descriptor), load_detector(config.views.detector)
    start = load_start(config)
    plan = make_plan(config.data, config.views)
    pool = ViewPool(plan, _maker(plan, config, model, detector, device, say), config, device)
    held = held_out_views(config, model, detector, device, say) if config.data.held_out else None
    sampler = PairSampler(plan, config)

    def draw(step: int) -> Batch:
        return sampler.draw(step, pool.reach(step))

    trainer = MatcherTrainer(config, draw, device)
    if start:
        trainer.start_from(start)
    about = trainer.load(folder)
    if about and about.get("network") != asdict(config.network):
        raise LogpolarError(f"{folder}: its checkpoint is of another network; choose another folder, or --overwrite")
    figures = run_steps(trainer, folder, held, began, say)
    if trainer.step < config.optimisation.steps:
        say(f"stopped after step {trainer.step}; rerun the command to resume")
        return MatcherReport(None, trainer.step, figures)
    return MatcherReport(write_result(trainer, folder, model, start, plan, figures), trainer.step, figures)


def load_start(config: MatcherConfig) -> MatcherModel | None:
    """The matcher to start from, if the config names one; raises ``LogpolarError`` if it is of another network."""
    if not config.init:
        return None
    start = load_matcher(config.init)
    if start.card.network != config.network:
        raise LogpolarError(f"init: the [network] of matcher '{start.card.name}' is another one")
    return start


def _device_name(name: str) -> str:
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def _maker(
    plan: ViewPlan, config: MatcherConfig, model: Model, detector: DetectorModel, device: torch.device, say: Say
) -> ViewMaker:
    since, views = time.perf_counter(), config.views
    sources = read_sources(plan.files, views.max_size, device, views.copies if views.altered else 0, config.run.seed)
    say(f"{len(plan.files)} images for {len(plan.owners)} views: {time.perf_counter() - since:.0f} s")
    return ViewMaker(sources, views, detector, model, config.run.compile and device.type == "cuda")


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Views of the scenes that are for validation only, and the pairs of them."""

    views: Views
    pairs: dict[str, NDArray[np.int64]]


def held_out_views(
    config: MatcherConfig, model: Model, detector: DetectorModel, device: torch.device, say: Say
) -> HeldOut:
    """Of each image the image as it is and a warped view, never altered."""
    config = replace(config, views=replace(config.views, scene_views=2, altered=0.0))
    plan = make_plan(config.data, config.views, held_out=True)
    maker, owners = _maker(plan, config, model, detector, device, say), torch.from_numpy(plan.owners).to(device)
    views, generator = Views.none(len(owners), config.views, device), torch.Generator(device).manual_seed(0)
    for chunk in torch.split(torch.arange(len(owners), device=device), CHUNK):
        views.store(chunk, maker.make(owners[chunk], chunk % 2 == 0, generator))
    return HeldOut(views, validation_pairs(plan, _VALIDATION_PAIRS))


def run_steps(
    trainer: MatcherTrainer, folder: Path, held: HeldOut | None, began: float, say: Say
) -> dict[str, dict[str, float]]:
    """The remaining steps, or as many as the time allows; the last figures of validation."""
    config, run = trainer.config, trainer.config.run
    log, figures = Table(folder / "log.csv", trainer.step), dict[str, dict[str, float]]()
    since, count = time.perf_counter(), 0
    total = torch.zeros(2, device=trainer.network.encoder.place.device)
    with stop_requests() as stop:
        while trainer.step < config.optimisation.steps:
            total += torch.stack(trainer.advance())
            count += 1
            late = bool(run.seconds) and time.perf_counter() - began > run.seconds
            stopped = bool(stop)  # read once: a later request has no checkpoint here
            last = late or stopped or trainer.step == config.optimisation.steps
            if not last and all(trainer.step % n for n in (run.report_every, run.checkpoint_every, run.validate_every)):
                continue
            loss, matches = (total / count).tolist()
            if not (math.isfinite(loss) and trainer.is_finite):
                raise LogpolarError(f"the loss diverged at step {trainer.step}; try a lower learning rate")
            pairs_drawn = config.pairs_before(trainer.step) - config.pairs_before(trainer.step - count)
            speed = pairs_drawn / (time.perf_counter() - since)
            log.add(trainer.step, {"loss": loss, "matches": matches, "pairs_per_second": round(speed, 1)})
            say(f"step {trainer.step}: loss {loss:.4f}, of matches {matches:.4f}, {speed:.0f} pairs/s")
            about = {"network": asdict(config.network), "steps": config.optimisation.steps}
            if stopped:
                trainer.save(folder, {**about, "figures": figures})
                raise stop.stopped(trainer.step)
            if held and (last or trainer.step % run.validate_every == 0):
                trainer.save(folder, {**about, "figures": figures})
                with stop.at_once(trainer.step):
                    figures = _validate(trainer, held, say)
            if last or trainer.step % run.checkpoint_every == 0:
                trainer.save(folder, {**about, "figures": figures})
            if late:
                break
            since, count = time.perf_counter(), 0
            total.zero_()
    if held and not figures:  # the last validation was interrupted
        figures = _validate(trainer, held, say)
    return figures


def _validate(trainer: MatcherTrainer, held: HeldOut, say: Say) -> dict[str, dict[str, float]]:
    figures = validate(trainer.network, held.views, held.pairs, trainer.config)
    say(f"step {trainer.step}: validation {json.dumps(_short(figures))}")
    return figures


def _short(figures: dict[str, dict[str, float]]) -> dict[str, list[float]]:
    return {name: [round(value, 4) for value in values.values()] for name, values in figures.items()}


def write_result(
    trainer: MatcherTrainer,
    folder: Path,
    model: Model,
    start: MatcherModel | None,
    plan: ViewPlan,
    figures: dict[str, dict[str, float]],
) -> Path:
    """Write the file of the matcher; its card names the descriptor model."""
    from logpolar.models.matcher_export import save_matcher

    config = trainer.config
    training: dict[str, Any] = {
        "config": json.loads(json.dumps(asdict(config))),
        "pairs_seen": config.pairs_before(trainer.step),
        "images": len(plan.files),
        "groups": {kind: len(groups) for kind, groups in plan.pairs.items()},
        "versions": versions("numpy", "torch"),
    }
    for kind in ("scenes", "photos", "aligned"):  # names say what it was trained on; paths are of this machine
        training["config"]["data"][kind] = sorted({Path(each).name for each in getattr(config.data, kind)})
    training["config"]["descriptor"] = model.name
    if start:
        training["config"]["init"] = start.card.name
        training["init_hash"] = start.digest
    card = MatcherCard(
        config.name, config.description, config.network, model.name, model.digest, training, figures, config.licence
    )
    path = folder / f"{config.name}.safetensors"
    save_matcher(path, trainer.network.cpu(), card)
    return path
