"""config.json of a submission, and the benchmark's rules for it.

The file is a list of methods. Each has ``metadata`` (who), ``config_common`` (what) and, for each dataset and task,
``config_<dataset>_<task>``: either ``use_custom_matches`` with a name, or a matcher and an outlier filter; stereo also
names the estimator of the geometry (multiview uses COLMAP).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

TASKS = ("stereo", "multiview")
MAX_KEYPOINTS = 8000
CATEGORIES = (2048, MAX_KEYPOINTS)
"""Keypoint budgets that the challenge ranks separately."""

Rule: TypeAlias = tuple[Callable[[Any], bool], str]
"""Whether a value is allowed, and what it must be."""


def _name(characters: str, words: str) -> Rule:
    pattern = re.compile(f"[{characters}]+")
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None, f"made of {words}"


_FLAG: Rule = (lambda value: isinstance(value, bool), "true or false")
_TEXT: Rule = (lambda value: isinstance(value, str), "text")
_COUNT: Rule = (lambda value: type(value) is int and 1 < value <= MAX_KEYPOINTS, f"from 2 to {MAX_KEYPOINTS}")
_LABEL = _name(r"a-z0-9.\-", "lowercase letters, digits, '-' and '.'")
_JSON_LABEL = _name(r"a-z0-9.\-_", "lowercase letters, digits, '-', '.' and '_'")

_RULES: dict[str, dict[str, Rule]] = {
    "metadata": {
        "publish_anonymously": _FLAG,
        **dict.fromkeys(("authors", "contact_email", "method_name", "method_description"), _TEXT),
    },
    "config_common": {
        "json_label": _JSON_LABEL,
        **dict.fromkeys(("keypoint", "descriptor"), _LABEL),
        "num_keypoints": _COUNT,
    },
}
"""Sections that every method has, and their keys."""

_RANSAC = frozenset({"threshold", "confidence", "max_iter"})
GEOMETRIES: dict[str, frozenset[str]] = {
    **dict.fromkeys(("cv2-ransac-f", "cv2-ransac-e"), _RANSAC - {"max_iter"}),
    **dict.fromkeys(("cv2-lmeds-f", "cv2-lmeds-e"), frozenset({"confidence"})),
    **dict.fromkeys(("cv2-7pt", "cv2-8pt"), frozenset[str]()),
    "cv2-patched-ransac-f": _RANSAC,
    **dict.fromkeys(("cmp-degensac-f", "cmp-degensac-f-laf"), _RANSAC | {"error_type", "degeneracy_check"}),
    **dict.fromkeys(("cmp-gc-ransac-f", "cmp-gc-ransac-e", "cmp-magsac-f", "skimage-ransac-f"), _RANSAC),
    "intel-dfe-f": frozenset({"threshold", "postprocess"}),
}
"""Estimators of two-view geometry, each with exactly the parameters it takes."""


@dataclass(frozen=True)
class SubmissionOptions:
    """How a submission describes itself."""

    label: str = "logpolar"  # lowercase letters, digits, "-", "." and "_"
    keypoint: str = "sift"  # the same but "_"
    descriptor: str = "logpolar-96"
    authors: str = ""
    email: str = ""
    description: str = ""
    ratio: float = 0.9  # used where the benchmark does the matching
    threshold: float = 0.5  # largest error of an inlier in pixels, for DEGENSAC in the stereo task

    def __post_init__(self) -> None:
        rules = {"label": _JSON_LABEL, "keypoint": _LABEL, "descriptor": _LABEL}
        for problem in _broken(vars(self), rules):
            raise ValueError(problem)
        if not 0 < self.ratio <= 1 or not self.threshold > 0:
            raise ValueError("ratio must lie in (0, 1], threshold above 0")


def make_method(options: SubmissionOptions, dataset: str, num_keypoints: int, custom_matches: bool) -> dict[str, Any]:
    """A method of config.json for both tasks of a dataset."""
    matching: dict[str, Any] = {"use_custom_matches": True, "custom_matches_name": "logpolar"}
    if not custom_matches:
        matching = {"use_custom_matches": False, "matcher": _matcher(options), "outlier_filter": {"method": "none"}}
    geometry = {
        "method": "cmp-degensac-f",
        "threshold": options.threshold,
        "confidence": 0.999999,
        "max_iter": 100000,
        "error_type": "sampson",
        "degeneracy_check": True,
    }
    return {
        "metadata": {
            "publish_anonymously": False,
            "authors": options.authors,
            "contact_email": options.email,
            "method_name": options.label,
            "method_description": options.description,
        },
        "config_common": {
            "json_label": options.label,
            "keypoint": options.keypoint,
            "descriptor": options.descriptor,
            "num_keypoints": num_keypoints,
        },
        f"config_{dataset}_stereo": {**matching, "geom": geometry},
        f"config_{dataset}_multiview": {**matching, "colmap": {}},
    }


def _matcher(options: SubmissionOptions) -> dict[str, Any]:
    """Mutual nearest neighbours with a ratio test."""
    return {
        "method": "nn",
        "distance": "L2",
        "flann": False,
        "num_nn": 2,
        "filtering": {"type": "snn_ratio_pairwise", "threshold": options.ratio},
        "symmetric": {"enabled": True, "reduce": "both"},
    }


def check_config(methods: Any) -> Iterator[str]:
    """Problems of the content of config.json, one line each."""
    if not isinstance(methods, list) or not methods:
        yield "must be a list of methods, at least one"
        return
    for number, method in enumerate(methods, 1):
        if not isinstance(method, Mapping):
            yield f"method {number} is not an object"
            continue
        for problem in (*_check_sections(method), *_check_tasks(method)):
            yield f"method {number}: {problem}"


def _check_sections(method: Mapping[str, Any]) -> Iterator[str]:
    for section, rules in _RULES.items():
        if isinstance(method.get(section), Mapping):
            yield from (f"{section}.{problem}" for problem in _broken(method[section], rules))
        else:
            yield f"has no {section}"


def _broken(table: Mapping[str, Any], rules: Mapping[str, Rule]) -> Iterator[str]:
    for key, (allowed, words) in rules.items():
        if not allowed(table.get(key)):
            yield f"{key} must be {words}, not {table.get(key)!r}"


def task_configs(method: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Non-empty configs by (dataset, task)."""
    found = {}
    for key, value in method.items():
        parts = re.fullmatch(rf"config_(.+)_({'|'.join((*TASKS, 'relocalization'))})", key)
        if parts and isinstance(value, Mapping) and value:
            found[parts[1], parts[2]] = value
    return found


