"""What the commands of `logpolar eval` share: their options, opening descriptors, and what they leave behind."""

from __future__ import annotations

import csv
import io
import math
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from logpolar.cli.options import Command, continuing
from logpolar.errors import LogpolarError, MissingExtraError, in_words
from logpolar.evaluation.formatting import decimal as decimal
from logpolar.evaluation.formatting import percent as percent

if TYPE_CHECKING:
    from logpolar.evaluation.descriptors.registry import Descriptor

MISSING = "weights not at hand"

_PACKAGES = (
    *("numpy", "opencv-python-headless", "opencv-python", "opencv-contrib-python", "onnxruntime", "torch"),
    *("kornia", "pycolmap", "pycolmap-cuda12", "poselib"),
)
"""Those of them that are installed have their versions in results."""

Item = TypeVar("Item")

_OPTIONS = (
    click.option(
        "--descriptor",
        "-d",
        "specs",
        multiple=True,
        required=True,
        metavar="SPEC",
        help="NAME[:FILE][,key=value]: sift, rootsift, a model, hardnet:FILE, opencv:ORB, ...; repeatable.",
    ),
    click.option(
        "--output", "-o", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for results."
    ),
    click.option(
        "--cache", type=click.Path(path_type=Path, file_okay=False), help="Folder that keeps descriptors for next time."
    ),
    click.option("--device", default="cpu", show_default=True, help="Where networks run: cpu, cuda, cuda:1, ..."),
    click.option("--skip-missing", is_flag=True, help=f"Descriptors without their file get a row '{MISSING}'."),
)


@dataclass(frozen=True)
class Common:
    """Values of the options that all commands have."""

    specs: tuple[str, ...]
    output: Path
    cache: Path | None
    device: str
    skip_missing: bool


