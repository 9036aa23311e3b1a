"""Runs of the protocols, read from what their commands left in folders: ``PROTOCOL.json``, and an ablation's table.

A run is read whole or refused: what a report says of it is never a guess at what an unknown layout means.
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

from logpolar.errors import LogpolarError, in_words

ABLATION = "ablation"
_TABLE = "table.csv"
_EACH = "*"

_SCORE = {"pairs": int, "correspondences": int, "fpr95": float, "rank1": float, "rank1_scales_differ_2x": float}
_POSES = {"pairs": int, "maa10": float, "map15": float}

_MODELS = {
    **dict.fromkeys(("images", "reduced", "registered_least", "registered_most"), int),
    **dict.fromkeys(("registered", "reduced_registered", "right", "points"), float),
    **dict.fromkeys(("mean_track_length", "mean_reprojection_error", "rotation_median", "position_median"), float),
}

# Results by protocol: what each key holds, None being a number that there is none of; "*" stands for any key.
_LAYOUTS: dict[str, Any] = {
    "patches": {_EACH: {_EACH: {**_SCORE, "fpr95_interval": list, "classes": {"counts": list, "fpr95": list}}}},
    "retrieval": {_EACH: {_EACH: {"pairs": int, "correspondences": int, "distractors": float, "shares": {"1": float}}}},
    "hpatches": {
        _EACH: [
            {
                "options": {"mode": str, "turn": float, "zoom": float},
                "splits": {_EACH: {"pairs": int, "correspondences": int, "rank1": float}},
            }
        ]
    },
    "amos": {_EACH: {"pairs": int, "views": int, "rank1": float}},
    "sfm": {_EACH: {"ratio": float, "all": _MODELS, "scenes": {_EACH: {**_MODELS, "pairs": int, "verified": int}}}},
    "phototourism": {_EACH: {"ratio": float, "mean": {_EACH: _POSES}, "stereo": dict, "multi_view": dict}},
    ABLATION: {_EACH: {"pattern": str, "lambda": float, **_SCORE}},
}
_MEANS = ("patches", "retrieval")  # results of these are by scene, and of their mean
_TOP = {"command": str, "versions": {_EACH: str}, "data": dict, "options": dict, "descriptors": [{"name": str}]}

PROTOCOLS = tuple(_LAYOUTS)


@dataclass(frozen=True)
class Run:
    """One run of a protocol. ``label`` tells it from the other runs; ``command`` is empty if it was not recorded."""

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
        """What a descriptor is; empty if that was not recorded."""
        return next((each.get("identity", {}) for each in self.descriptors if each["name"] == name), {})

    def about(self) -> dict[str, Any]:
        """All but the results, as plain values."""
        names = ("label", "protocol", "command", "versions", "seed", "data", "options", "descriptors")
        return {name: getattr(self, name) for name in names}


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """All runs in the folders and those below, in the order of the paper's tables; raises if a folder has none."""
    paths: dict[Path, None] = {}
    for folder in folders:
        found = list(_result_files(folder))
        if not found:
            names = ", ".join(f"{protocol}.json" for protocol in PROTOCOLS if protocol != ABLATION)
            raise LogpolarError(f"{folder}: no results there; expected {names}, or {_TABLE} of `logpolar ablate`")
        paths |= dict.fromkeys(path.resolve() for path in found)
    runs = [_read_table(path) if path.name == _TABLE else _read_document(path) for path in paths]
    return sorted(_labelled(runs), key=lambda run: PROTOCOLS.index(run.protocol))


def _result_files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise LogpolarError(f"{folder}: {'is not a folder' if folder.exists() else 'no such folder'}")
    names = {_TABLE, *(f"{protocol}.json" for protocol in PROTOCOLS if protocol != ABLATION)}
    return (path for path in sorted(folder.rglob("*")) if path.name in names and path.is_file())


def _labelled(runs: Sequence[Run]) -> list[Run]:
    """Runs called by their protocol, those of which there are several by their folder too, by number if need be."""
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
        if protocol == "phototourism" and isinstance(document, dict) and "multi_view" in document:
            raise _older(path, "no 'protocol'")
        raise LogpolarError(f"{path}: not results of `logpolar eval {protocol}`")
    _check(path, document, {**_TOP, "results": _LAYOUTS[protocol]})
    for name, result in document["results"].items():
        if protocol in _MEANS and "mean" not in result:
            raise _older(path, f"no 'mean' in results/{name}")
    parts = {name: document[name] for name in (*_TOP, "results")}
    return Run("", path, protocol, **parts)


def _read_table(path: Path) -> Run:
    """The means of an ablation; what made it stands in a file next to it, which runs of older versions lack."""
    try:
        lines = list(csv.DictReader(io.StringIO(path.read_text())))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise LogpolarError(f"{path}: cannot be read ({error})") from error
    results = {}
    for line in lines:
        if line.get("file") != "mean":
            continue
        results[f"{line.get('pattern')}-{line.get('lambda')}"] = {
            key: value if key in ("pattern", "file") else _number(value) for key, value in line.items()
        }
    if not results:
        raise LogpolarError(f"{path}: not a table of `logpolar ablate` (pattern, lambda, file, ... with files 'mean')")
    _check(path, results, _LAYOUTS[ABLATION])
    about: dict[str, Any] = {"command": "", "versions": {}, "data": {}, "options": {}}
    record = path.with_name(f"{ABLATION}.json")
    if record.exists():
        known = _read_json(record)
        _check(record, known, {name: _TOP[name] for name in about})
        about = {name: known[name] for name in about}
    return Run("", path, ABLATION, **about, descriptors=[], results=results)


def _number(text: str | None) -> float | int | str | None:
    """An empty cell is a number that there is none of; what is no number stays, to be refused."""
    if text is None or text == "":
        return None
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        return text


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise LogpolarError(f"{path}: {in_words(error)}") from error
    except UnicodeDecodeError as error:
        raise LogpolarError(f"{path}: not a JSON file") from error
    except json.JSONDecodeError as error:
        raise LogpolarError(f"{path}: damaged or incomplete JSON (line {error.lineno}: {error.msg})") from error


def _check(path: Path, values: Any, layout: Any) -> None:
    problem = _problem(values, layout, "")
    if problem:
        raise _older(path, problem)


def _older(path: Path, problem: str) -> LogpolarError:
    return LogpolarError(f"{path}: not in the layout of this version ({problem}); run the command that made it again")


def _problem(values: Any, layout: Any, where: str) -> str:
    """The first place where the values are not what the layout says, in words; empty if there is none."""
    if isinstance(layout, type):
        kinds = (int, float) if layout is float else (layout,)
        fits = values is None if layout is float and values is None else isinstance(values, kinds)
        return "" if fits and not isinstance(values, bool) else f"'{where}' is no {_KINDS[layout]}"
    if isinstance(layout, list):
        if not isinstance(values, list):
            return f"'{where}' is no list"
        inner = ((f"{where}/{number}", value, layout[0]) for number, value in enumerate(values))
    else:
        if not isinstance(values, Mapping):
            return f"'{where}' is no table"
        missing = next((key for key in layout if key != _EACH and key not in values), None)
        if missing is not None:
            return f"no '{missing}' in {where or 'it'}"
        chosen = {key: layout.get(key, layout.get(_EACH)) for key in values}
        inner = ((f"{where}/{key}".lstrip("/"), values[key], part) for key, part in chosen.items() if part is not None)
    return next((found for name, value, part in inner if (found := _problem(value, part, name))), "")


_KINDS = {float: "number", int: "whole number", str: "text", list: "list", dict: "table"}
