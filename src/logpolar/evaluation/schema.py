"""The layout of result files, declared once: ``Results`` are checked before they are written, reports when read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from logpolar.errors import LogpolarError

ABLATION = "ablation"
_EACH = "*"  # any key

_COUNTS = {"pairs": int, "correspondences": int}
_SCORE = {**_COUNTS, "fpr95": float, "rank1": float, "rank1_scales_differ_2x": float}
_MODELS = {
    **dict.fromkeys(("images", "reduced", "registered_least", "registered_most"), int),
    **dict.fromkeys(("registered", "reduced_registered", "right", "points"), float),
    **dict.fromkeys(("mean_track_length", "mean_reprojection_error", "rotation_median", "position_median"), float),
}
_HPATCHES = {
    "options": {"mode": str, "turn": float, "zoom": float},
    "splits": {_EACH: {**_COUNTS, "rank1": float}},
}
_POSES = {"pairs": int, "maa10": float, "map15": float}
_SCENE = {**_SCORE, "fpr95_interval": list, "classes": {"counts": list, "fpr95": list}}
_RETRIEVAL = {**_COUNTS, "distractors": float, "shares": {"1": float}}

# By protocol: results of each method; None, a missing value, is a float.
RESULTS: dict[str, Any] = {
    "patches": {_EACH: {"mean": _SCENE, _EACH: _SCENE}},
    "retrieval": {_EACH: {"mean": _RETRIEVAL, _EACH: _RETRIEVAL}},
    "hpatches": {_EACH: [_HPATCHES]},
    "detectors": {_EACH: {_EACH: {"pairs": int, "counted": int, "repeatability": float, "error": float}}},
    "amos": {_EACH: {"pairs": int, "views": int, "rank1": float}},
    "sfm": {_EACH: {"ratio": float, "all": _MODELS, "scenes": {_EACH: {**_MODELS, "pairs": int, "verified": int}}}},
    "phototourism": {_EACH: {"ratio": float, "mean": {_EACH: _POSES}, "stereo": dict, "multi_view": dict}},
    ABLATION: {_EACH: {"pattern": str, "lambda": float, **_SCORE}},
}

TOP = {"command": str, "versions": {_EACH: str}, "data": dict, "options": dict, "descriptors": [{"name": str}]}
"""What all result files have beside the protocol and the results."""

_KINDS = {float: "a number", int: "an integer", str: "text", list: "a list", dict: "a table"}


def check_layout(path: Path, values: Any, layout: Any) -> None:
    """Raise ``LogpolarError``, with the file and the key, unless the values have the layout."""
    problem = _problem(values, layout, "")
    if problem:
        raise LogpolarError(f"{path}: not in this version's layout ({problem}); rerun the command that made it")


def _problem(values: Any, layout: Any, where: str) -> str:
    """The first difference from the layout; empty if there is none."""
    if isinstance(layout, type):
        kinds = (int, float, type(None)) if layout is float else (layout,)
        fits = isinstance(values, kinds) and not isinstance(values, bool)
        return "" if fits else f"'{where}' is not {_KINDS[layout]}"
    if isinstance(layout, list):
        if not isinstance(values, list):
            return f"'{where}' is not a list"
        inner = [(f"{where}/{number}", value, layout[0]) for number, value in enumerate(values)]
    else:
        if not isinstance(values, Mapping):
            return f"'{where}' is not a table"
        missing = next((key for key in layout if key != _EACH and key not in values), None)
        if missing is not None:
            return f"no '{missing}' in {where or 'it'}"
        chosen = {key: layout.get(key, layout.get(_EACH)) for key in values}
        inner = [(f"{where}/{key}".lstrip("/"), values[key], each) for key, each in chosen.items() if each is not None]
    return next((found for name, value, each in inner if (found := _problem(value, each, name))), "")
