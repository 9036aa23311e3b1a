"""A run: from a config to a model file, in a folder that can be gone on with."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from logpolar.errors import LogpolarError, ModelError
from logpolar.evaluation.pairs import Score
from logpolar.models import Model, load_model, save_model
from logpolar.onnx_export import export_graph
from logpolar.outputs import write_whole
from logpolar.training.batches import BatchSampler
from logpolar.training.cards import about_teacher, make_card
from logpolar.training.checkpoints import load_checkpoint, save_checkpoint
from logpolar.training.config import config_to_dict, config_to_toml, find_files
from logpolar.training.data import TrainingData, load_training_data
from logpolar.training.distributed import World
from logpolar.training.loop import Trainer
from logpolar.training.options import TrainingConfig
from logpolar.training.records import Records
from logpolar.training.validation import summary, validate

_NEUTRAL = (
    "device",
    "compile",
    "report_every",
    "checkpoint_every",
    "validate_every",
    "validation_pairs",
    "tensorboard",
)
"""Keys of [run] that may differ when a run is gone on with: they do not decide what comes out."""


_FUSING_PAYS = 4000
"""Steps from which on compiling the cutting of patches, 5 s for each pattern, takes less time than it saves."""


class Stopped(Exception):
    """Someone pressed Ctrl-C; the run can be gone on with."""


@dataclass(frozen=True)
class RunReport:
    """What a run came to."""

    model: Path
    scores: dict[str, Score]  # of the validation part of each file
    continued_from: int  # step; 0 for a run in one piece
    was_complete: bool  # before this call


def train(
    config: TrainingConfig,
    folder: Path,
    overwrite: bool = False,
    progress: bool = False,
    data: TrainingData | None = None,
) -> RunReport:
    """Train what the config says, in a folder; goes on from its checkpoint if there is one.

    ``data`` is what ``load_training_data`` made of the config's files, for whoever trains on it more than once. Raises
    ``Stopped`` after Ctrl-C, once a checkpoint is written, and ``LogpolarError`` for what a user can mend.
    """
    world = World.from_environment()
    device = world.device(config.run.device)
    run = _Run(config, folder, device, world, progress and world.is_first, data)
    # Batches always have the same shape, and the same command shall give the same model: no tuning by timing.
    with (
        world.connected(device),
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True),
    ):
        return run.go(overwrite)


class _Run:
    def __init__(
        self,
        config: TrainingConfig,
        folder: Path,
        device: torch.device,
        world: World,
        progress: bool,
        data: TrainingData | None,
    ) -> None:
        self.config, self.folder, self.device, self.world = config, folder, device, world
        self.progress, self.data = progress, data
        self.sources = [find_files(source) for source in config.data]
        self.files = list(dict.fromkeys(path for files in self.sources for path in files))
        self.teacher = _load_teacher(config)
        self.checkpoint, self.model = folder / "checkpoint.pt", folder / f"{config.name}.safetensors"
        self.seconds = 0.0  # spent training, in all pieces of the run
        self.amount = [0, 0]  # image pairs and correspondences

    def go(self, overwrite: bool) -> RunReport:
        state = self._open_folder(overwrite)
        complete = state is not None and state["step"] >= self.config.optimisation.steps and self.model.exists()
        if complete and state is not None:
            scores = {name: Score.from_dict(values) for name, values in state["scores"].items()}
            return RunReport(self.model, scores, 0, True)
        data = self.data or load_training_data(
            self.sources,
            self.config.batch.per_pair,
            self.device,
            progress=self.progress,
            copies=self.config.augmentation.copies if self.config.augmentation.altered else 0,
            seed=self.config.run.seed,
        )
        self._announce(data)
        sampler = self._make_sampler(data)
        teacher = self.teacher.network() if self.teacher else None
        trainer = Trainer(self.config, sampler, self.device, self.world, teacher)
        start = 0
        if state is not None:
            self._check_data(state, data)
            trainer.load(state["trainer"])
            start, self.seconds = trainer.step, float(state["seconds"])
        self.amount = [data.pairs, data.correspondences]
        scores = self._loop(trainer)
        if self.world.is_first:
            self._finish(trainer, data, scores)
        self.world.wait()
        return RunReport(self.model, scores, start, False)

    def _announce(self, data: TrainingData) -> None:
        batch = self.config.batch
        if batch.pairs * batch.per_pair < 2:
            raise LogpolarError(
                "a batch of one correspondence has no wrong answers; raise batch.pairs or batch.per_pair"
            )
        if self.progress:
            what = (
                f"{data.pairs} image pairs of {data.groups} scenes and photos, {data.correspondences} correspondences"
            )
            print(f"training on {what}, on {self.device}", flush=True)

    def _check_data(self, state: dict[str, Any], data: TrainingData) -> None:
        """Files may move, but not change."""
        before, now = state["data"], [data.pairs, data.correspondences]
        if before != now:
            counts = f"{before[1]} correspondences in {before[0]} image pairs before, {now[1]} in {now[0]} now"
            raise LogpolarError(f"{self.checkpoint}: is of other data ({counts}); take another folder, or --overwrite")

    def _make_sampler(self, data: TrainingData) -> BatchSampler:
        config = self.config
        fuse = config.run.compile and self.device.type == "cuda" and config.optimisation.steps >= _FUSING_PAYS
        if fuse or self.teacher:
            torch._dynamo.reset()  # there is a limit to patterns and networks compiled in a process
        shares = [source.share for source in config.data]
        shown = self.teacher.sampling if self.teacher else None
        return BatchSampler(data, shares, config.sampling, config.batch, config.augmentation, fuse, shown)

    def _open_folder(self, overwrite: bool) -> dict[str, Any] | None:
        """The checkpoint to go on from, if any; raises if it is of another config."""
        if self.world.is_first:
            self.folder.mkdir(parents=True, exist_ok=True)
            if overwrite:
                for path in (self.checkpoint, self.model, self.folder / "log.csv", self.folder / "validation.csv"):
                    path.unlink(missing_ok=True)
        self.world.wait()
        if not self.checkpoint.exists():
            if self.world.is_first:
                write_whole(self.folder / "config.toml", config_to_toml(self.config).encode())
            return None
        state = load_checkpoint(self.checkpoint, self.device)
        changed = _differences(state["config"], self._identity())
        if changed:
            raise LogpolarError(
                f"{self.checkpoint}: is of another config ({', '.join(changed)}); take another folder, or --overwrite"
            )
        return state

    def _identity(self) -> dict[str, Any]:
        """What decides the outcome; files by name, for they may have moved."""
        values = config_to_dict(self.config)
        values["run"] = {key: value for key, value in values["run"].items() if key not in _NEUTRAL}
        values["data"] = [
            {"files": [path.name for path in files], "share": source.share}
            for files, source in zip(self.sources, self.config.data, strict=True)
        ]
        values["distillation"] = about_teacher(self.config, self.teacher) if self.teacher else {}
        return {**values, "processes": self.world.size}

    def _loop(self, trainer: Trainer) -> dict[str, Score]:
        """All steps that are left; the scores after the last."""
        run, steps = self.config.run, self.config.optimisation.steps
        meter, scores = _Meter(self.device), dict[str, Score]()
        hidden = None if self.progress else True
        bar = tqdm(total=steps, initial=trainer.step, desc="training", unit="step", disable=hidden)
        with bar, self._records(trainer.step) as records, _stop_requests(self.world) as stop:
            while trainer.step < steps:
                rate = trainer.rate
                meter.add(trainer.advance())
                step, stopped = trainer.step, stop.is_set()  # once: what is asked for later has no checkpoint here
                last = step == steps or stopped
                if not last and all(step % n for n in (run.report_every, run.checkpoint_every, run.validate_every)):
                    continue
                loss, speed, seconds = meter.read()
                self.seconds += seconds
                self._check_finite(loss, trainer)
                bar.update(step - bar.n)
                bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
                if (
                    self.progress and bar.disable and step % run.checkpoint_every == 0
                ):  # no terminal: a line now and then
                    print(f"step {step} of {steps}: loss {loss:.4f}, {speed:.1f} steps/s", flush=True)
                if records:
                    values = {"loss": loss, "learning_rate": rate, "steps_per_second": round(speed, 2)}
                    records.add("log", step, {**values, "seconds": round(self.seconds, 1)})
                if step % run.validate_every == 0 or step == steps:
                    scores = self._validate(trainer, records, bar)
                if last or step % run.checkpoint_every == 0:
                    self._save(trainer, scores)
                if stopped and step < steps:
                    raise Stopped(f"stopped after step {step}; the same command continues")
                meter.restart()
        # Without steps, for all were made before, only the end is missing.
        return scores or self._validate(trainer, None, None)

    def _records(self, step: int) -> contextlib.AbstractContextManager[Records | None]:
        if not self.world.is_first:
            return contextlib.nullcontext()
        return Records(self.folder, step, self.config.run.tensorboard)

    def _check_finite(self, loss: float, trainer: Trainer) -> None:
        """Raise if the loss is not finite, or if that of the next step cannot be."""
        if math.isfinite(loss) and trainer.is_finite:
            return
        kept = "the last good checkpoint is kept" if self.checkpoint.exists() else "there is no checkpoint yet"
        what = f"the loss is not a number any more at step {trainer.step}"
        raise LogpolarError(f"{what} ({kept}); try a lower learning rate")

    def _validate(self, trainer: Trainer, records: Records | None, bar: Any) -> dict[str, Score]:
        if not self.world.is_first:
            return {}
        most = self.config.run.validation_pairs
        scores = validate(trainer.result, self.config.sampling, self.files, most, self.device)
        trainer.resume_training()
        if scores and records:
            mean = summary(scores).to_dict()
            records.add("validation", trainer.step, mean)
            if self.progress:
                bar.write(f"step {trainer.step}: validation " + summary(scores).in_words())
        return scores

    def _save(self, trainer: Trainer, scores: dict[str, Score]) -> None:
        if not self.world.is_first:
            return
        plain = {name: score.to_dict() for name, score in scores.items()}
        state = {"step": trainer.step, "trainer": trainer.state(), "seconds": self.seconds, "scores": plain}
        save_checkpoint(self.checkpoint, {**state, "config": self._identity(), "data": self.amount})

    def _finish(self, trainer: Trainer, data: TrainingData, scores: dict[str, Score]) -> None:
        """The card to read, a plain ONNX file, and the model file: the last, for it says that the run is complete."""
        about = self.seconds, self.device, self.world, self.teacher
        card = make_card(self.config, self.sources, data, scores, *about)
        network = trainer.result.cpu()
        write_whole(self.model.with_suffix(".onnx"), export_graph(network, card.to_json()))
        write_whole(self.folder / "card.json", (card.to_json(indent=2) + "\n").encode())
        save_model(self.model, network, card)


def _load_teacher(config: TrainingConfig) -> Model | None:
    """The model that the config imitates, if any; raises ``LogpolarError`` if it cannot be used."""
    if not config.distillation.wanted:
        return None
    try:
        teacher = load_model(config.distillation.teacher)
        teacher.network()  # its weights may not fit its card: better known before the data are read
    except ModelError as error:
        raise LogpolarError(f"[distillation] teacher: {error}") from error
    return teacher


class _Meter:
    """Mean loss and speed since the last reading; the loss stays on the device until it is read."""

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


@contextlib.contextmanager
def _stop_requests(world: World) -> Iterator[threading.Event]:
    """An event that Ctrl-C, or a polite kill, sets, so that a step is finished first; a second one stops at once.

    Of several processes none may stop before the others: there Ctrl-C keeps its usual meaning.
    """
    event = threading.Event()
    if world.size > 1 or threading.current_thread() is not threading.main_thread():
        yield event
        return

    def request(number: int, frame: Any) -> None:
        if event.is_set():
            raise KeyboardInterrupt
        event.set()

    signals = signal.SIGINT, signal.SIGTERM
    before = [signal.signal(each, request) for each in signals]
    try:
        yield event
    finally:
        for each, handler in zip(signals, before, strict=True):
            signal.signal(each, handler)
