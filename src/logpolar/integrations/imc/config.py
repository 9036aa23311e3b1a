"""config.json of a submission: made, and checked by the rules of the benchmark.

The file is a list of methods. Each has ``metadata`` (who), ``config_common`` (what) and, for each dataset and task,
``config_<dataset>_<task>``: either ``use_custom_matches`` with a name, or a matcher and an outlier filter; stereo also
names what estimates the geometry, and COLMAP does so in multiview.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

TASKS = ("stereo", "multiview")
MAX_KEYPOINTS = 8000
CATEGORIES = (2048, MAX_KEYPOINTS)
"""Numbers of keypoints that the challenge ranks separately."""

_LABEL = re.compile(r"[a-z0-9.\-]+")
_JSON_LABEL = re.compile(r"[a-z0-9.\-_]+")

_METADATA = {
    "publish_anonymously": bool,
    "authors": str,
    "contact_email": str,
    "method_name": str,
    "method_description": str,
}
_THRESHOLD, _CONFIDENCE, _ITERATIONS = "threshold", "confidence", "max_iter"
_DEGENSAC = {_THRESHOLD, _CONFIDENCE, _ITERATIONS, "error_type", "degeneracy_check"}
GEOMETRIES: dict[str, set[str]] = {
    "cv2-ransac-f": {_THRESHOLD, _CONFIDENCE},
    "cv2-ransac-e": {_THRESHOLD, _CONFIDENCE},
    "cv2-lmeds-f": {_CONFIDENCE},
    "cv2-lmeds-e": {_CONFIDENCE},
    "cv2-7pt": set(),
    "cv2-8pt": set(),
    "cv2-patched-ransac-f": {_THRESHOLD, _CONFIDENCE, _ITERATIONS},
    "cmp-degensac-f": _DEGENSAC,
    "cmp-degensac-f-laf": _DEGENSAC,
    "cmp-gc-ransac-f": {_THRESHOLD, _CONFIDENCE, _ITERATIONS},
    "cmp-gc-ransac-e": {_THRESHOLD, _CONFIDENCE, _ITERATIONS},
    "cmp-magsac-f": {_THRESHOLD, _CONFIDENCE, _ITERATIONS},
    "skimage-ransac-f": {_THRESHOLD, _CONFIDENCE, _ITERATIONS},
    "intel-dfe-f": {_THRESHOLD, "postprocess"},
}
"""What can estimate the geometry of two views, and which parameters each must have and no others."""


@dataclass(frozen=True)
class SubmissionOptions:
    """What a submission says about itself."""

    label: str = "logpolar"  # lowercase letters, digits, "-", "." and "_"
    keypoint: str = "sift"  # the same but "_"
    descriptor: str = "logpolar-96"
    authors: str = ""
    email: str = ""
    description: str = ""
    ratio: float = 0.9  # where the benchmark is to match
    threshold: float = 0.5  # largest error of an inlier in pixels, for DEGENSAC in the stereo task

    def __post_init__(self) -> None:
        for name, pattern in (("label", _JSON_LABEL), ("keypoint", _LABEL), ("descriptor", _LABEL)):
            if not pattern.fullmatch(getattr(self, name)):
                raise ValueError(f"{name} {getattr(self, name)!r} must be made of {_allowed(pattern)}")
        if not 0 < self.ratio <= 1 or not self.threshold > 0:
            raise ValueError("ratio must lie in (0, 1], threshold above 0")


def make_method(options: SubmissionOptions, dataset: str, num_keypoints: int, custom_matches: bool) -> dict[str, Any]:
    """A method of config.json for one dataset, both tasks."""
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
    """What is wrong with the content of config.json, one line each."""
    if not isinstance(methods, list) or not methods:
        yield "must be a list of methods, at least one"
        return
    for number, method in enumerate(methods, 1):
        if not isinstance(method, Mapping):
            yield f"method {number} is not an object"
            continue
        for problem in (*_check_metadata(method), *_check_common(method), *_check_tasks(method)):
            yield f"method {number}: {problem}"


def _check_metadata(method: Mapping[str, Any]) -> Iterator[str]:
    metadata = method.get("metadata")
    if not isinstance(metadata, Mapping):
        yield "has no metadata"
        return
    for key, kind in _METADATA.items():
        if not isinstance(metadata.get(key), kind):
            yield f"metadata.{key} is missing, or is not {'true or false' if kind is bool else 'text'}"


def _check_common(method: Mapping[str, Any]) -> Iterator[str]:
    common = method.get("config_common")
    if not isinstance(common, Mapping):
        yield "has no config_common"
        return
    for key, pattern in (("json_label", _JSON_LABEL), ("keypoint", _LABEL), ("descriptor", _LABEL)):
        if not isinstance(common.get(key), str) or not pattern.fullmatch(common[key]):
            yield f"config_common.{key} must be made of {_allowed(pattern)}, not {common.get(key)!r}"
    count = common.get("num_keypoints")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 < count <= MAX_KEYPOINTS:
        yield f"config_common.num_keypoints must be a number from 2 to {MAX_KEYPOINTS}, not {count!r}"


def task_configs(method: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Configs that are not empty, by (dataset, task)."""
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
    if not isinstance(custom, bool):
        yield "use_custom_matches must be true or false"
        return
    if custom:
        for key in ("matcher", "outlier_filter"):
            if key in config:
                yield f"has a {key} beside use_custom_matches"
        name = config.get("custom_matches_name")
        if not isinstance(name, str) or not _LABEL.fullmatch(name):
            yield f"custom_matches_name must be made of {_allowed(_LABEL)}, not {name!r}"
    else:
        yield from (f"has no {key}" for key in ("matcher", "outlier_filter") if key not in config)
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


def _allowed(pattern: re.Pattern[str]) -> str:
    return "lowercase letters, digits, '-', '.'" + (" and '_'" if pattern is _JSON_LABEL else "")
