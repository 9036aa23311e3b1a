"""Runs of the protocols, read from their output folders: ``PROTOCOL.json``, and an ablation's table.

A run that does not have the layout of ``evaluation.schema`` is refused.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from logpolar.errors import LogpolarError
from logpolar.evaluation.schema import ABLATION, RESULTS, TOP, check_layout
from logpolar.storage.inputs import parse_json, read_bytes, read_text

_TABLE = "table.csv"
_DOCUMENTS = tuple(f"{protocol}.json" for protocol in RESULTS if protocol != ABLATION)


@dataclass(frozen=True)
class Run:
    """One run of a protocol; ``command`` is empty if it was not recorded."""

    label: str
    path: Path
    protocol: str
    command: str
    versions: dict[str, str]
    data: dict[str, Any]
    options: dict[str, Any]
    descriptors: list[dict[str, Any]]
    results: dict[str, Any]

    @property
    def seed(self) -> int | None:
        return self.options.get("seed")

    @property
    def fixed_size(self) -> str | float | None:
        """The rule that replaces the detector's scales, if any does."""
        return self.options.get("fixed_size")

    @property
    def on_sift(self) -> bool:
        """Whether keypoints are SIFT's, as they are unless a run says otherwise."""
        detector = self.options.get("detector")
        return not isinstance(detector, Mapping) or detector.get("kind") == "sift"

    def identity(self, name: str) -> dict[str, Any]:
        """The identity of a method; empty if it was not recorded."""
        return next((each.get("identity", {}) for each in self.descriptors if each["name"] == name), {})

    def about(self) -> dict[str, Any]:
        """All but the results, as plain values."""
        names = ("label", "protocol", "command", "versions", "seed", "data", "options", "descriptors")
        return {name: getattr(self, name) for name in names}


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """All runs in the folders and below, in the order of the paper's tables; raises if a folder has none."""
    paths: dict[Path, None] = {}
    for folder in folders:
        found = list(_result_files(folder))
        if not found:
            names = ", ".join(_DOCUMENTS)
            raise LogpolarError(f"{folder}: no results there; expected {names}, or {_TABLE} of `logpolar ablate`")
        paths |= dict.fromkeys(path.resolve() for path in found)
    runs = [_read_table(path) if path.name == _TABLE else _read_document(path) for path in paths]
    return sorted(_labelled(runs), key=lambda run: list(RESULTS).index(run.protocol))


def _result_files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise LogpolarError(f"{folder}: {'is not a folder' if folder.exists() else 'no such folder'}")
    names = (_TABLE, *_DOCUMENTS)
    return (path for path in sorted(folder.rglob("*")) if path.name in names and path.is_file())


def _labelled(runs: Sequence[Run]) -> list[Run]:
    """Runs labelled by their protocol, by their folder if there are several, and by number if need be."""
    several = Counter(run.protocol for run in runs)
    labels = [run.protocol + (f" ({run.path.parent.name})" if several[run.protocol] > 1 else "") for run in runs]
    same, seen = Counter(labels), Counter[str]()
    named = []
    for run, label in zip(runs, labels, strict=True):
        seen[label] += 1
        named.append(replace(run, label=f"{label} {seen[label]}" if same[label] > 1 else label))
    return named


def _read_document(path: Path) -> Run:
    document, protocol = _read_json(path), path.stem
    if not isinstance(document, dict) or document.get("protocol") != protocol:
        raise LogpolarError(f"{path}: not results of `logpolar eval {protocol}`")
    check_layout(path, document, {**TOP, "results": RESULTS[protocol]})
    return Run("", path, protocol, **{name: document[name] for name in (*TOP, "results")})


def _read_table(path: Path) -> Run:
    """The means of an ablation; the command that made it is in a file next to it, except in older versions."""
    try:
        lines = list(csv.DictReader(io.StringIO(read_text(path, LogpolarError))))
    except csv.Error as error:
        raise LogpolarError(f"{path}: cannot be read ({error})") from error
    results = {
        f"{line.get('pattern')}-{line.get('lambda')}": {
            key: value if key in ("pattern", "file") else _number(value) for key, value in line.items()
        }
        for line in lines
        if line.get("file") == "mean"
    }
    if not results:
        raise LogpolarError(f"{path}: not a table of `logpolar ablate` (pattern, lambda, file, ... with files 'mean')")
    check_layout(path, results, RESULTS[ABLATION])
    about: dict[str, Any] = {"command": "", "versions": {}, "data": {}, "options": {}}
    record = path.with_name(f"{ABLATION}.json")
    if record.exists():
        known = _read_json(record)
        check_layout(record, known, {name: TOP[name] for name in about})
        about = {name: known[name] for name in about}
    return Run("", path, ABLATION, **about, descriptors=[], results=results)


def _number(text: str | None) -> float | int | str | None:
    """None for an empty cell; text that is not a number is kept, to be refused."""
    if text is None or text == "":
        return None
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text


def _read_json(path: Path) -> Any:
    content = read_bytes(path, LogpolarError)
    try:
        return parse_json(content)
    except UnicodeDecodeError as error:
        raise LogpolarError(f"{path}: not a JSON file") from error
    except json.JSONDecodeError as error:
        raise LogpolarError(f"{path}: damaged or incomplete JSON (line {error.lineno}: {error.msg})") from error
    except ValueError as error:
        raise LogpolarError(f"{path}: damaged JSON ({error})") from error
