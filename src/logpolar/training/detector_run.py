"""A run of detector training: from a config to a model file, in a folder from which it can be resumed."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from logpolar.errors import LogpolarError, ModelError
from logpolar.keypoints.detection import SiftDetector
from logpolar.models import load_model
from logpolar.models.cards import DetectorCard
from logpolar.models.detector_export import save_detector
from logpolar.models.files import DetectorModel, load_detector
from logpolar.storage.atomic_io import Lock, write_whole
from logpolar.storage.documents import versions
from logpolar.training.checkpoints import damaged_state, load_checkpoint, save_checkpoint
from logpolar.training.detector_config import detector_config_to_dict, detector_config_to_toml
from logpolar.training.detector_crops import CropSampler
from logpolar.training.detector_data import load_source
from logpolar.training.detector_loop import MEASURES, DetectorTrainer, FrozenDescriptor
from logpolar.training.detector_options import DetectorConfig
from logpolar.training.detector_sources import make_data
from logpolar.training.detector_validation import (
    DetectorScore,
    by_detector,
    by_network,
    score_detector,
    whole_views,
)
from logpolar.training.detector_votes import VoteMaps
from logpolar.training.processes import World
from logpolar.training.records import Records
from logpolar.training.stopping import stop_requests

_COUNTS, _ZOOMS, _SIDE = (1024, 2048), (1, 3), 640
"""Keypoints, scale ratios and the frame of validation views."""

SIFT = "SIFT"
"""Its scores stand beside those of the detector."""

Scores = dict[str, DetectorScore]
"""By data, zoom and number of keypoints."""


@dataclass(frozen=True)
class DetectorReport:
    """The outcome of a run: scores of the detector and of SIFT on the validation split."""

    model: Path
    scores: Scores
    sift: Scores


def train_detector(
    config: DetectorConfig, folder: Path, overwrite: bool = False, progress: bool = False
) -> DetectorReport:
    """Train a detector in a folder, resuming from its checkpoint if there is one.

    Raises ``Stopped`` after Ctrl-C, once a checkpoint is written, and ``LogpolarError`` for user errors.
    """
    device = World().device(config.run.device)
    run = _Run(config, folder, device, progress)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        return run.go(overwrite)


def _load_start(config: DetectorConfig) -> DetectorModel | None:
    """The detector to start from, if the config names one."""
    if not config.init:
        return None
    try:
        model = load_detector(config.init)
    except ModelError as error:
        raise LogpolarError(f"init: {error}") from error
    if model.card.variant is not None:
        raise LogpolarError(
            f"init: {model.name} is a variant, which cannot be trained; use '{model.card.variant.parent}'"
        )
    if model.card.network != config.network:
        raise LogpolarError(f"init: the [network] of detector '{model.name}' is another one")
    return model


def _without_paths(values: dict[str, Any]) -> dict[str, Any]:
    """A config with the names of its files: their folders are of one machine."""
    data = [{**source, "files": [Path(each).name for each in source["files"]]} for source in values["data"]]
    objectives = {**values["objectives"], "descriptor": Path(values["objectives"]["descriptor"]).name}
    return {**values, "data": data, "objectives": objectives, "init": Path(values["init"]).name}


class _Run:
    def __init__(self, config: DetectorConfig, folder: Path, device: torch.device, progress: bool) -> None:
        self.config, self.folder, self.device, self.progress = config, folder, device, progress
        self.checkpoint, self.model = folder / "checkpoint.pt", folder / f"{config.name}.safetensors"
        model = load_model(config.objectives.descriptor)
        fuse = config.run.compile and device.type == "cuda"
        half = device.type == "cuda"
        size = config.objectives.size
        self._describe = FrozenDescriptor(model.network(), model.sampling, size, device, fuse, half)
        self._plainly = FrozenDescriptor(model.network(), model.sampling, size, device, False, half)
        self._described, self._digest = model.name, model.digest
        self._init = _load_start(config)
        self._amounts: list[int] = []  # image pairs of each source
        self._seconds = 0.0  # spent training, over all resumed runs

    def go(self, overwrite: bool) -> DetectorReport:
        self.folder.mkdir(parents=True, exist_ok=True)
        with Lock(self.checkpoint):
            return self._go(overwrite)

    def _go(self, overwrite: bool) -> DetectorReport:
        state = self._open(overwrite)
        seed = self.config.run.seed
        imitates = self.config.objectives.imitation > 0
        sources = [load_source(source, "train", seed, votes=imitates) for source in self.config.data]
        self._validation = [load_source(source, "validation", seed) for source in self.config.data]
        data = make_data(sources, self.device, self.config.crops.used_copies, seed)
        votes = VoteMaps([each for source in sources for each in source.votes], self.device) if imitates else None
        sampler = CropSampler(data, [source.share for source in self.config.data], self.config.crops)
        trainer = DetectorTrainer(self.config, sampler, self.device, self._describe, votes)
        amounts = [f"{len(each)} of {source.kind}" for each, source in zip(sources, self.config.data, strict=True)]
        self._say(f"training on image pairs: {', '.join(amounts)}; on {self.device}")
        self._amounts = [len(each) for each in sources]
        if self._init and state is None:
            trainer.start_from(self._init)
        if state is not None:
            if state["data"] != self._amounts:
                raise LogpolarError(f"{self.checkpoint}: from other data; choose another folder, or --overwrite")
            with damaged_state(self.checkpoint):
                trainer.load(state["trainer"])
            self._seconds = float(state["seconds"])
        self._loop(trainer)
        scores = self._validate(by_network(trainer.result))
        sift = self._validate(by_detector(SiftDetector(max(_COUNTS), contrast_threshold=0.0)))
        self._finish(trainer, scores, sift)
        return DetectorReport(self.model, scores, sift)

    def _say(self, words: str) -> None:
        if self.progress:
            print(words, flush=True)

    def _identity(self) -> dict[str, Any]:
        values = detector_config_to_dict(self.config)
        values["run"] = {key: values["run"][key] for key in ("seed", "precision")}
        return {**values, "descriptor_hash": self._digest, "init": self._init.digest if self._init else ""}

    def _open(self, overwrite: bool) -> dict[str, Any] | None:
        """The checkpoint to resume from, if any; raises if it is of another config."""
        logs = self.folder / "log.csv", self.folder / "validation.csv"
        for path in (self.checkpoint, *logs) if overwrite else ():  # the model stays until there is another
            path.unlink(missing_ok=True)
        if not self.checkpoint.exists():
            write_whole(self.folder / "config.toml", detector_config_to_toml(self.config).encode())
            return None
        state = load_checkpoint(self.checkpoint, self.device)
        if state["config"] != self._identity():
            raise LogpolarError(f"{self.checkpoint}: from another config; choose another folder, or --overwrite")
        return state

    def _loop(self, trainer: DetectorTrainer) -> None:
        run, steps = self.config.run, self.config.optimisation.steps
        records = Records(self.folder, trainer.step, run.tensorboard)
        total, count, since = torch.zeros(len(MEASURES), device=self.device), 0, time.perf_counter()
        with contextlib.closing(records), stop_requests() as stop:
            while trainer.step < steps:
                total += trainer.advance()
                count += 1
                stopped = bool(stop)  # read once: a later request has no checkpoint here
                last = trainer.step == steps or stopped
                if last or trainer.step % run.report_every == 0:
                    values = dict(zip(MEASURES, (total / count).tolist(), strict=True))
                    if not (math.isfinite(values["loss"]) and trainer.is_finite):
                        raise LogpolarError(f"the loss diverged at step {trainer.step}; try a lower learning rate")
                    seconds = time.perf_counter() - since
                    self._seconds, speed = self._seconds + seconds, count / seconds
                    records.add("log", trainer.step, {**values, "steps_per_second": round(speed, 2)})
                    self._say(f"step {trainer.step} of {steps}: loss {values['loss']:.4f}, {speed:.1f} steps/s")
                    total.zero_()
                    count, since = 0, time.perf_counter()
                if last or trainer.step % run.checkpoint_every == 0:
                    self._save(trainer)
                if stopped:
                    raise stop.stopped(trainer.step)

    def _save(self, trainer: DetectorTrainer) -> None:
        state = {"step": trainer.step, "trainer": trainer.state(), "config": self._identity(), "data": self._amounts}
        save_checkpoint(self.checkpoint, {**state, "seconds": self._seconds, "scores": {}})

    def _validate(self, find: Any) -> Scores:
        scores = {}
        for source, images in zip(self.config.data, self._validation, strict=True):
            if not len(images):
                continue
            data = make_data([images], self.device)
            most = self.config.run.validation_pairs or len(images)
            for zoom in _ZOOMS:
                views = list(whole_views(data, 0, _SIDE, zoom, range(min(most, len(images)))))
                for count in _COUNTS:
                    name = f"{source.kind}, zoom {zoom}, {count} keypoints"
                    scores[name] = score_detector(views, find, self._plainly, count)
        return scores

    def _finish(self, trainer: DetectorTrainer, scores: Scores, sift: Scores) -> None:
        config = self.config
        training = {
            "data": config.sources,
            "pairs": self._amounts,
            "steps": trainer.step,
            "seconds": round(self._seconds, 1),
            "device": str(self.device),
            "descriptor": {"name": self._described, "hash": self._digest},
            **({"init": {"name": self._init.name, "hash": self._init.digest}} if self._init else {}),
            "config": _without_paths(detector_config_to_dict(config)),
            "versions": versions("torch", "opencv-python-headless"),
        }
        figures = {name: {**score.to_dict(), SIFT: sift[name].to_dict()} for name, score in scores.items()}
        size, words = config.objectives.size, config.description
        card = DetectorCard(
            config.name, words, config.network, size, training=training, figures=figures, licence=config.licence
        )
        write_whole(self.folder / "card.json", (card.to_json(indent=2) + "\n").encode())
        save_detector(self.model, trainer.result, card)
