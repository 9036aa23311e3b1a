"""Options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from logpolar.errors import LogpolarError

if TYPE_CHECKING:
    from logpolar.extraction import Extractor
    from logpolar.runtimes import RuntimeName

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

_EXTRACTION = (
    click.option("--model", "-m", default="logpolar-96", show_default=True, help="Shipped model or model file."),
    click.option(
        "--max-keypoints",
        type=click.IntRange(min=1),
        default=2048,
        show_default=True,
        help="Keep the strongest keypoints of each image.",
    ),
    click.option(
        "--max-size",
        type=click.IntRange(min=0),
        default=1600,
        show_default=True,
        help="Reduce larger images to this many pixels on the longer side; 0 never does.",
    ),
    click.option(
        "--runtime",
        type=click.Choice(["onnxruntime", "torch", "cuda"]),
        default="onnxruntime",
        show_default=True,
        help="What runs the network; torch and cuda need the extra 'torch'.",
    ),
)


def extraction_options(command: Command) -> Command:
    """--model, --max-keypoints, --max-size, --runtime."""
    for option in reversed(_EXTRACTION):
        command = option(command)
    return command


def open_extractor(model: str, max_keypoints: int, max_size: int, runtime: RuntimeName, threads: int = 0) -> Extractor:
    """The extractor that the shared options ask for."""
    from logpolar.detection import SiftDetector
    from logpolar.extraction import Extractor

    return Extractor(model, SiftDetector(max_keypoints), max_size or None, runtime, threads)


def output_path(path: Path, *inputs: Path) -> Path:
    """Check that a file can be created there, before any work is done for it, and that it is none of the inputs."""
    if any(path.exists() and each.exists() and path.samefile(each) for each in inputs):
        raise LogpolarError(f"{path}: would overwrite an input")
    if path.is_dir():
        raise LogpolarError(f"{path}: is a folder, not a file")
    if not path.parent.is_dir():
        state = "is not a folder" if path.parent.exists() else "does not exist"
        raise LogpolarError(f"{path}: the folder {path.parent} {state}")
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise LogpolarError(f"{path}: cannot be written ({(error.strerror or str(error)).lower()})") from error
    if not existed:
        path.unlink()
    return path


def picture_path(path: Path, *inputs: Path) -> Path:
    """``output_path`` for a picture, whose ending decides its format."""
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise LogpolarError(f"{path}: pictures are written as .png, .jpg or .webp")
    return output_path(path, *inputs)
