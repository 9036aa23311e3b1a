"""Makes the shipped models, and measures everything that is said of them.

python benchmarks/shipped_models.py SET --test TEST --zoom ZOOM --tune TUNE -o FOLDER

SET holds the correspondence files of the scenes, ``photos.h5``, ``webcams.h5`` and, in ``zoomed/``, those of the same
scenes with reduced second images; TEST those of scenes that are not trained on; ZOOM those of the latter with altered
second images, ``SCENE-zoom3.h5``; TUNE such of images that validate, to choose ratios on (docs/datasets.md has the
commands).

In this order: the default model, the small one, which learns from it, the two of the paper's recipe, the default with
other seeds, a short run twice with the same seed, the ablation over lambda. Measuring (``logpolar eval``) goes on in
processes of its own while the next model is trained. What is there already is not made again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from logpolar.models import load_model
from logpolar.sampling.patterns import Cartesian
from logpolar.training.ablation import ablate, table_markdown
from logpolar.training.config import find_files
from logpolar.training.data import TrainingData, load_training_data
from logpolar.training.options import DataSource, RunOptions, TrainingConfig
from logpolar.training.processes import World
from logpolar.training.recipes import DEFAULT, PAPER, SMALL
from logpolar.training.run import train
from logpolar.training.validation import summary

SCENES = (
    "scenes with COLMAP poses and depth (Oxford Buildings, Google Landmarks v2, a set of Indian monuments, "
    "OpenDroneMap's sample flights, merkato's kite photos, AliceVision's monstree, photogrammetry of the Statue of "
    "Liberty, CARLYGP's object)"
)
OTHERS = "; views of modified Pixabay photos through random homographies; pairs of SPED webcam images"
BY_THE_PAPER = "by the recipe of the paper's code, with the right sign of the angle."


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--zoom", type=Path)
    parser.add_argument("--tune", type=Path)
    parser.add_argument("-d", "--descriptor", action="append", default=[], help="to compare with, for --zoom")
    parser.add_argument("--small-only", action="store_true", help="no model but the small one, and its teacher")
    parser.add_argument("--teacher", help="of the small model; by default the default model that is made here")
    parser.add_argument("--steps", type=int, default=DEFAULT.optimisation.steps)
    parser.add_argument("--ablation-steps", type=int, default=2000)
    parser.add_argument("--ablation-pairs", type=int, default=60, help="image pairs of a test scene, for each model")
    parser.add_argument("--repeat-steps", type=int, default=1500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=12, help="processes that estimate poses")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="no model is started that would not be done"
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser.parse_args()


class Work:
    """The time, the data in memory, and the measurements under way."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.start = options, time.perf_counter()
        self.device = World().device("auto")
        self._jobs: list[subprocess.Popen[bytes]] = []
        self._data: dict[tuple[tuple[DataSource, ...], int, int, int], TrainingData] = {}

    def say(self, text: str) -> None:
        print(f"{time.perf_counter() - self.start:.0f} s: {text}", flush=True)

    def has_time(self, steps: int) -> bool:
        """150 steps a second, and half a minute for all else."""
        return time.perf_counter() - self.start + steps / 150 + 30 < self.options.seconds

    def train(self, config: TrainingConfig, folder: Path) -> Path:
        copies = config.augmentation.used_copies
        key = config.data, config.batch.per_pair, copies, config.run.seed if copies else 0
        if key not in self._data:
            sources = [find_files(source) for source in config.data]
            self._data[key] = load_training_data(
                sources, config.batch.per_pair, self.device, copies=copies, seed=config.run.seed
            )
        report = train(config, folder, data=self._data[key])
        self.say(f"{folder.name}: validation {summary(report.scores).in_words()}")
        return report.model

    def measure(self, protocol: str, output: Path, *arguments: str | Path) -> None:
        """``logpolar eval``, unless its results are there."""
        if not (output / f"{protocol}.json").exists():
            command = [sys.executable, "-m", "logpolar", "eval", protocol, *map(str, arguments), "-o", str(output)]
            self._jobs.append(subprocess.Popen([*command, "--device", self.device.type]))

    def wait(self) -> None:
        for job in self._jobs:
            left = self.options.seconds - (time.perf_counter() - self.start)
            try:
                job.wait(min(max(left, 1), 10**6))
            except subprocess.TimeoutExpired:
                job.kill()
                self.say("a measurement was not finished")


def configs(options: argparse.Namespace) -> tuple[TrainingConfig, TrainingConfig, TrainingConfig, TrainingConfig]:
    """Default, small, paper with log-polar, paper with cartesian patches."""
    run = RunOptions(checkpoint_every=5000, validate_every=10**6, validation_pairs=12, tensorboard=False)
    others = [options.set / name for name in ("photos.h5", "webcams.h5")]
    scenes, zoomed = (
        tuple(map(str, sorted(found)))
        for found in (set(options.set.glob("*.h5")) - set(others), (options.set / "zoomed").glob("*.h5"))
    )
    photos, webcams = ((str(path),) for path in others)
    mixed = tuple(map(DataSource, (scenes, zoomed, photos, webcams), (12.0, 7.0, 9.0, 4.0)))
    default, small, paper = (
        replace(
            recipe,
            name=recipe.name.removeprefix("my-"),
            description=description,
            licence="Apache-2.0",
            run=run,
            data=data,
            sources=sources,
            optimisation=replace(recipe.optimisation, steps=_steps(recipe, options.steps)),
        )
        for recipe, description, data, sources in (
            (DEFAULT, "Log-polar, lambda 96: the default.", mixed, SCENES + OTHERS),
            (SMALL, "Log-polar, lambda 96: small and fast, taught by the default.", mixed, SCENES + OTHERS),
            (PAPER, f"Log-polar, lambda 96, {BY_THE_PAPER}", (DataSource(scenes),), SCENES),
        )
    )
    cartesian = replace(
        paper,
        name="paper-cartesian-12",
        description=f"Cartesian, lambda 12, {BY_THE_PAPER}",
        sampling=Cartesian(12.0, antialias=False),
    )
    teacher = options.teacher or str(options.output / default.name / f"{default.name}.safetensors")
    small = replace(small, distillation=replace(small.distillation, teacher=teacher))
    return default, small, paper, cartesian


