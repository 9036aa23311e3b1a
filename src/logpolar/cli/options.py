"""Options that several commands share."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logpolar.cli.interruption import stop
from logpolar.cli.settings import Command, Number, settings_options, with_options
from logpolar.errors import LogpolarError
from logpolar.settings import (
    DEFAULT_CONTRAST,
    DEFAULT_MAX_KEYPOINTS,
    DEFAULT_MAX_SIZE,
    DEFAULT_MIN_SIZE,
    DEFAULT_MODEL,
    DEFAULT_SPREAD,
    ORIENTATIONS,
    PRECISIONS,
    RUNTIMES,
    DetectionOptions,
    Orientation,
)

if TYPE_CHECKING:
    from logpolar.distributed import Workers
    from logpolar.features.batch import OpenExtractor
    from logpolar.features.extractor import Extractor
    from logpolar.keypoints.detection import Detector


class WordOrFraction(click.ParamType):  # type: ignore[type-arg] # generic in the newest click only
    """One of some words, or a number from 0 to 1."""

    def __init__(self, *words: str, min_open: bool = False) -> None:
        self.name, self._words, self._number = "|".join((*words, "0..1")), words, Number(0, 1, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        return value if value in self._words else self._number.convert(value, param, ctx)


model_option = click.option(
    "--model", "-m", default=DEFAULT_MODEL, show_default=True, help="Shipped model or model file."
)

_MAX_KEYPOINTS = click.option(
    "--max-keypoints",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_KEYPOINTS,
    show_default=True,
    help="Keypoints kept of each image; see --spread.",
)

_DETECTOR = (
    click.option(
        "--detector",
        show_default="sift, or that of the model",
        metavar="sift|logpolar|FILE",
        help="Keypoints: SIFT's, or those of a network, which have one size, so that --spread has no meaning.",
    ),
    click.option(
        "--orientation",
        type=click.Choice(ORIENTATIONS),
        default=ORIENTATIONS[0],
        show_default=True,
        help="Of a network's keypoints; gradient is for images rotated by any angle.",
    ),
)

max_size_option = click.option(
    "--max-size",
    type=click.IntRange(min=0),
    default=DEFAULT_MAX_SIZE,
    show_default=True,
    help="Downscale larger images to this many pixels on the longer side; 0 never does.",
)

ENGINE = ("device", "precision", "runtime", "threads")
"""Parameters of ``engine_options``: the keywords of ``open_describer`` and ``Extractor``."""

device_option = click.option(
    "--device", default="cpu", show_default=True, help="Where to compute: cpu, cuda, cuda:1, ..."
)

_ENGINE = (
    device_option,
    click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        default=PRECISIONS[0],
        show_default=True,
        help="auto: the model's on a CPU, float16 on a GPU; bfloat16 needs OpenVINO.",
    ),
    click.option(
        "--runtime",
        type=click.Choice(RUNTIMES),
        default=RUNTIMES[0],
        show_default=True,
        help="Inference engine on a CPU; auto: onnxruntime. Extras 'openvino' and 'torch'.",
    ),
    click.option(
        "--threads", type=click.IntRange(min=0), default=0, show_default="all cores", help="CPU threads of a process."
    ),
)


def _all_cores() -> int:
    from logpolar.distributed import cores

    return cores()


def warn_about_jobs(ctx: click.Context, param: click.Parameter, jobs: int) -> int:
    """Callback of --jobs: warn about more jobs than cores."""
    if jobs > (count := _all_cores()):
        cores = "1 core" if count == 1 else f"{count} cores"
        click.echo(f"logpolar: {jobs} jobs on {cores}: more memory, no more speed", err=True)
    return jobs


jobs_option = click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    default=_all_cores,
    show_default="all cores",
    callback=warn_about_jobs,
    help="Processes.",
)


executor_option = click.option(
    "--executor",
    default="local",
    show_default=True,
    metavar="WHERE",
    help="Workers: local, dask:ADDRESS or ray:ADDRESS (extras 'dask', 'ray'); they must see the same files.",
)


def shard_size_option(unit: str, size: int) -> Callable[[Command], Command]:
    """--shard-size, counted in units."""
    words = f"Write a collection: OUTPUT is a folder of files with so many {unit} each, written by the workers."
    return click.option("--shard-size", type=click.IntRange(min=1), metavar="N", help=f"{words} {size} is a good size.")


def shards_of(output: Path, size: int | None, usual: int) -> int | None:
    """Units in a shard; an output that is a collection stays one."""
    from logpolar.storage.collections import is_collection

    return size or (usual if is_collection(output) else None)


def make_workers(executor: str, jobs: int, batch: int, device: str = "cpu") -> Workers:
    """Workers by --executor and --jobs; ``batch``: tasks sent to a cluster at a time."""
    from logpolar.distributed import LOCAL, Workers

    return Workers(jobs) if executor == LOCAL else Workers(jobs, executor, batch, device.startswith("cuda"))


pairs_file_option = click.option(
    "--pairs", type=click.Path(path_type=Path), help="Text file with two image names per line, instead of --pairing."
)


masks_option = click.option(
    "--masks",
    type=click.Path(path_type=Path),
    help="Folder of masks, photo.jpg.png for photo.jpg: keypoints on black pixels are dropped.",
)


@contextlib.contextmanager
def continuing(output: Path) -> Iterator[None]:
    """On Ctrl-C, SIGTERM and SIGHUP, print where the finished work is."""
    try:
        yield
    except KeyboardInterrupt as error:
        kept = f"; finished work is in {output}; rerun the command to resume" if output.exists() else ""
        stop(f"stopped{kept}", error)


def engine_options(command: Command) -> Command:
    """--device, --precision, --runtime, --threads, as the parameters ``ENGINE``."""
    return with_options(command, _ENGINE)


def extraction_options(command: Command) -> Command:
    """--model, --detector, --orientation, --max-keypoints, those of ``DetectionOptions`` and ``engine_options``; see
    ``take_extraction``."""
    more = (*_DETECTOR, _MAX_KEYPOINTS, settings_options(DetectionOptions), engine_options)
    return with_options(command, [model_option, *more])


def description_options(command: Command) -> Command:
    """``extraction_options`` for given keypoints: nothing is detected."""
    return model_option(max_size_option(engine_options(command)))


def take_extraction(values: dict[str, Any]) -> dict[str, Any]:
    """Remove the parameters of ``extraction_options`` or ``description_options`` from all of a command's."""
    detection = "detector", "orientation", "max_keypoints", *(each.name for each in fields(DetectionOptions))
    names = "model", *detection, *ENGINE
    return {name: values.pop(name) for name in names if name in values}


