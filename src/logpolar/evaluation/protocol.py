"""The interface of all protocols, and ``evaluate``, which runs any of them.

A protocol prepares its data, scores each method under test on descriptors that come through the cache, and adds the
scores to ``Results``, which are written as JSON, CSV, a Markdown table and figures.
"""

from __future__ import annotations

import csv
import io
import math
import shlex
import sys
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from tqdm import tqdm

from logpolar.errors import LogpolarError, LogpolarWarning, MissingExtraError, in_words
from logpolar.evaluation.cache import DescriptorCache
from logpolar.evaluation.descriptors.keypoint_sources import KeypointSource
from logpolar.evaluation.descriptors.registry import Method, lacks_weights, open_method
from logpolar.evaluation.options import RunOptions
from logpolar.evaluation.schema import RESULTS, TOP, check_layout
from logpolar.storage.atomic_io import write_whole
from logpolar.storage.documents import markdown_table, versions, write_json
from logpolar.viewing.drawing import write_figure

_PROTOCOLS = {
    "patches": "Patches",
    "retrieval": "Retrieval",
    "hpatches": "HPatches",
    "amos": "Amos",
    "detectors": "Detectors",
    "phototourism": "PhotoTourism",
    "sfm": "StructureFromMotion",
}
"""Classes by the names of their modules."""

MISSING = "weights missing"

MEAN_OF_SCENES = "Means are over scenes, each counting the same; N is their sum."

_PACKAGES = (
    *("numpy", "opencv-python-headless", "opencv-python", "opencv-contrib-python", "onnxruntime", "torch"),
    *("kornia", "pycolmap", "pycolmap-cuda12", "poselib"),
)
"""Results record the versions of those that are installed."""

Item = TypeVar("Item")


class Protocol(ABC):
    """What is measured on which data. Constructors check options; files are read by ``prepare``."""

    name: str
    compared: str = "descriptor"  # what methods are, in tables
    cached_as: str = ""  # in names of cache files, instead of ``name``
    columns: Sequence[str]  # of the table, after the method's
    options: Mapping[str, Any]  # for the results
    data: Mapping[str, Any]  # identity of the data, for the results; set by ``prepare``
    source: KeypointSource | None = None  # of the keypoints that methods without their own describe
    max_keypoints: int | None = None  # of methods with their own keypoints; None refuses these

    def __init__(self, run: RunOptions) -> None:
        self.run = run

    def specs(self) -> Sequence[str]:
        """Specs of the methods to be opened."""
        return self.run.specs

    def open(self, spec: str) -> Method:
        return open_method(spec, self.max_keypoints, **self.run.engine)

    @abstractmethod
    def prepare(self) -> None:
        """Read and check the data; raises for anything that cannot be used, before anything is written."""

    def cache(self, method: Method, data: Mapping[str, Any], settings: Mapping[str, Any]) -> DescriptorCache:
        """Describes views of the data, each once; ``settings`` decide which keypoints are described."""
        return DescriptorCache(self.run.cache, method, self.cached_as or self.name, data, settings)

    def source_of(self, method: Method) -> KeypointSource:
        """Of the keypoints that a method describes."""
        source = method.source or self.source
        assert source is not None
        return source

    @abstractmethod
    def score(self, method: Method) -> Any:
        """The score of a method."""

    @abstractmethod
    def report(self, results: Results, scores: Mapping[str, Any]) -> None:
        """Add scores, by names of methods, to the results."""


def evaluate(protocol: str, run: RunOptions, **inputs: Any) -> Results:
    """Run a protocol on the methods of ``run``, and write the results; ``inputs``: see the class of the protocol."""
    module = import_module(f"logpolar.evaluation.{protocol}")
    try:
        task: Protocol = getattr(module, _PROTOCOLS[protocol])(run, **inputs)
        methods = open_methods(task)
    except ValueError as error:
        raise LogpolarError(str(error)) from error
    task.prepare()
    make_folder(run.output)
    scores = {method.name: task.score(method) for method in methods if method.identity is not None}
    results = Results(task.name, task.data, task.options, methods, task.columns, compared=task.compared)
    task.report(results, scores)
    if task.source is not None:
        results.notes += _keypoint_notes(task.source, methods)
    results.write(run.output)
    return results


def open_methods(task: Protocol) -> list[Method]:
    """All methods of a run, before any work is done; those of the same name are named by their specs."""
    methods: list[Method] = []
    for spec in dict.fromkeys(task.specs()):
        if task.run.skip_missing and lacks_weights(spec):
            methods.append(Method(spec, spec))
            continue
        method = task.open(spec)
        twin = next((each for each in methods if (each.name, each.identity) == (method.name, method.identity)), None)
        if twin is not None:
            raise LogpolarError(f"'{twin.spec}' and '{spec}' are the same descriptor")
        if method.source is not None and task.source is not None and task.source.fixed_size is not None:
            raise LogpolarError(f"'{method.name}' has its own keypoints, whose sizes --fixed-size cannot change")
        methods.append(method)
    count = Counter(method.name for method in methods)
    return [method if count[method.name] == 1 else replace(method, name=method.spec) for method in methods]


