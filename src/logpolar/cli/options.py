"""Options that several commands share."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from logpolar.settings import (
    DEFAULT_MAX_KEYPOINTS,
    DEFAULT_MAX_SIZE,
    DEFAULT_MODEL,
    DEFAULT_RATIO,
    RUNTIME_NAMES,
    RuntimeName,
)

if TYPE_CHECKING:
    from logpolar.features.extractor import Extractor

Command = TypeVar("Command", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A number in a range; NaN and infinity, which pass any range, are refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class InnerRadius(click.ParamType):  # type: ignore[type-arg] # generic in the newest click only
    """``covariant``, ``paper`` or a number from 0 to 1."""

    name = "covariant|paper|0..1"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        return value if value in ("covariant", "paper") else Number(0, 1).convert(value, param, ctx)


inner_radius_option = click.option(
    "--inner-radius",
    type=InnerRadius(),
    default=0.5,
    show_default=True,
    help="Innermost log-polar radius: tied to the keypoint (covariant), 1 px (paper), or between.",
)

_MODEL = click.option("--model", "-m", default=DEFAULT_MODEL, show_default=True, help="Shipped model or model file.")

_MAX_KEYPOINTS = click.option(
    "--max-keypoints",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_KEYPOINTS,
    show_default=True,
    help="Keep the strongest keypoints of each image.",
)

_DESCRIPTION = (
    click.option(
        "--max-size",
        type=click.IntRange(min=0),
        default=DEFAULT_MAX_SIZE,
        show_default=True,
        help="Reduce larger images to this many pixels on the longer side; 0 never does.",
    ),
    click.option(
        "--runtime",
        type=click.Choice(RUNTIME_NAMES),
        default=RUNTIME_NAMES[0],
        show_default=True,
        help="What runs the network; openvino, and torch and cuda, need the extras 'openvino' and 'torch'.",
    ),
)


def _all_cores() -> int:
    from logpolar.distributed import cores

    return cores()


def point_out_crowds(ctx: click.Context, param: click.Parameter, jobs: int) -> int:
    """Callback of --jobs: more than there are cores are allowed, but not what one hopes for."""
    if jobs > (count := _all_cores()):
        cores = "1 core" if count == 1 else f"{count} cores"
        click.echo(f"logpolar: {jobs} jobs share {cores}: more memory, not more speed", err=True)
    return jobs


jobs_option = click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    default=_all_cores,
    show_default="all cores",
    callback=point_out_crowds,
    help="Processes.",
)


ratio_option = click.option(
    "--ratio",
    type=Number(0, 1, min_open=True),
    default=DEFAULT_RATIO,
    show_default=True,
    help="Ratio test: best over second best distance; 1 accepts all.",
)

pairs_file_option = click.option(
    "--pairs", type=click.Path(path_type=Path), help="Text file, two image names a line, instead of --pairing."
)


@contextlib.contextmanager
def continuing(output: Path) -> Iterator[None]:
    """Turn Ctrl-C into a line that says where what was finished is."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"logpolar: stopped; what was finished is in {output}, the same command continues", err=True)
        sys.exit(130)


def extraction_options(command: Command) -> Command:
    """--model, --max-keypoints, --max-size, --runtime."""
    return _MODEL(_MAX_KEYPOINTS(_described(command)))


def description_options(command: Command) -> Command:
    """--model, --max-size, --runtime: for keypoints that are given."""
    return _MODEL(_described(command))


def _described(command: Command) -> Command:
    for option in reversed(_DESCRIPTION):
        command = option(command)
    return command


def open_extractor(
    model: str, max_size: int, runtime: RuntimeName, max_keypoints: int = DEFAULT_MAX_KEYPOINTS, threads: int = 0
) -> Extractor:
    """The extractor that the shared options ask for."""
    from logpolar.features.extractor import Extractor
    from logpolar.keypoints.detection import SiftDetector

    return Extractor(model, SiftDetector(max_keypoints), max_size or None, runtime, threads)
