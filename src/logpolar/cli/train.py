"""logpolar train, logpolar ablate, logpolar recipe"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from logpolar.cli.options import Command

_CONFIG = click.argument("config", type=click.Path(path_type=Path))
_OUTPUT = click.option(
    "--output", "-o", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the run."
)
_CHANGES = click.option(
    "--set", "changes", multiple=True, metavar="SECTION.KEY=VALUE", help="Change a key of the config; repeatable."
)
_DEVICE = click.option("--device", help="Instead of the config's: cpu, cuda, cuda:1, ...")


def _config_options(command: Command) -> Command:
    for decorate in (_DEVICE, _CHANGES, _OUTPUT, _CONFIG):
        command = decorate(command)
    return command


@contextmanager
def _training(output: Path) -> Iterator[None]:
    """Say what is missing without torch, and what can be gone on with after Ctrl-C."""
    from logpolar.errors import MissingExtraError

    try:
        import onnxscript  # noqa: F401 # not needed before the end
        import torch  # noqa: F401

        from logpolar.training.run import Stopped
    except ImportError as error:
        raise MissingExtraError("training", "train") from error

    try:
        yield
    except (KeyboardInterrupt, Stopped) as error:
        words = str(error) or f"stopped; the same command continues from the last checkpoint in {output}"
        click.echo(f"logpolar: {words}", err=True)
        sys.exit(130)


@click.command(
    short_help="Train a model.",
    epilog="Example: logpolar train my.toml -o my-model --set optimisation.steps=30000",
)
@_config_options
@click.option("--overwrite", is_flag=True, help="Start anew in a folder that holds another run.")
def train(config: Path, output: Path, changes: tuple[str, ...], device: str | None, overwrite: bool) -> None:
    """Train what CONFIG, a TOML file, says (needs the extra 'train').

    The folder gets the model file, its card, the log and checkpoints; the same command goes on with a run that was
    stopped, to the same result. On a GPU a model takes a minute or two, on a CPU a day. Several GPUs or machines:
    torchrun --nproc-per-node 2 -m logpolar train CONFIG -o FOLDER.
    """
    from logpolar.training.config import read_config

    settings = read_config(config, _all_changes(changes, device))
    with _training(output):
        from logpolar.training.run import train
        from logpolar.training.validation import summary

        report = train(settings, output, overwrite, progress=True)
    if os.environ.get("RANK", "0") != "0":  # of several processes one speaks
        return
    for name, score in report.scores.items():
        click.echo(f"{name}: {score.in_words()}")
    if len(report.scores) > 1:
        click.echo(f"validation, mean: {summary(report.scores).in_words()}")
    if not report.scores:
        click.echo("no validation: none of the files has images that validate")
    click.echo(f"{'complete before: ' if report.was_complete else 'wrote '}{report.model}")


@click.command(
    short_help="Train and test cartesian and log-polar models over lambda.",
    epilog="Example: logpolar ablate paper.toml -o ablation --test 'scenes/*.h5'",
)
@_config_options
@click.option("--test", "tests", multiple=True, help="Correspondence file, or a pattern in quotes; repeatable.")
@click.option("--lambdas", default="12,16,32,64,96,128", show_default=True, help="Numbers with commas between.")
@click.option("--pairs", type=click.IntRange(min=0), default=0, show_default="all", help="Image pairs of a test file.")
def ablate(
    config: Path,
    output: Path,
    changes: tuple[str, ...],
    device: str | None,
    tests: tuple[str, ...],
    lambdas: str,
    pairs: int,
) -> None:
    """The paper's table of supports: one model for each pattern and lambda, same data, same steps.

    Models are tested on the files of --test, or on the validation parts of the training files. The table is in the
    folder, as CSV and as Markdown, and what made it as JSON. The same command continues what was stopped.
    """
    with _training(output):
        from logpolar.errors import LogpolarError
        from logpolar.training.ablation import ablate, table_markdown
        from logpolar.training.config import find_files, read_config
        from logpolar.training.options import DataSource

        try:
            supports = [float(text) for text in lambdas.split(",")]
            if not all(math.isfinite(support) and support > 0 for support in supports):
                raise ValueError("there is no such support")
        except ValueError as error:
            raise LogpolarError(f"--lambdas are positive numbers with commas between, not '{lambdas}'") from error
        settings = read_config(config, _all_changes(changes, device))
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

    'default' is the best found, 'paper' is the paper's code, 'small' a fast network that imitates the default model.
    """
    from logpolar.errors import LogpolarError
    from logpolar.training.config import recipe_to_toml
    from logpolar.training.recipes import RECIPES

    if name not in RECIPES:
        raise LogpolarError(f"there is no recipe '{name}' (known: {', '.join(RECIPES)})")
    click.echo(recipe_to_toml(name), nl=False)


def _record(output: Path, tests: list[str], options: dict[str, Any]) -> None:
    """What made the table, for `logpolar eval report`."""
    from logpolar.cli.eval_output import made_by
    from logpolar.storage.documents import write_json

    document = {"protocol": "ablation", **made_by(), "data": {"tests": tests}, "options": options}
    write_json(output / "ablation.json", document)


def _all_changes(changes: tuple[str, ...], device: str | None) -> list[str]:
    return [*changes, *([f"run.device={device}"] if device else [])]
