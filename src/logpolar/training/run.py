"""A training run: from a config to a model file, in a folder from which it can be resumed."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from logpolar.errors import LogpolarError
from logpolar.evaluation.pairs import Score
from logpolar.models import load_model
from logpolar.models.export import network_file, own_network_file, save_model
from logpolar.storage.atomic_io import Lock, write_whole
from logpolar.training.batches import BatchSampler
from logpolar.training.cards import make_card
from logpolar.training.checkpoints import damaged_state, load_checkpoint, save_checkpoint
from logpolar.training.config import config_to_dict, config_to_toml, find_files
from logpolar.training.data import TrainingData, load_training_data
from logpolar.training.loop import Trainer
from logpolar.training.options import TrainingConfig
from logpolar.training.parts import Parts
from logpolar.training.processes import World
from logpolar.training.records import Records
from logpolar.training.stopping import StopRequests, stop_requests
from logpolar.training.validation import summary, validate

_IDENTITY = ("seed", "precision")
"""Keys of [run] that determine the result; the others may differ when a run is resumed."""

_FUSING_PAYS = 4000
"""Steps from which compiling patch sampling, 5 s per pattern, saves more time than it takes."""


@dataclass(frozen=True)
class RunReport:
    """The outcome of a run."""

    model: Path
    scores: dict[str, Score]  # on the validation split of each file
    continued_from: int  # step; 0 for an uninterrupted run
    was_complete: bool  # before this call


def train(
    config: TrainingConfig,
    folder: Path,
    overwrite: bool = False,
    progress: bool = False,
    data: TrainingData | None = None,
) -> RunReport:
    """Train a model in a folder, resuming from its checkpoint if there is one.

    ``data`` is the result of ``load_training_data`` for the config's files, to train on it more than once. Raises
    ``Stopped`` after Ctrl-C, once a checkpoint is written, and ``LogpolarError`` for user errors.
    """
    world = World.from_environment()
    device = world.device(config.run.device)
    run = _Run(config, folder, device, world, progress and world.is_first)
    # Batches always have the same shape, and the same command must give the same model: no tuning by timing.
    with (
        world.connected(device),
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True),
    ):
        return run.go(overwrite, data)


class _Run:
    def __init__(
        self, config: TrainingConfig, folder: Path, device: torch.device, world: World, progress: bool
    ) -> None:
        self.config, self.folder, self.device, self.world, self.progress = config, folder, device, world, progress
        self.sources = [find_files(source) for source in config.data]
        self.files = list(dict.fromkeys(path for files in self.sources for path in files))
        self.parts = Parts.load(config)
        self.checkpoint, self.onnx = folder / "checkpoint.pt", folder / f"{config.name}.onnx"
        self.model = self.onnx if self.parts.network else self.onnx.with_suffix(".safetensors")
        self.seconds = 0.0  # spent training, over all resumed runs
        self.due = False  # whether the state after the current step is still to be validated
        self.amount = [0, 0]  # image pairs and correspondences

    def go(self, overwrite: bool, data: TrainingData | None) -> RunReport:
        with contextlib.ExitStack() as stack:
            if self.world.is_first:
                self.folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(Lock(self.checkpoint))
            return self._go(overwrite, data)

    def _go(self, overwrite: bool, data: TrainingData | None) -> RunReport:
        config = self.config
        state = self._open_folder(overwrite)
        written = self.model.exists() and self.onnx.exists()
        if state is not None and state["step"] >= config.optimisation.steps and written:
            with damaged_state(self.checkpoint):
                scores = {name: Score.from_dict(values) for name, values in state["scores"].items()}
            return RunReport(self.model, scores, 0, True)
        data = data or load_training_data(
            self.sources,
            config.batch.per_pair,
            self.device,
            progress=self.progress,
            copies=config.augmentation.used_copies,
            seed=config.run.seed,
        )
        self._announce(data)
        parts = self.parts
        teacher = parts.teacher.network() if parts.teacher else None
        own_loss = parts.loss.call if parts.loss else None
        sampler = self._make_sampler(data)
        trainer = Trainer(config, sampler, self.device, self.world, teacher, parts.make_network, own_loss)
        self.amount = [data.pairs, data.correspondences]
        start = 0
        if state is not None:
            with damaged_state(self.checkpoint):
                self._check_data(state["data"])
                trainer.load(state["trainer"])
                start, self.seconds, self.due = trainer.step, float(state["seconds"]), bool(state.get("due"))
        scores = self._loop(trainer)
        if self.world.is_first:
            self._finish(trainer, data, scores)
        self.world.wait()
        return RunReport(self.model, scores, start, False)

    def _announce(self, data: TrainingData) -> None:
        batch = self.config.batch
        if batch.pairs * batch.per_pair < 2:
            raise LogpolarError("a batch of one correspondence has no negatives; raise batch.pairs or batch.per_pair")
        if self.progress:
            count = f"{data.pairs} image pairs of {data.groups} scenes and photos"
            what = f"{self.config.name} on {count}, {data.correspondences} correspondences"
            start = f", from {self.parts.init.name}" if self.parts.init else ""
            print(f"training {what}, on {self.device}{start}", flush=True)

    def _check_data(self, before: list[int]) -> None:
        """Files may move, but not change."""
        if before != self.amount:
            old, new = (f"{correspondences} in {pairs} image pairs" for pairs, correspondences in (before, self.amount))
            self._refuse(f"other data ({old} before, {new} now)")

    def _refuse(self, what: str) -> None:
        raise LogpolarError(f"{self.checkpoint}: from {what}; choose another folder, or --overwrite")

    def _make_sampler(self, data: TrainingData) -> BatchSampler:
        config = self.config
        fuse = config.run.compile and self.device.type == "cuda" and config.optimisation.steps >= _FUSING_PAYS
        teacher = self.parts.teacher
        if fuse or teacher:
            torch._dynamo.reset()  # a process can only compile so many patterns and networks
        shares = [source.share for source in config.data]
        shown = teacher.sampling if teacher else None
        return BatchSampler(data, shares, config.sampling, config.batch, config.augmentation, fuse, shown)

    def _open_folder(self, overwrite: bool) -> dict[str, Any] | None:
        """The checkpoint to resume from, if any; raises if it is of another config."""
        if self.world.is_first:
            logs = self.folder / "log.csv", self.folder / "validation.csv"
            for path in (self.checkpoint, *logs) if overwrite else ():  # the model stays until there is another
                path.unlink(missing_ok=True)
        self.world.wait()
        if not self.checkpoint.exists():
            if self.world.is_first:
                write_whole(self.folder / "config.toml", config_to_toml(self.config).encode())
            return None
        state = load_checkpoint(self.checkpoint, self.device)
        changed = _differences(state["config"], self._identity())
        if changed:
            self._refuse(f"another config ({', '.join(changed)})")
        return state

    def _identity(self) -> dict[str, Any]:
        """What determines the result; files by name, since they may move."""
        values = config_to_dict(self.config)
        values["run"] = {key: values["run"][key] for key in _IDENTITY}
        values["data"] = [
            {"files": [path.name for path in files], "share": source.share}
            for files, source in zip(self.sources, self.config.data, strict=True)
        ]
        for key in ("distillation", "init", "own_network", "own_loss"):
            del values[key]
        return {**values, **self.parts.identity(self.config), "processes": self.world.size}

    def _loop(self, trainer: Trainer) -> dict[str, Score]:
        """The remaining steps; the scores after the last."""
        run, steps = self.config.run, self.config.optimisation.steps
        meter, scores = _Meter(self.device), dict[str, Score]()
        hidden = None if self.progress else True
        bar = tqdm(total=steps, initial=trainer.step, desc=self.config.name, unit="step", disable=hidden)
        alone = self.world.size == 1  # of several processes none may stop before the others
        with bar, self._records(trainer.step) as records, stop_requests(alone) as stop:
            if self.due:
                scores = self._validate_kept(trainer, records, bar, stop)
            while trainer.step < steps:
                rate = trainer.rate
                meter.add(self._advance(trainer, stop))
                step, stopped = trainer.step, bool(stop)  # read once: a later request has no checkpoint here
                last = step == steps or stopped
                if not last and all(step % n for n in (run.report_every, run.checkpoint_every, run.validate_every)):
                    continue
                loss, speed, seconds = meter.read()
                self.seconds += seconds
                self._check_finite(loss, trainer)
                bar.update(step - bar.n)
                bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
                if self.progress and bar.disable and step % run.checkpoint_every == 0:  # not a terminal
                    words = f"step {step} of {steps}: loss {loss:.4f}, {speed:.1f} steps/s"
                    print(f"{self.config.name}: {words}", flush=True)
                if records:
                    values = {"loss": loss, "learning_rate": rate, "steps_per_second": round(speed, 2)}
                    records.add("log", step, {**values, "seconds": round(self.seconds, 1)})
                self.due = step % run.validate_every == 0 or step == steps
                if last or self.due or step % run.checkpoint_every == 0:
                    self._save(trainer, scores)
                if stopped:
                    raise stop.stopped(step)
                if self.due:
                    scores = self._validate_kept(trainer, records, bar, stop)
                meter.restart()
        # Where all steps were done before, only the end is missing.
        return scores or self._validate(trainer, None, None)

    def _advance(self, trainer: Trainer, stop: StopRequests) -> torch.Tensor:
        """A step; one that takes long, on a CPU, is given up at a request, as if it had not begun."""
        if self.device.type != "cpu" or self.world.size > 1:
            return trainer.advance()
        loss = stop.finish(trainer.advance, trainer.give_up)
        if loss is None:
            self._save(trainer, {})
            raise stop.stopped(trainer.step)
        return loss

    def _validate_kept(
        self, trainer: Trainer, records: Records | None, bar: Any, stop: StopRequests
    ) -> dict[str, Score]:
        """Validate after a checkpoint, which says that this is due: a stopped run begins with it."""
        with stop.at_once(trainer.step):
            scores = self._validate(trainer, records, bar)
        self.due = False
        self._save(trainer, scores)
        return scores

    def _records(self, step: int) -> contextlib.AbstractContextManager[Records | None]:
        if not self.world.is_first:
            return contextlib.nullcontext()
        return contextlib.closing(Records(self.folder, step, self.config.run.tensorboard))

    def _check_finite(self, loss: float, trainer: Trainer) -> None:
        """Raise if the loss is not finite, or if the next one cannot be."""
        if math.isfinite(loss) and trainer.is_finite:
            return
        kept = "the last good checkpoint is kept" if self.checkpoint.exists() else "there is no checkpoint yet"
        raise LogpolarError(f"the loss diverged at step {trainer.step} ({kept}); try a lower learning rate")

    def _validate(self, trainer: Trainer, records: Records | None, bar: Any) -> dict[str, Score]:
        if not self.world.is_first:
            return {}
        most = self.config.run.validation_pairs
        scores = validate(trainer.result, self.config.sampling, self.files, most, self.device)
        trainer.resume_training()
        if scores and records:
            mean = summary(scores)
            records.add("validation", trainer.step, mean.to_dict())
            if self.progress:
                bar.write(f"{self.config.name}: step {trainer.step}: validation {mean.in_words()}")
        return scores

    def _save(self, trainer: Trainer, scores: dict[str, Score]) -> None:
        if not self.world.is_first:
            return
        plain = {name: score.to_dict() for name, score in scores.items()}
        state = {"step": trainer.step, "trainer": trainer.state(), "seconds": self.seconds, "scores": plain}
        state["due"] = self.due
        if trainer.step >= self.config.optimisation.steps:
            self.onnx.unlink(missing_ok=True)  # of an overwritten run: it would mark this one as complete
        save_checkpoint(self.checkpoint, {**state, "config": self._identity(), "data": self.amount})

    def _finish(self, trainer: Trainer, data: TrainingData, scores: dict[str, Score]) -> None:
        """Write the card, the model file and, of what that holds, an ONNX file: the last, it marks a complete run."""
        about = self.parts.identity(self.config)
        card = make_card(self.config, self.sources, data, scores, self.seconds, self.device, self.world, about)
        write_whole(self.folder / "card.json", (card.to_json(indent=2) + "\n").encode())
        if self.parts.network:
            write_whole(self.onnx, own_network_file(trainer.result.cpu(), card))
            return
        save_model(self.model, trainer.result.cpu(), card)
        write_whole(self.onnx, network_file(load_model(self.model)))


class _Meter:
    """Mean loss and speed since the last restart; the loss stays on the device until it is read."""

    def __init__(self, device: torch.device) -> None:
        self._total = torch.zeros((), device=device)
        self.restart()

    def restart(self) -> None:
        self._total.zero_()
        self._count, self._since = 0, time.perf_counter()

    def add(self, loss: torch.Tensor) -> None:
        self._total += loss
        self._count += 1

    def read(self) -> tuple[float, float, float]:
        """Mean loss, steps per second, seconds."""
        mean = float(self._total) / self._count
        seconds = time.perf_counter() - self._since
        return mean, self._count / seconds, seconds


def _differences(before: Any, now: Any, name: str = "") -> list[str]:
    """Names of the keys that differ, with both values."""
    if isinstance(before, dict) and isinstance(now, dict):
        keys = list(dict.fromkeys([*before, *now]))
        return [d for key in keys for d in _differences(before.get(key), now.get(key), f"{name}.{key}".strip("."))]
    return [] if before == now else [f"{name}: {before} before, {now} now"]
