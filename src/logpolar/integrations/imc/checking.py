"""Validation of a submission against the rules of the Image Matching Challenge's benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from logpolar.errors import StorageError
from logpolar.integrations.imc.config import MAX_KEYPOINTS, check_config, task_configs
from logpolar.integrations.imc.exporting import pair_key
from logpolar.storage.arrays import find, opened, read_numbers
from logpolar.storage.inputs import parse_json, read_text

_SHAPES = {"descriptors": "(N, D)", "scales": "(N,)", "angles": "(N,)", "scores": "(N,)"}
_DIMENSIONS = (64, 2048)
_MAX_BYTES = 512
"""Size of a descriptor that the benchmark matches itself."""

_SHOWN = 3
"""Problems of a kind that are listed."""


@dataclass
class SubmissionReport:
    """Problems found, and what was checked."""

    problems: list[str] = field(default_factory=list)
    scenes: int = 0
    images: int = 0
    pairs: int = 0


def check_submission(folder: str | Path, images: str | Path | None = None) -> SubmissionReport:
    """Check config, names, shapes, types, ranges and completeness of all scenes.

    ``images``: the benchmark's data, <dataset>/<scene>/*.jpg, to check the names of images against.
    """
    folder, report = Path(folder), SubmissionReport()
    if not folder.is_dir():
        raise StorageError(f"{folder}: no such folder")
    methods = _read_config(folder / "config.json", report)
    common = methods[0].get("config_common") if methods else None
    limit = common.get("num_keypoints") if isinstance(common, Mapping) else None
    limit = limit if isinstance(limit, int) else MAX_KEYPOINTS
    scenes = sorted(place for place in folder.glob("*/*") if place.is_dir() and not place.name.startswith("."))
    if not scenes:
        report.problems.append(f"{folder}: has no scene (<dataset>/<scene>/keypoints.h5)")
    for scene in scenes:
        report.scenes += 1
        checker = _Scene(scene, min(limit, MAX_KEYPOINTS), _custom(methods, scene.parent.name), report)
        report.problems += [f"{scene.parent.name}/{scene.name}: {problem}" for problem in checker.check(images)]
    for method in methods:
        for dataset in sorted({dataset for dataset, _ in task_configs(method)}):
            if not any(scene.parent.name == dataset for scene in scenes):
                report.problems.append(f"config.json: has tasks of {dataset}, but there are no scenes of it")
    return report


def _read_config(path: Path, report: SubmissionReport) -> list[Mapping[str, Any]]:
    try:
        methods = parse_json(read_text(path))
    except StorageError as error:
        missing = not path.exists()
        report.problems.append("config.json: is missing" if missing else f"config.json: cannot be read ({error})")
        return []
    except ValueError as error:
        report.problems.append(f"config.json: is not JSON ({error})")
        return []
    report.problems += [f"config.json: {problem}" for problem in check_config(methods)]
    return [method for method in methods if isinstance(method, Mapping)] if isinstance(methods, list) else []


def _custom(methods: list[Mapping[str, Any]], dataset: str) -> bool | None:
    """Whether the config declares matches for a dataset; None if it has no task for it."""
    found = [config for method in methods for key, config in task_configs(method).items() if key[0] == dataset]
    return any(config.get("use_custom_matches") is True for config in found) if found else None


@dataclass
class _Scene:
    folder: Path
    limit: int
    custom: bool | None
    report: SubmissionReport

    def check(self, images: str | Path | None) -> Iterator[str]:
        if self.custom is None:
            yield "config.json has no task for this dataset"
        try:
            keypoints = _read(self.folder / "keypoints.h5")
        except StorageError as error:
            yield str(error)
            return
        self.report.images += len(keypoints)
        counts = {name: len(array) if array.ndim else 0 for name, array in keypoints.items()}
        yield from _summed("keypoints.h5", self._keypoint_problems(keypoints))
        yield from self._check_names(set(keypoints), images)
        yield from self._check_others(counts)
        yield from self._check_matches(counts)

    def _keypoint_problems(self, keypoints: Mapping[str, NDArray[Any]]) -> Iterator[str]:
        for name, array in keypoints.items():
            if array.ndim != 2 or array.shape[1] != 2:
                yield f"{name} has shape {array.shape}, not (N, 2)"
            elif len(array) > self.limit:
                yield f"{name} has {len(array)} keypoints, more than {self.limit}"
            elif not np.isfinite(array).all():
                yield f"{name} has keypoints that are not finite"

    def _check_names(self, names: set[str], images: str | Path | None) -> Iterator[str]:
        if images is None:
            return
        place = Path(images) / self.folder.parent.name / self.folder.name
        expected = {path.stem for path in place.glob("*") if path.suffix.lower() in (".jpg", ".png")}
        if not expected:
            yield f"no images in {place} to compare with"
            return
        yield from _summed("keypoints.h5", (f"{name} is missing" for name in sorted(expected - names)))
        yield from _summed(
            "keypoints.h5", (f"{name} is not an image of the scene" for name in sorted(names - expected))
        )

    def _check_others(self, counts: Mapping[str, int]) -> Iterator[str]:
        """Descriptors and other attributes of keypoints."""
        if not (self.folder / "descriptors.h5").exists() and not self._match_files():
            yield "has neither descriptors.h5 nor matches"
        for kind, shape in _SHAPES.items():
            path = self.folder / f"{kind}.h5"
            if path.exists():
                try:
                    yield from _summed(path.name, self._array_problems(shape, _read(path), counts))
                except StorageError as error:
                    yield str(error)

    def _array_problems(
        self, shape: str, arrays: Mapping[str, NDArray[Any]], counts: Mapping[str, int]
    ) -> Iterator[str]:
        for name in sorted(counts.keys() - arrays.keys()):
            yield f"{name} is missing"
        for name, array in arrays.items():
            if name not in counts:
                yield f"{name} has no keypoints"
            elif array.ndim != (2 if "D" in shape else 1) or len(array) != counts[name]:
                yield f"{name} has shape {array.shape}, not {shape} with N = {counts[name]}"
            elif array.ndim == 2 and not _DIMENSIONS[0] <= array.shape[1] <= _DIMENSIONS[1]:
                yield f"{name} has {array.shape[1]}-dimensional descriptors, not {_DIMENSIONS[0]} to {_DIMENSIONS[1]}"
            elif array.ndim == 2 and (size := array.shape[1] * array.itemsize) > _MAX_BYTES and not self._match_files():
                yield f"{name} has descriptors of {size} bytes; above {_MAX_BYTES} matches are required"

    def _match_files(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("match*"))

    def _check_matches(self, counts: Mapping[str, int]) -> Iterator[str]:
        files = self._match_files()
        if self.custom and not files:
            yield "config.json declares matches, but there is no matches.h5"
        if files and self.custom is False:
            yield f"has {files[0]}, but config.json says use_custom_matches = false"
        stereo = {"matches_stereo.h5", "matches_stereo_0.h5"}
        if "matches.h5" in files and len(files) > 1:
            yield f"has matches.h5 and {', '.join(name for name in files if name != 'matches.h5')}; use one of them"
        elif files and "matches.h5" not in files and not ("matches_multiview.h5" in files and stereo & set(files)):
            yield f"has {', '.join(files)}: matches are in matches.h5, or in matches_stereo.h5 and matches_multiview.h5"
        for name in files:
            try:
                arrays = _read(self.folder / name)
            except StorageError as error:
                yield str(error)
                continue
            self.report.pairs += len(arrays)
            yield from _summed(name, _match_problems(arrays, counts))


def _match_problems(arrays: Mapping[str, NDArray[Any]], counts: Mapping[str, int]) -> Iterator[str]:
    expected = {pair_key(*pair): (max(pair), min(pair)) for pair in combinations(counts, 2)}
    swapped = {f"{second}-{first}" for first, second in expected.values()}
    for key in sorted(expected.keys() - arrays.keys()):
        yield f"{key} is missing"
    for key, array in arrays.items():
        if key in swapped:
            yield f"{key} has its names swapped: the one that sorts last comes first"
        elif key not in expected:
            yield f"{key} is not a pair of images with keypoints"
        elif array.ndim != 2 or array.shape[0] != 2:
            yield f"{key} has shape {array.shape}, not (2, K)"
        elif array.size and array.dtype.kind not in "iu":
            yield f"{key} has type {array.dtype}, not integers"
        else:
            first, second = (counts[name] for name in expected[key])
            if array.size and ((array < 0).any() or array[0].max() >= first or array[1].max() >= second):
                yield f"{key} matches keypoints that do not exist ({first} and {second} do)"


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of a file by name."""
    if not path.is_file():
        raise StorageError(f"{path.name} is missing")
    with opened(path) as file:
        names = [name for name in file if isinstance(find(file, name), h5py.Dataset)]
        found = {name: read_numbers(file, path, "HDF5 file", name) for name in names}
    if not found:
        raise StorageError(f"{path.name} is empty")
    return found


def _summed(name: str, problems: Iterator[str]) -> Iterator[str]:
    """The first few problems of a file, and the number of the others."""
    for number, problem in enumerate(problems, 1):
        if number > _SHOWN:
            yield f"{name}: and {1 + sum(1 for _ in problems)} more"
            return
        yield f"{name}: {problem}"