def _keypoint_notes(source: KeypointSource, methods: Sequence[Method]) -> list[str]:
    notes = []
    if source.identity["kind"] != "sift":
        notes.append(f"Keypoints: {source.identity['kind']} {source.identity['class']}.")
    own = [method.name for method in methods if method.source is not None]
    return [*notes, f"On their own keypoints: {', '.join(own)}."] if own else notes


def check_scene_names(names: Sequence[str], reserved: str) -> None:
    """Raise for scenes whose results would have the same name; ``reserved`` is that of all scenes together."""
    if len(set(names)) < len(names):
        raise LogpolarError("two scenes have the same name, and so would their results")
    if reserved in names:
        raise LogpolarError(f"a scene cannot be called '{reserved}', the name of the summary; rename it")


def read_numbers(text: str, option: str, low: float, high: float) -> list[float]:
    """Comma-separated numbers without repetitions."""
    try:
        values = [float(word) for word in text.split(",")] if text else []
    except ValueError:
        values = [math.nan]
    if not all(low <= value <= high for value in values):
        raise LogpolarError(f"{option} takes comma-separated numbers from {low:g} to {high:g}, not '{text}'")
    return list(dict.fromkeys(values))


def bar(what: str, unit: str = "image") -> Callable[[Iterable[Item]], Iterable[Item]]:
    """A progress bar on terminals."""
    return lambda items: tqdm(items, desc=what, unit=unit, leave=False, disable=None)


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LogpolarError(f"{path}: cannot be a folder for results ({in_words(error)})") from error


@dataclass
class Results:
    """Results of a protocol.

    ``rows``: cells of the table by method, which may have several rows. ``records``: all numbers as lines of CSV files,
    by the ending of the file's name. ``results``: the same with their structure, for the JSON. ``figures``: functions
    that draw, by the ending of the file's name. ``written``: names of files.
    """

    protocol: str
    data: Mapping[str, Any]
    options: Mapping[str, Any]
    methods: Sequence[Method]
    columns: Sequence[str]
    rows: dict[str, list[list[str]]] = field(default_factory=dict)
    records: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"": []})
    results: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Callable[[], Any]] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    compared: str = "descriptor"

    def add(self, name: str, cells: Sequence[str]) -> None:
        self.rows.setdefault(name, []).append(list(cells))

    def markdown(self) -> str:
        missing = [[MISSING, *[""] * (len(self.columns) - 1)]]
        rows = [
            [method.name, *cells]
            for method in self.methods
            for cells in (missing if method.identity is None else self.rows.get(method.name, []))
        ]
        notes = "".join(f"\n{note}\n" for note in self.notes)
        return markdown_table([self.compared, *self.columns], rows) + notes

    def write(self, folder: Path) -> None:
        """Write JSON, CSV, Markdown and figures into the folder."""
        self.written = [f"{self.protocol}.json", f"{self.protocol}.md"]
        document = self._document()
        check_layout(folder / self.written[0], document, {**TOP, "results": RESULTS[self.protocol]})
        write_json(folder / self.written[0], document)
        write_whole(folder / self.written[1], self.markdown().encode())
        for ending, records in self.records.items():
            self.written.append(f"{self.protocol}{ending}.csv")
            write_whole(folder / self.written[-1], _to_csv(records).encode())
        figures = {f"{self.protocol}{ending}": draw for ending, draw in self.figures.items()}
        self.written += draw_figures(folder, figures)[0]

    def _document(self) -> dict[str, Any]:
        descriptors = [
            {
                "spec": each.spec,
                "name": each.name,
                **({"missing": MISSING} if each.identity is None else {"identity": each.identity}),
            }
            for each in self.methods
        ]
        data, options = dict(self.data), dict(self.options)
        top = {"protocol": self.protocol, **made_by(), "data": data, "options": options}
        return {**top, "descriptors": descriptors, "results": self.results}


def draw_figures(folder: Path, figures: Mapping[str, Callable[[], Any]]) -> tuple[list[str], str]:
    """Save figures by name; the names of files or, without matplotlib, none, the reason, and a warning."""
    made = []
    try:
        for name, draw in figures.items():
            write_figure(folder / f"{name}.png", draw())
            made.append(f"{name}.png")
    except MissingExtraError as error:
        warnings.warn(f"figures are left out: {error}", LogpolarWarning, stacklevel=2)
        return [], str(error)
    return made, ""


def made_by() -> dict[str, Any]:
    """The running command and the versions of packages."""
    return {"command": shlex.join(["logpolar", *sys.argv[1:]]), "versions": versions(*_PACKAGES)}


def _to_csv(records: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    names = list(dict.fromkeys(name for record in records for name in record))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


# Numbers and tables as text; NaN and None are missing values.


def percent(fraction: float | None, digits: int = 2) -> str:
    return "" if fraction is None or math.isnan(fraction) else f"{100 * fraction:.{digits}f}"


def decimal(value: float | None, digits: int = 4) -> str:
    return "" if value is None or math.isnan(value) else f"{value:.{digits}f}"
