"""Export of feature and match files as a submission to the Image Matching Challenge.

    SUBMISSION/config.json
    SUBMISSION/<dataset>/<scene>/keypoints.h5     <image>: (N, 2) float32, the centre of the top-left pixel is (0, 0)
                                 descriptors.h5   <image>: (N, D) float32
                                 scales.h5        <image>: (N,) OpenCV's size
                                 angles.h5        <image>: (N,) degrees
                                 scores.h5        <image>: (N,)
                                 matches.h5       <larger>-<smaller>: (2, K) int32, every pair of images

Images are named without their endings; of a pair the name that sorts last comes first.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from logpolar.errors import LogpolarError, StorageError, in_words
from logpolar.features.collections import FeatureSource, open_features
from logpolar.integrations.imc.config import CATEGORIES, MAX_KEYPOINTS, SubmissionOptions, make_method, task_configs
from logpolar.matching.collections import MatchSource, open_matches
from logpolar.matching.files import check_matches
from logpolar.storage.atomic_io import Lock, check_place
from logpolar.storage.documents import write_json
from logpolar.storage.hdf5_output import writing
from logpolar.storage.inputs import parse_json, read_text

_CONFIG = "config.json"


def export_submission(
    features: str | Path,
    matches: str | Path | None,
    output: str | Path,
    dataset: str,
    scene: str,
    options: SubmissionOptions | None = None,
    overwrite: bool = False,
) -> Path:
    """Add a scene to the submission in the folder ``output``, created if missing; returns the scene's folder.

    With a match file, which must have every pair, the benchmark uses these matches and estimates the geometry; without,
    it matches the descriptors itself. All scenes of a submission share one config: other labels are refused. The scene
    is written atomically.
    """
    options, output = options or SubmissionOptions(), Path(output)
    for what, name in (("dataset", dataset), ("scene", scene)):
        if not name or set(name) & set("/\\") or name.startswith("."):
            raise LogpolarError(f"'{name}' cannot be the name of a {what}")
    place = output / dataset / scene
    _check_free(place, overwrite)
    with open_features(features) as file:
        keys = image_keys(file.names(), file.path)
        counts = {name: file.count(name) for name in keys}
        _make_folder(output)
        with Lock(output / _CONFIG, wait=True):
            method = make_method(options, dataset, _category(counts), matches is not None)
            config = _merged(output / _CONFIG, method)
            half, former = (output / f".{dataset}-{scene}.{what}" for what in ("half", "former"))
            if former.exists() and not place.exists():  # of a process that was killed between two renames
                former.rename(place)
                _check_free(place, overwrite)
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir()
            try:
                _write_features(file, keys, half)
                if matches is not None:
                    with open_matches(matches, keys) as links:
                        _write_matches(links, keys, counts, half / "matches.h5")
                place.parent.mkdir(exist_ok=True)
                with _replaced(place, former):
                    half.rename(place)
                    write_json(output / _CONFIG, config, indent=4)
            except OSError as error:
                raise StorageError(f"{place}: cannot be written ({in_words(error)})") from error
            finally:
                shutil.rmtree(half, ignore_errors=True)
    return place


def _check_free(place: Path, overwrite: bool) -> None:
    if place.exists() and not overwrite:
        raise LogpolarError(f"{place}: already exists; overwrite it or choose another scene")


@contextlib.contextmanager
def _replaced(place: Path, former: Path) -> Iterator[None]:
    """Move a scene out of the way of a new one; it is removed on success and put back on failure."""
    if place.is_symlink():  # what it links to is not ours
        place.unlink()
    if place.exists():
        shutil.rmtree(former, ignore_errors=True)
        place.rename(former)
    try:
        yield
    except BaseException:
        if former.exists():
            shutil.rmtree(place, ignore_errors=True)
            former.rename(place)
        raise
    shutil.rmtree(former, ignore_errors=True)


def image_keys(names: Iterable[str], path: Path) -> dict[str, str]:
    """The benchmark's name of each image; raises if it is not unique."""
    keys: dict[str, str] = {}
    owners: dict[str, str] = {}
    for name in names:
        key = PurePosixPath(name).stem
        if key == ".":
            raise StorageError(f"{path}: '{name}' has no name that a submission could use; rename it")
        if owners.setdefault(key, name) != name:
            raise StorageError(f"{path}: '{owners[key]}' and '{name}' would both be called '{key}' in a submission")
        keys[name] = key
    return keys


def pair_key(first: str, second: str) -> str:
    """The benchmark's name of a pair of images."""
    return f"{max(first, second)}-{min(first, second)}"


def _category(counts: Mapping[str, int]) -> int:
    most = max(counts.values(), default=0)
    for category in CATEGORIES:
        if most <= category:
            return category
    name = max(counts, key=lambda name: counts[name])
    raise LogpolarError(f"{name} has {most} keypoints, and the challenge takes {MAX_KEYPOINTS} at most")


def _make_folder(output: Path) -> None:
    try:
        if not output.is_dir():
            check_place(output)
            output.mkdir()
    except OSError as error:
        raise StorageError(f"{output}: {in_words(error)}") from error


def _merged(path: Path, method: dict[str, Any]) -> list[dict[str, Any]]:
    """config.json with this method; raises if earlier scenes were made differently."""
    if not path.exists():
        return [method]
    try:
        (before,) = parse_json(read_text(path))
        common = dict(before["config_common"])
        labels = {key: common[key] for key in ("json_label", "keypoint", "descriptor")}
        others = {task: bool(config["use_custom_matches"]) for task, config in task_configs(before).items()}
        wanted = method["config_common"]
        count = max(wanted["num_keypoints"], common["num_keypoints"])
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise StorageError(f"{path}: not written by this command") from error
    for key, label in labels.items():
        if label != wanted[key]:
            raise StorageError(f"{path}: has {key} = {label!s:.200}, not {wanted[key]}; choose another folder")
    for task, config in task_configs(method).items():
        matches = bool(config["use_custom_matches"])
        if others.get(task, matches) != matches:
            differs = f"are {_with(not matches)}, this one is {_with(matches)}"
            raise StorageError(f"{path}: other scenes of {task[0]} {differs}")
    return [{**before, **method, "config_common": {**wanted, "num_keypoints": count}}]


def _with(matches: bool) -> str:
    return "with matches" if matches else "without matches"


def _write_features(file: FeatureSource, keys: Mapping[str, str], folder: Path) -> None:
    kinds = ("keypoints", "descriptors", "scales", "angles", "scores")
    with contextlib.ExitStack() as stack:
        files = {kind: stack.enter_context(writing(folder / f"{kind}.h5")) for kind in kinds}
        for name, key in keys.items():
            found = file.read(name)
            points = found.keypoints
            arrays = (points.xy, found.descriptors, points.size, points.angle, points.response)
            for kind, array in zip(kinds, arrays, strict=True):
                files[kind].create_dataset(key, data=array)


def _write_matches(links: MatchSource, keys: Mapping[str, str], counts: Mapping[str, int], path: Path) -> None:
    with writing(path) as file:
        for pair in combinations(keys, 2):
            first, second = sorted(pair, key=lambda name: keys[name], reverse=True)
            matches = links.read(first, second)
            check_matches(matches, counts[first], counts[second], f"{links.path}: '{first}' and '{second}'")
            key = pair_key(keys[first], keys[second])
            if key in file:
                raise StorageError(f"{links.path}: two pairs would be called '{key}' in a submission; rename an image")
            file.create_dataset(key, data=np.ascontiguousarray(matches.indices.T))
