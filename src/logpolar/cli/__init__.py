"""The command line: one thin file per command. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

import click

from logpolar.cli.collection import collection
from logpolar.cli.colmap import colmap
from logpolar.cli.dataset import dataset
from logpolar.cli.dataset_reconstruct import reconstruct
from logpolar.cli.dataset_show import show
from logpolar.cli.demo import demo
from logpolar.cli.eval import evaluate
from logpolar.cli.export import export
from logpolar.cli.extract import extract
from logpolar.cli.imc import imc
from logpolar.cli.interruption import behind, interruptible, stop
from logpolar.cli.localize import localize
from logpolar.cli.match import match
from logpolar.cli.match_features import match_features
from logpolar.cli.models import models
from logpolar.cli.patches import patches
from logpolar.cli.quantise import quantise
from logpolar.cli.sfm import sfm
from logpolar.cli.train import ablate, recipe, train, train_detector
from logpolar.cli.train_matcher import train_matcher
from logpolar.cli.view import view
from logpolar.errors import LogpolarError, LogpolarWarning, in_words
from logpolar.settings import DEFAULT_MEGAPIXELS, MEGAPIXELS_VARIABLE, VERSION

_show_others = warnings.showwarning


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
    """Print our own warnings in one line, without the source location."""
    if issubclass(category, LogpolarWarning):
        click.echo(f"logpolar: {message}", err=True)
    else:
        _show_others(message, category, *place, **more)


class _Commands(click.Group):
    """Lists commands in the order of use. User errors print one line and exit with code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> object:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                return super().invoke(ctx)
        except (Exception, KeyboardInterrupt) as error:
            if interruption := behind(error):
                stop("stopped", interruption)
            if isinstance(error, BrokenPipeError) or not isinstance(error, (LogpolarError, OSError)):
                raise
            words = f"{error.filename or 'writing'}: {in_words(error)}" if isinstance(error, OSError) else error
            line = " ".join(str(words).splitlines())  # file names may hold anything
            click.echo(f"logpolar: error: {line}", err=True)
            sys.exit(2)

    def __call__(self, *args: Any, **more: Any) -> Any:
        """The command of a process; other programs call ``main`` and keep their own signal handlers."""
        with interruptible():
            return self.main(*args, **more)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION)
@click.option(
    "--max-megapixels",
    type=click.FloatRange(0, min_open=True),
    help=f"Refuse larger images, before they are decoded.  [default: {DEFAULT_MEGAPIXELS}, or ${MEGAPIXELS_VARIABLE}]",
)
def main(max_megapixels: float | None) -> None:
    """Local image features with log-polar support regions.

    Start with `logpolar demo`, then `logpolar match a.jpg b.jpg -o matches.png`.
    """
    if max_megapixels is not None:
        os.environ[MEGAPIXELS_VARIABLE] = str(max_megapixels)  # for worker processes as well


for _command in (reconstruct, show):
    dataset.add_command(_command)
for _command in (
    demo,
    match,
    extract,
    match_features,
    collection,
    sfm,
    localize,
    colmap,
    imc,
    view,
    patches,
    models,
    export,
    quantise,
    dataset,
    recipe,
    train,
    train_detector,
    train_matcher,
    ablate,
    evaluate,
):
    main.add_command(_command)