def eval_options(command: Command) -> Command:
    """--descriptor, --output, --cache, --device, --skip-missing."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def take_common(values: dict[str, Any]) -> Common:
    """The shared options out of all values of a command; the others stay."""
    return Common(*(values.pop(name) for name in ("specs", "output", "cache", "device", "skip_missing")))


class Measured(Protocol):
    """Something of the command line that has results; ``identity`` is None if its weights are not at hand."""

    @property
    def spec(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> Mapping[str, Any] | None: ...


@dataclass(frozen=True)
class Opened:
    """A descriptor of the command line; None if its weights are not at hand."""

    spec: str
    name: str
    descriptor: Descriptor | None

    @property
    def identity(self) -> dict[str, Any] | None:
        return None if self.descriptor is None else self.descriptor.identity


def open_descriptors(common: Common, specs: Sequence[str] | None = None, keypoints: int | None = None) -> list[Opened]:
    """All descriptors, before any work is done; two that would be called the same are called by their specs.

    ``keypoints``: how many of an image whole features find; None for protocols on keypoints that are given.
    """
    from logpolar.evaluation.descriptors.registry import open_descriptor

    chosen = list(dict.fromkeys(common.specs if specs is None else specs))
    opened: list[Opened] = []
    for spec in chosen:
        if common.skip_missing and _lacks_file(spec):
            opened.append(Opened(spec, spec, None))
            continue
        try:
            descriptor = open_descriptor(spec, common.device, keypoints)
        except ValueError as error:
            raise LogpolarError(str(error)) from error
        for other in opened:
            known = other.descriptor
            if known and (known.name, known.identity) == (descriptor.name, descriptor.identity):
                raise LogpolarError(f"'{other.spec}' and '{spec}' are the same descriptor")
        opened.append(Opened(spec, descriptor.name, descriptor))
    count = Counter(each.name for each in opened)
    return [each if count[each.name] == 1 else Opened(each.spec, each.spec, each.descriptor) for each in opened]


def present(opened: Sequence[Opened]) -> Iterator[tuple[str, Descriptor]]:
    """Names and descriptors of those that are at hand."""
    return ((each.name, each.descriptor) for each in opened if each.descriptor is not None)


def _lacks_file(text: str) -> bool:
    from logpolar.evaluation.descriptors.patch_networks import NETWORK_OPTIONS
    from logpolar.evaluation.descriptors.registry import FEATURE_KINDS
    from logpolar.evaluation.descriptors.specs import parse_spec

    spec = parse_spec(text)
    if spec.name in FEATURE_KINDS:
        file = spec.given.get("weights") or spec.given.get("modelPath", "")
    else:
        file = spec.file if spec.name in NETWORK_OPTIONS else spec.head if spec.head.endswith(".safetensors") else ""
    return bool(file) and not Path(file).exists()


def takes_lambda(text: str) -> bool:
    """Whether the support of a descriptor can be chosen, and is not yet."""
    from logpolar.evaluation.descriptors.patch_networks import NETWORK_OPTIONS
    from logpolar.evaluation.descriptors.specs import parse_spec

    spec = parse_spec(text)
    return "lambda" not in spec.given and (spec.name in ("sift", "rootsift") or spec.name in NETWORK_OPTIONS)


def read_numbers(text: str, option: str, low: float, high: float) -> list[float]:
    """Numbers with commas between, each once."""
    try:
        values = [float(word) for word in text.split(",")] if text else []
    except ValueError:
        values = [math.nan]
    if not all(low <= value <= high for value in values):
        raise LogpolarError(f"{option} are numbers from {low:g} to {high:g} with commas between, not '{text}'")
    return list(dict.fromkeys(values))


def bar(what: str, unit: str = "image") -> Callable[[Iterable[Item]], Iterable[Item]]:
    """A progress bar on terminals."""
    from tqdm import tqdm

    return lambda items: tqdm(items, desc=what, unit=unit, leave=False, disable=None)


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LogpolarError(f"{path}: cannot be a folder for results ({in_words(error)})") from error


@contextmanager
def working(common: Common) -> Iterator[None]:
    """Refuse an output that is no folder before any work; with a cache, say that Ctrl-C loses nothing."""
    make_folder(common.output)
    if common.cache is None:
        yield
    else:
        with continuing(common.cache):
            yield


@dataclass
class Report:
    """Results of a protocol. ``rows``: cells of the table by descriptor; a descriptor may have several rows.

    ``records``: all numbers, a line each, for the CSV; ``results``: the same with their structure, for the JSON.
    ``data``: what tells the images from others. ``figures``: functions that draw, by the ending of the file's name.
    """

    protocol: str
    data: Mapping[str, Any]
    options: Mapping[str, Any]
    opened: Sequence[Measured]
    columns: Sequence[str]
    rows: dict[str, list[list[str]]] = field(default_factory=dict)
    records: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"": []})
    results: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def add(self, name: str, cells: Sequence[str]) -> None:
        self.rows.setdefault(name, []).append(list(cells))

    def markdown(self) -> str:
        from logpolar.storage.documents import markdown_table

        lines = []
        for each in self.opened:
            missing = [[MISSING, *[""] * (len(self.columns) - 1)]]
            lines += [
                [each.name, *cells] for cells in (missing if each.identity is None else self.rows.get(each.name, []))
            ]
        table = markdown_table(["descriptor", *self.columns], lines)
        return "\n".join([table, *(f"{note}\n" for note in self.notes)]).rstrip("\n") + "\n"

    def write(self, folder: Path) -> None:
        """JSON, CSV, Markdown and figures into the folder; prints the table."""
        from logpolar.storage.atomic_io import write_whole
        from logpolar.storage.documents import write_json

        made = [f"{self.protocol}.json", f"{self.protocol}.md"]
        write_json(folder / made[0], self._document())
        write_whole(folder / made[1], self.markdown().encode())
        for ending, records in self.records.items():
            made.append(f"{self.protocol}{ending}.csv")
            write_whole(folder / made[-1], _to_csv(records).encode())
        made += self._draw(folder)
        click.echo(self.markdown(), nl=False)
        click.echo(f"wrote {', '.join(made)} to {folder}")

    def _document(self) -> dict[str, Any]:
        descriptors = [
            {
                "spec": each.spec,
                "name": each.name,
                **({"missing": MISSING} if each.identity is None else {"identity": dict(each.identity)}),
            }
            for each in self.opened
        ]
        return {
            "protocol": self.protocol,
            **made_by(),
            "data": dict(self.data),
            "options": dict(self.options),
            "descriptors": descriptors,
            "results": self.results,
        }

    def _draw(self, folder: Path) -> list[str]:
        made = []
        try:
            for ending, draw in self.figures.items():
                draw().savefig(folder / f"{self.protocol}{ending}.png", dpi=130)
                made.append(f"{self.protocol}{ending}.png")
        except MissingExtraError as error:
            click.echo(f"logpolar: figures are left out: {error}", err=True)
        return made


def made_by() -> dict[str, Any]:
    """The command that runs, and what it runs on."""
    from logpolar.storage.documents import versions

    return {"command": shlex.join(["logpolar", *sys.argv[1:]]), "versions": versions(*_PACKAGES)}


def _to_csv(records: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    names = list(dict.fromkeys(name for record in records for name in record))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
