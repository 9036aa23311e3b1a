"""A run that trains a matcher: views, descriptors, steps, validation, checkpoints, model file."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from logpolar.distributed import cores
from logpolar.errors import LogpolarError
from logpolar.models import Model, load_model
from logpolar.models.matcher_cards import MatcherCard
from logpolar.models.matcher_files import MatcherModel, load_matcher
from logpolar.models.runtimes.torch_device import find_device
from logpolar.storage.atomic_io import Lock
from logpolar.storage.documents import versions
from logpolar.training.matcher_data import CHUNK, Batch, DescribedViews, PairSampler, ViewStore
from logpolar.training.matcher_loop import MatcherTrainer
from logpolar.training.matcher_options import MatcherConfig, ViewsOptions
from logpolar.training.matcher_plan import MadeViews, ViewPlan, make_plan
from logpolar.training.matcher_validation import validate, validation_pairs
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


@dataclass(frozen=True, eq=False)
class Prepared:
    """Views of a plan, described."""

    plan: ViewPlan
    store: ViewStore

    @property
    def views(self) -> DescribedViews:
        return self.store.views


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
    if device.type == "cuda":
        torch.set_num_threads(1)  # waiting threads and the processes that make views starve each other: 20 times slower
    model = load_model(config.descriptor)
    start = load_start(config)
    made = prepare(config, model, device, say)
    held = prepare(config, model, device, say, held_out=True) if config.data.held_out else None
    batches = Refreshed(config, made)
    trainer = MatcherTrainer(config, batches.draw, device)
    if start:
        trainer.start_from(start)
    about = trainer.load(folder)
    if about and about.get("network") != asdict(config.network):
        raise LogpolarError(f"{folder}: its checkpoint is of another network; choose another folder, or --overwrite")
    try:
        figures = run_steps(trainer, folder, held, began, say)
    finally:
        batches.close()
    if batches.count:
        say(f"{batches.count} views were replaced by new ones")
    if trainer.step < config.optimisation.steps:
        say(f"stopped after step {trainer.step}; rerun the command to resume")
        return MatcherReport(None, trainer.step, figures)
    return MatcherReport(write_result(trainer, folder, model, start, made.plan, figures), trainer.step, figures)


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


def prepare(
    config: MatcherConfig, model: Model, device: torch.device, say: Say = print, held_out: bool = False
) -> Prepared:
    """Make the views in processes and describe them on the device."""
    options = validation_views(config.views) if held_out else config.views
    plan = make_plan(config.data, options, held_out)
    tasks = plan.tasks(options, config.run.seed)
    since, store = time.perf_counter(), ViewStore(len(tasks), options, config.batch.variants, model, device)
    store.fill(MadeViews(tasks, min(_jobs(config), len(tasks)), 4096))
    described = store.views
    known = float(described.depth.isfinite().float().mean())
    say(
        f"{len(tasks)} views of {len(plan.files)} images, {int(described.used.any(dim=1).sum())} keypoints, "
        f"{known:.0%} of the places of known depth: {time.perf_counter() - since:.0f} s"
    )
    return Prepared(plan, store)


def _jobs(config: MatcherConfig) -> int:
    return config.run.jobs or cores()


def validation_views(options: ViewsOptions) -> ViewsOptions:
    """Views to validate on: an image as it is, and one warped, by one detector, never altered nor turned far."""
    return replace(options, scene_views=2, altered=0.0, turned=0.0, sift=not options.detector)


class Refreshed:
    """Draws batches; before some, within their share of the time, replaces views by the new ones that are ready."""

    def __init__(self, config: MatcherConfig, made: Prepared) -> None:
        self._draw, self._store = PairSampler(made.plan, made.views, config).draw, made.store
        tasks = made.plan.new_tasks(config.views, config.run.seed)
        self._views = MadeViews(tasks, max(_jobs(config) - 1, 1), 2 * CHUNK) if config.views.refresh else None
        self._share, self._began, self._spent = config.views.refresh, time.perf_counter(), 0.0
        self.count = 0  # of views that were replaced

    def draw(self, step: int) -> Batch:
        since = time.perf_counter()
        in_time = self._spent <= self._share * (since - self._began)
        if self._views and in_time and (ready := self._views.ready(CHUNK)):
            self._store.store(ready)
            self.count += len(ready)
            self._spent += time.perf_counter() - since
        return self._draw(step)

    def close(self) -> None:
        if self._views:
            self._views.close()


def run_steps(
    trainer: MatcherTrainer, folder: Path, held: Prepared | None, began: float, say: Say
) -> dict[str, dict[str, float]]:
    """The remaining steps, or as many as the time allows; the last figures of validation."""
    config, run = trainer.config, trainer.config.run
    log, figures = Table(folder / "log.csv", trainer.step), dict[str, dict[str, float]]()
    pairs = validation_pairs(held.plan, _VALIDATION_PAIRS) if held else {}
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
                    figures = _validate(trainer, held, pairs, say)
            if last or trainer.step % run.checkpoint_every == 0:
                trainer.save(folder, {**about, "figures": figures})
            if late:
                break
            since, count = time.perf_counter(), 0
            total.zero_()
    if held and not figures:  # the last validation was interrupted
        figures = _validate(trainer, held, pairs, say)
    return figures


def _validate(trainer: MatcherTrainer, held: Prepared, pairs: Any, say: Say) -> dict[str, dict[str, float]]:
    config = trainer.config
    figures = validate(trainer.network, held.views, pairs, config.batch, config.views.keypoints)
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
