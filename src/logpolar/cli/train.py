"""logpolar train, logpolar train-detector, logpolar ablate, logpolar recipe"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logpolar.cli.interruption import stop
from logpolar.cli.settings import Command, with_options

if TYPE_CHECKING:
    from logpolar.training.options import TrainingConfig

_OPTIONS = (
    click.argument("config", type=click.Path(path_type=Path)),
    click.option(
        "--output", "-o", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the run."
    ),
    click.option(
        "--set", "changes", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a config key; repeatable."
    ),
    click.option("--device", help="Overrides the config: auto, cpu, cuda, cuda:1, ..."),
    click.option("--precision", help="Overrides the config: auto, float32 or bfloat16."),
)


def _config_options(command: Command) -> Command:
    return with_options(command, _OPTIONS)


def _read_config(config: Path, **changes: Any) -> TrainingConfig:
    from logpolar.training.config import read_config

    return read_config(config, _all_changes(**changes))


def _all_changes(changes: tuple[str, ...], device: str | None, precision: str | None) -> list[str]:
    given = {"run.device": device, "run.precision": precision}
    return [*changes, *(f"{key}={value}" for key, value in given.items() if value)]


@contextmanager
def training(output: Path) -> Iterator[None]:
    """Report missing extras, and how to resume after Ctrl-C."""
    from logpolar.errors import MissingExtraError

    try:
        import onnx  # noqa: F401 # as onnxscript, not needed before the end
        import onnxscript  # noqa: F401
        import torch  # noqa: F401

        from logpolar.training.stopping import Stopped
    except ImportError as error:
        raise MissingExtraError("training", "train") from error

    try:
        yield
    except (KeyboardInterrupt, Stopped) as error:
        words = str(error) or f"stopped; rerun the command to resume from the last checkpoint in {output}"
        stop(words, error)


def start_from(init: str | None) -> tuple[str, ...]:
    """``--init`` as a change of the config, whose own paths are relative to it."""
    if not init:
        return ()
    return (f"init={json.dumps(str(Path(init).absolute()) if Path(init).is_file() else init)}",)


@click.command(
    short_help="Train a model.",
    epilog="Example: logpolar train my.toml -o my-model --set optimisation.steps=30000",
)
@_config_options
@click.option("--init", metavar="MODEL", help="Start from this shipped model or model file: fine-tune it.")
@click.option("--overwrite", is_flag=True, help="Start over in a folder that holds another run.")
def train(config: Path, output: Path, overwrite: bool, init: str | None, **changes: Any) -> None:
    """Train a model as described by CONFIG, a TOML file (needs the extra 'train').

    The folder receives the model file, its card, logs and checkpoints. Rerunning the command resumes an interrupted
    run, with the same result. A model takes minutes on a GPU, days on a CPU. Several GPUs or machines:
    torchrun --nproc-per-node 2 -m logpolar train CONFIG -o FOLDER.
    """
    settings = _read_config(config, **(changes | {"changes": (*changes["changes"], *start_from(init))}))
    with training(output):
        from logpolar.training.run import train
        from logpolar.training.validation import summary

        report = train(settings, output, overwrite, progress=True)
    if os.environ.get("RANK", "0") != "0":  # only one of several processes prints
        return
    for name, score in report.scores.items():
        click.echo(f"{name}: {score.in_words()}")
    if len(report.scores) > 1:
        click.echo(f"validation, mean: {summary(report.scores).in_words()}")
    if not report.scores:
        click.echo("no validation: none of the files has a validation split")
    click.echo(f"{'already complete: ' if report.was_complete else 'wrote '}{report.model}")


@click.command(
    "train-detector",
    short_help="Train a keypoint detector.",
    epilog="Example: logpolar train-detector detector.toml -o my-detector --set optimisation.steps=30000",
)
@_config_options
@click.option("--overwrite", is_flag=True, help="Start over in a folder that holds another run.")
def train_detector(config: Path, output: Path, overwrite: bool, **changes: Any) -> None:
    """Train a detector of keypoints without scale as described by CONFIG, a TOML file (needs the extra 'train').

    The folder receives the model file, its card, logs and checkpoints. Rerunning the command resumes from the last
    checkpoint. At the end its repeatability and correct matches on validation images are printed beside SIFT's.
    """
    with training(output):
        from logpolar.training.detector_config import read_detector_config
        from logpolar.training.detector_run import train_detector

        settings = read_detector_config(config, _all_changes(**changes))
        report = train_detector(settings, output, overwrite, progress=True)
    for name, score in report.scores.items():
        ours, sift = score, report.sift[name]
        click.echo(
            f"{name}: repeatability {ours.repeatability:.3f} (SIFT {sift.repeatability:.3f}), "
            f"correct matches {ours.correct:.0f} ({sift.correct:.0f}), {ours.pairs} pairs"
        )
    click.echo(f"wrote {report.model}")


@click.command(
    short_help="Train and test cartesian and log-polar models over lambda.",
    epilog="Example: logpolar ablate paper.toml -o ablation --test 'scenes/*.h5'",
)
@_config_options
@click.option("--test", "tests", multiple=True, help="Correspondence file, or a quoted glob; repeatable.")
@click.option("--lambdas", default="12,16,32,64,96,128", show_default=True, help="Comma-separated numbers.")
@click.option("--pairs", type=click.IntRange(min=0), default=0, show_default="all", help="Image pairs of a test file.")
def ablate(config: Path, output: Path, tests: tuple[str, ...], lambdas: str, pairs: int, **changes: Any) -> None:
    """The paper's table over lambda: one model for each pattern and lambda, same data, same steps.

    Models are tested on the files of --test, or on the validation splits of the training files. The folder receives
    the table as CSV and Markdown, and its provenance as JSON. Rerunning the command resumes an interrupted run.
    """
    with training(output):
        from logpolar.errors import LogpolarError
        from logpolar.training.ablation import ablate, table_markdown
        from logpolar.training.config import find_files
        from logpolar.training.options import DataSource

        try:
            supports = [float(text) for text in lambdas.split(",")]
            if not all(math.isfinite(support) and support > 0 for support in supports):
                raise ValueError("not a support")
        except ValueError as error:
            raise LogpolarError(f"--lambdas takes comma-separated positive numbers, not '{lambdas}'") from error
        settings = _read_config(config, **changes)
        files = find_files(DataSource(tests))
        rows = ablate(settings, output, files, supports, pairs, progress=True)
        options = {"seed": settings.run.seed, "lambdas": supports, "pairs": pairs}
        _record(output, [path.name for path in files], {**options, "steps": settings.optimisation.steps})
    click.echo(table_markdown(rows), nl=False)
    click.echo(f"wrote {output / 'table.csv'} and {output / 'table.md'}")


@click.command(
    short_help="Print a recipe as a config file to start from.", epilog="Example: logpolar recipe default > my.toml"
)
@click.argument("name", default="default")
def recipe(name: str) -> None:
    """Print the recipe NAME as a commented config.

    'default' is the best found, 'paper' the paper's code, 'small' a fast network distilled from the default model.
    """
    from logpolar.errors import LogpolarError
    from logpolar.training.config import recipe_to_toml
    from logpolar.training.recipes import RECIPES

    if name not in RECIPES:
        raise LogpolarError(f"no recipe '{name}' (known: {', '.join(RECIPES)})")
    click.echo(recipe_to_toml(name), nl=False)


def _record(output: Path, tests: list[str], options: dict[str, Any]) -> None:
    """How the table was made, for `logpolar eval report`."""
    from logpolar.evaluation.protocol import made_by
    from logpolar.storage.documents import write_json

    document = {"protocol": "ablation", **made_by(), "data": {"tests": tests}, "options": options}
    write_json(output / "ablation.json", document)