def _steps(recipe: TrainingConfig, steps: int) -> int:
    """What corresponds to ``steps`` of the default recipe."""
    return steps * recipe.optimisation.steps // DEFAULT.optimisation.steps


def main() -> None:
    options = arguments()
    work, (default, small, paper, cartesian) = Work(options), configs(options)
    tests = sorted(options.test.glob("*.h5"))
    wanted = [small] if options.small_only else [small, paper, cartesian]
    models = []
    for config in wanted if options.small_only and options.teacher else [default, *wanted]:
        models.append(work.train(config, options.output / config.name))
        test(work, models[-1], tests)
    if options.small_only:
        work.wait()
        return
    if options.zoom:
        measure_zoom(work, [*models, *options.descriptor])
    for seed in range(1, options.seeds):
        if work.has_time(options.steps):
            other = replace(default, run=replace(default.run, seed=seed))
            test(work, work.train(other, options.output / f"{default.name}-seed{seed}"), tests)
    repeat(work, default)
    run_ablation(work, paper, tests)
    work.wait()
    if options.zoom:
        work.say("altered second images\n" + zoom_table(options.output / "zoom"))
    work.say("done")


def test(work: Work, model: Path, tests: list[Path]) -> None:
    work.measure("patches", model.with_name("test"), *tests, "-d", model, "--resamples", "0")


def measure_zoom(work: Work, descriptors: list[Path | str]) -> None:
    """Ranks and poses, 50 image pairs a file, poses of 2000 keypoints with the ratio that is best on TUNE."""
    options, folder = work.options, work.options.output / "zoom"
    files = sorted(options.zoom.glob("*.h5"))
    specs = [argument for spec in descriptors for argument in ("-d", spec)]
    work.measure("patches", folder, *files, *specs, "--pairs", "50", "--resamples", "0")
    tune = (
        [argument for path in sorted(options.tune.glob("*.h5")) for argument in ("--tune", path)]
        if options.tune
        else []
    )
    settings = ["--no-multi-view", "--keypoints", "2000", "--pairs", "50", "--jobs", str(options.jobs)]
    work.measure("phototourism", folder, *files, *specs, *tune, *settings)


def zoom_table(folder: Path) -> str:
    """rank-1 and mAA at 10 degrees by descriptor and alteration, means over scenes."""
    cells: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(lambda: [[], []]))
    read = {name: json.loads((folder / f"{name}.json").read_text())["results"] for name in ("patches", "phototourism")}
    for name, scenes in read["patches"].items():
        stereo = read["phototourism"][name]["stereo"]
        for scene in stereo:
            ranks, accuracies = cells[name][scene.rpartition("-")[2]]
            ranks.append(scenes[scene]["rank1"])
            accuracies.append(stereo[scene]["maa10"])
    kinds = sorted({kind for row in cells.values() for kind in row})
    lines = ["| rank-1, mAA | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    for name, row in cells.items():
        shown = [", ".join(f"{sum(values) / len(values):.3f}" for values in row[kind]) for kind in kinds]
        lines.append(f"| {name}, ratio {read['phototourism'][name]['ratio']:g} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def run_ablation(work: Work, paper: TrainingConfig, tests: list[Path]) -> None:
    steps = work.options.ablation_steps
    if steps:
        config = replace(
            paper,
            optimisation=replace(paper.optimisation, steps=steps),
            batch=replace(paper.batch, per_pair=paper.batch.per_pair // 2),
            run=replace(paper.run, validation_pairs=1),
        )
        rows = ablate(config, work.options.output / "ablation", tests, pairs=work.options.ablation_pairs)
        work.say("ablation\n" + table_markdown(rows))


def repeat(work: Work, default: TrainingConfig) -> None:
    """The same command twice: how far apart are the figures?"""
    steps = work.options.repeat_steps
    if not steps or not work.has_time(2 * steps):
        return
    config = replace(default, optimisation=replace(default.optimisation, steps=steps))
    folders = [work.options.output / f"repeat-{number}" for number in (1, 2)]
    first, second = (load_model(work.train(config, folder)).weights for folder in folders)
    cards = [json.loads((folder / "card.json").read_text())["figures"]["validation"]["mean"] for folder in folders]
    apart = max(float(np.abs(first[name] - second[name]).max()) for name in first)
    work.say(f"twice: FPR95 {cards[0]['fpr95']}, {cards[1]['fpr95']}; weights differ by {apart:g} at most")


if __name__ == "__main__":
    main()