def _check_tasks(method: Mapping[str, Any]) -> Iterator[str]:
    tasks = task_configs(method)
    if not tasks:
        yield "has no task (config_<dataset>_stereo or config_<dataset>_multiview)"
    for (dataset, task), config in tasks.items():
        for problem in _check_task(task, config):
            yield f"config_{dataset}_{task}: {problem}"


def _check_task(task: str, config: Mapping[str, Any]) -> Iterator[str]:
    custom = config.get("use_custom_matches")
    yield from _broken(config, {"use_custom_matches": _FLAG, **({"custom_matches_name": _LABEL} if custom else {})})
    for key in ("matcher", "outlier_filter"):
        if custom and key in config:
            yield f"has a {key} beside use_custom_matches"
        if not custom and key not in config:
            yield f"has no {key}"
    if task == "stereo":
        yield from _check_geometry(config.get("geom"))


def _check_geometry(geometry: Any) -> Iterator[str]:
    method = geometry.get("method") if isinstance(geometry, Mapping) else None
    if not isinstance(method, str) or method.lower() not in GEOMETRIES:
        yield f"geom.method must be one of {', '.join(GEOMETRIES)}, not {method!r}"
        return
    needed, given = GEOMETRIES[method.lower()], set(geometry) - {"method"}
    for key in sorted(needed - given):
        yield f"geom {method} needs {key}"
    for key in sorted(given - needed):
        yield f"geom {method} takes no {key}"