def command_line() -> str:
    """The command as it was typed, for reports."""
    return shlex.join(["logpolar", *sys.argv[1:]])


def extractor_opener(threads: int, **extraction: Any) -> OpenExtractor:
    """Opens extractors in processes that divide the cores, unless --threads says how many each has."""
    return partial(open_extractor, fixed_threads=threads, **extraction)


def open_extractor(
    model: str,
    max_size: int,
    min_size: int = DEFAULT_MIN_SIZE,
    spread: float = DEFAULT_SPREAD,
    max_keypoints: int = DEFAULT_MAX_KEYPOINTS,
    contrast_threshold: float = DEFAULT_CONTRAST,
    detector: str | None = None,
    orientation: Orientation = ORIENTATIONS[0],
    fixed_threads: int = 0,
    threads: int = 0,
    **extraction: Any,
) -> Extractor:
    """The extractor configured by a command's options."""
    from logpolar.features.extractor import Extractor
    from logpolar.keypoints.detection import SiftDetector
    from logpolar.models.detectors import NetworkDetector

    threads = fixed_threads or threads
    descriptor, chosen = detector_of(model, detector)
    if chosen != "sift":
        opened: Detector = NetworkDetector(chosen, max_keypoints, orientation, threads=threads)
    elif orientation == ORIENTATIONS[0]:
        opened = SiftDetector(max_keypoints, contrast_threshold, spread=spread)
    else:
        raise LogpolarError("--orientation is for network detectors: SIFT has its own")
    extraction |= {"max_size": max_size or None, "min_size": min_size, "threads": threads}
    return Extractor(descriptor, opened, **extraction)


def model_of_look(second_look: str, precision: str) -> str:
    """The model that ``auto`` stands for in a second look, by the precision of the first look's."""
    if second_look != "auto":
        return second_look
    return "logpolar-sf-int8" if precision == "int8" else "logpolar-sf"


def look_extraction(extraction: dict[str, Any], model: str) -> dict[str, Any]:
    """Options of ``open_extractor`` for second looks with a model.

    In the region keypoints stand as in the first photo, whatever the orientation of the first look's.
    """
    return extraction | {"model": model, "detector": None, "orientation": ORIENTATIONS[0]}


def detector_of(model: str, detector: str | None) -> tuple[str, str]:
    """Names of the descriptor and the detector that --model and --detector choose."""
    from logpolar.models.files import take_apart

    descriptor, own = take_apart(model, detector)
    return str(descriptor), own or detector or "sift"
