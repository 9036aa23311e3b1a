"""Relative poses before and after each step of the pipeline, at several zooms, with intervals.

    python benchmarks/pose.py measure scenes/a scenes/b -d logpolar-96-int8 -d rootsift -o pose.json --cache cache/
    python benchmarks/pose.py show pose.json

For each descriptor, step and zoom: mean of scenes of mAA at 5 and at 10 degrees (mean of the fractions of pairs whose
larger angular error is within 1, 2, ... degrees), the 95 % interval of that mean by resampling pairs within scenes, and
the interval of the change from the step before, by resampling the same pairs in both. Steps add up, in this order;
``--steps`` chooses others. The first is the pipeline of version 0.1.

``--pairs 60`` takes the pairs of as few images as have 60, so that few images are described; fewer pairs are the first
of more (``ordered``), and under true zoom some no longer overlap. The output is written after every scene and view, and
what it has is not measured again. ``VALIDATION`` are the scenes on which defaults are chosen: training scenes of
different kinds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import logpolar
from logpolar.evaluation.descriptors.keypoint_sources import KeypointSource, open_source
from logpolar.evaluation.descriptors.registry import Method, open_method
from logpolar.evaluation.options import PhototourismOptions
from logpolar.evaluation.phototourism import read_views
from logpolar.evaluation.posed_scenes import PosedImage, PosedScene, RowPair
from logpolar.evaluation.poses import DescribedImage, PreparedScene, SecondLook, evaluate_stereo
from logpolar.features.regions import Region, extract_region
from logpolar.images import to_gray
from logpolar.keypoints import Keypoints
from logpolar.matching.learned import matching_of_looks
from logpolar.settings import DEFAULT_MIN_SIZE, DEFAULT_SPREAD, DEFAULT_THRESHOLDS
from logpolar.storage.documents import versions

SEED, RESAMPLES, OURS = 0, 2000, "logpolar-96-int8"

VALIDATION = (
    *("drone_lewis", "hawa_mahal", "kite_boruszyn", "magdalen"),
    *("monstree", "prague_astronomical_clock", "statue_of_liberty", "stonehenge"),
)

VIEWS: dict[str, dict[str, float]] = {
    "zoom 1": {},
    "zoom 2": {"zoom": 2},
    "zoom 3": {"zoom": 3},
    "zoom 4": {"zoom": 4},
    "true zoom 3": {"true_zoom": 3},
}
"""What happens to the second image of each pair."""

SECOND_LOOK, LEARNED = "second look", "learned"

OLD = {
    "estimator": "opencv",
    "threshold": 1.0,
    "ratio": 0.9,
    "filter": "none",
    "guided": False,
    "spread": 0.0,
    "min_size": 0,
}
"""The options of version 0.1; the steps replace them one after the other."""

STEPS: dict[str, dict[str, Any]] = {
    "0.1": {},
    "PoseLib": {"estimator": "poselib", "threshold": 1.0},
    "consensus": {"ratio": 0.95, "filter": "auto"},
    "guided": {"guided": True},
    "spread": {"spread": DEFAULT_SPREAD},
    "min_size": {"min_size": DEFAULT_MIN_SIZE},
    "threshold": {"threshold": DEFAULT_THRESHOLDS["pose"]},
    SECOND_LOOK: {"second_look": "logpolar-sf-int8"},
}

OTHERS: dict[str, dict[str, Any]] = {LEARNED: {"matcher": "learned"}}
"""Steps beside the pipeline, named like those: a learned matcher in place of nearest neighbours."""


class Interval(NamedTuple):
    """A mean and the limits of its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


# Pairs


def read_pairs(path: Path, pairs: int, options: PhototourismOptions) -> tuple[PosedScene, list[RowPair]]:
    """A scene and the first of its pairs; those that no longer overlap under true zoom are left out."""
    before = read_views(path, PhototourismOptions())
    chosen = [{before.images[row].name for row in pair} for pair in ordered(before)[:pairs]]
    scene = read_views(path, options)
    names = [image.name.split(", ")[0] for image in scene.images]  # without the zoom
    rows = {frozenset(names[row] for row in pair): pair for pair in scene.pairs}
    return scene, [rows[key] for key in map(frozenset, chosen) if key in rows]


def ordered(scene: PosedScene) -> list[RowPair]:
    """All pairs, those of few images first: images are added one by one, the one with the most pairs among the others.

    Of equals, and to begin with, one at random.
    """
    count = len(scene.images)
    linked = np.zeros((count, count), np.bool_)
    for first, second in scene.pairs:
        linked[first, second] = linked[second, first] = True
    tie, added, pairs = np.random.default_rng(SEED).permutation(count) / count, list[int](), list[RowPair]()
    while len(added) < count:
        score = linked[:, added].sum(axis=1) + tie
        score[added] = -1
        new = int(score.argmax())
        pairs += [(min(new, row), max(new, row)) for row in added if linked[new, row]]
        added.append(new)
    return pairs


# Scores


def accuracy(errors: Sequence[float], degrees: int) -> np.ndarray:
    """(N,): for each pair the fraction of 1, 2, ... degrees that its larger error is within; its mean is the mAA."""
    return (np.asarray(errors)[:, None] <= np.arange(1, degrees + 1)).mean(axis=1)


def mean_of_scenes(
    errors: Mapping[str, Sequence[float]], degrees: int = 10, before: Mapping[str, Sequence[float]] | None = None
) -> Interval:
    """Unweighted mean of scenes of the mAA, or of its change from errors ``before`` of the same pairs."""
    values = [accuracy(own, degrees) for own in errors.values()]
    if before is not None:
        values = [now - accuracy(before[scene], degrees) for scene, now in zip(errors, values, strict=True)]
    random = np.random.default_rng(SEED)
    means = [own[random.integers(len(own), size=(RESAMPLES, len(own)))].mean(axis=1) for own in values]
    low, high = np.percentile(np.mean(means, axis=0), [2.5, 97.5])
    return Interval(*(round(float(each), 4) for each in (np.mean([own.mean() for own in values]), low, high)))


# Measurement


class Features:
    """Keypoints and descriptors of images, kept in a folder under a hash of the pixels and of all settings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, image: PosedImage, method: Method, source: KeypointSource) -> DescribedImage:
        view = image.read()
        digest = hashlib.sha256(repr((view.shape, sorted(source.settings.items()))).encode() + view.tobytes())
        name, describer = digest.hexdigest()[:32], method.describer
        assert describer is not None
        keypoints = Keypoints(**self._kept(f"keypoints/{name}.npz", lambda: vars_of(source(view))))
        own = hashlib.sha256(json.dumps(method.identity, sort_keys=True).encode()).hexdigest()[:12]
        described = self._kept(
            f"{method.name.replace('/', '-')}-{own}/{name}.npz",
            lambda: {"descriptors": describer.describe(to_gray(view), keypoints)},
        )
        return DescribedImage(image.camera, keypoints, described["descriptors"])

    def _kept(self, name: str, make: Any) -> dict[str, Any]:
        path = self._folder / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savez(path.with_suffix(".part.npz"), **make())
            path.with_suffix(".part.npz").rename(path)
        with np.load(path) as stored:
            return dict(stored)


def vars_of(keypoints: Keypoints) -> dict[str, np.ndarray]:
    return {name: getattr(keypoints, name) for name in ("xy", "size", "angle", "response")}


@lru_cache(maxsize=4)
def open_fast(spec: str, device: str, keypoints: int | None = None) -> Method:
    """``keypoints``: of methods that have their own."""
    if device != "cpu":
        return open_method(spec, keypoints, device=device)
    # OpenVINO has the fastest int8 arithmetic on one core; float32 models and other descriptors run as they do anyway.
    return open_method(spec, keypoints, threads=1, **({"runtime": "openvino"} if spec.endswith("int8") else {}))


def measure(parsed: argparse.Namespace) -> None:
    output: Path = parsed.output
    document = json.loads(output.read_text()) if output.exists() else {"results": {}}
    features, methods = Features(parsed.cache), [open_fast(spec, parsed.device) for spec in parsed.descriptor]
    for path in parsed.scenes:
        for method in methods:
            for view in parsed.views.split(","):
                name = method.name if parsed.detector == "sift" else f"{parsed.detector} + {method.name}"
                places = document["results"].setdefault(name, {}).setdefault(str(parsed.keypoints), {})
                if _measure_view(parsed, path, method, view, features, places.setdefault(view, {})):
                    document |= {"seed": SEED, "resamples": RESAMPLES, "versions": versions()}
                    output.write_text(json.dumps(document) + "\n")


def _measure_view(
    parsed: argparse.Namespace, path: Path, method: Method, view: str, features: Features, found: dict[str, Any]
) -> bool:
    """Add one scene to all steps that lack it; whether any did."""
    options = PhototourismOptions(**OLD, keypoints=parsed.keypoints, seed=SEED, **VIEWS[view])  # type: ignore[arg-type]
    first, described, choice, changed = options, dict[int, DescribedImage](), None, False
    for step, changes in steps_of(parsed.steps).items():
        options = replace(first if parsed.alone else options, **changes)
        own = found.setdefault(step, {"options": asdict(options), "scenes": {}})
        if asdict(PhototourismOptions()) | own["options"] != asdict(options):  # older files lack newer options
            raise SystemExit(f"{parsed.output}: step '{step}' was measured with other options")
        scene, pairs = read_pairs(path, parsed.pairs, options)
        stored = own["scenes"].setdefault(path.name, {"errors": [], "matches": [], "inliers": []})
        if not (pairs := pairs[len(stored["errors"]) :]):
            continue
        start = time.perf_counter()
        if choice != (choice := (options.spread, options.min_size)):
            limits = options.keypoints, options.contrast
            source = open_source(parsed.detector, *limits, device=parsed.device, spread=options.spread)
            described = {}
        described |= {
            row: features(scene.images[row], method, source)
            for row in {row for pair in pairs for row in pair} - set(described)
        }
        between = time.perf_counter()
        prepared = PreparedScene(scene, pairs, {}, {}, {})
        own, second = open_looks(options, method, source, scene, parsed.device)
        results = evaluate_stereo(prepared, described, own, device=parsed.device, second=second).results
        stored["errors"] += [round(max(each.errors), 3) for each in results]
        stored["matches"] += [each.matches for each in results]
        stored["inliers"] += [each.inliers for each in results]
        seconds = f"{between - start:.0f} + {time.perf_counter() - between:.0f} s"
        maa = accuracy(stored["errors"], 10).mean()
        print(f"{path.name[:20]:20} {method.name:20} {view:12} {step:16} {maa:.3f} +{len(pairs)} {seconds}", flush=True)
        changed = True
    return changed


def open_looks(
    options: PhototourismOptions, method: Method, source: KeypointSource, scene: PosedScene, device: str
) -> tuple[PhototourismOptions, SecondLook | None]:
    """The options of the first look, and the second: the features of the method, or of another with its keypoints."""
    looks = [method]
    if options.second_look != "none":
        same = options.second_look == "same"
        looks += [method if same else open_fast(options.second_look, device, options.keypoints)]
    settings = [{"model": look.name, "descriptor": look.identity} for look in looks]
    own, *again = matching_of_looks(options, settings)
    if not again:
        return own, None
    method = looks[-1]
    describer, detector = method.describer, (method.source or source).detector
    assert describer is not None

    @lru_cache(maxsize=256)  # whole images are looked at once for all their pairs
    def extract(row: int, region: Region) -> logpolar.Features:
        return extract_region(to_gray(scene.images[row].read()), region, detector, describer)

    return own, SecondLook(extract, again[0])


def steps_of(text: str | None) -> dict[str, dict[str, Any]]:
    """Named changes of options; ``NAME:option=value,...;NAME:...`` in place of the usual steps, ``all`` for these."""
    if text is None:
        return STEPS
    chosen, known = dict[str, dict[str, Any]](), STEPS | OTHERS
    for part in text.split(";"):
        name, _, changes = part.partition(":")
        chosen[name] = dict(known[name]) if not changes and name in known else _changes(changes)
    return chosen


def _changes(text: str) -> dict[str, Any]:
    pairs = (change.split("=") for change in text.split(",") if change)
    return {name: _value(value) for name, value in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


# Tables

Errors = dict[str, list[float]]
"""Larger errors of the pairs of scenes."""


def errors_of(step: Mapping[str, Any]) -> Errors:
    return {name: each["errors"] for name, each in step["scenes"].items()}


def common(several: Sequence[Errors]) -> list[Errors]:
    """Of scenes that all have, the first pairs that all have."""
    names = [name for name in several[0] if all(name in each for each in several)]
    counts = {name: min(len(each[name]) for each in several) for name in names}
    return [{name: each[name][: counts[name]] for name in names} for each in several]


def show(document: Mapping[str, Any]) -> None:
    """Every step with its interval, and that of its change from the step before."""
    for method, budgets in document["results"].items():
        for keypoints, views in budgets.items():
            for view, steps in views.items():
                before: Errors | None = None
                for step, found in steps.items():
                    errors = errors_of(found)
                    counts = f"{sum(map(len, errors.values()))} pairs, {len(errors)} scenes"
                    text = f"{mean_of_scenes(errors)}, mAA 5 {mean_of_scenes(errors, 5)}"
                    if before is not None:
                        now, then = common([errors, before])
                        text += f"  change {mean_of_scenes(now, 10, then)}" if now else ""
                    print(f"{method:20} {keypoints:5} {view:12} {step:10} {text}  {counts}")
                    before = errors


def tables(document: Mapping[str, Any], ours: str) -> str:
    """Markdown, on the pairs that all rows have: the steps of our descriptor; all methods after their last step but
    the second look, also with a learned matcher; those that look twice."""
    parts = []
    for keypoints in sorted({budget for budgets in document["results"].values() for budget in budgets}, key=int):
        results = {method: own[keypoints] for method, own in document["results"].items() if keypoints in own}
        if ours in results:
            parts.append(_table(f"`{ours}`, {keypoints} keypoints", results[ours]))
        once, twice = ({view: dict[str, Any]() for view in VIEWS} for _ in range(2))
        for view, (method, own) in product(VIEWS, results.items()):
            steps = dict(own.get(view, {}))
            if SECOND_LOOK in steps:
                twice[view][method] = steps.pop(SECOND_LOOK)
            learned = steps.pop(LEARNED, None)
            if steps:
                once[view][method] = list(steps.values())[-1]
            if learned:
                once[view][f"{method}, learned matcher"] = learned
        parts.append(_table(f"{keypoints} keypoints, one look", once))
        if any(twice.values()):
            parts.append(_table(f"{keypoints} keypoints, two looks", twice))
    return "\n\n".join(parts)


def _table(title: str, views: Mapping[str, Mapping[str, Any]]) -> str:
    """Rows by name, columns by view; each column on the pairs that all its rows have."""
    views = {view: found for view in VIEWS if (found := views.get(view))}
    names = list(dict.fromkeys(name for found in views.values() for name in found))
    cells: dict[str, list[str]] = {name: [] for name in names}
    head = []
    for view, found in views.items():
        errors = dict(zip(found, common([errors_of(each) for each in found.values()]), strict=True))
        head.append(f"{view} ({sum(map(len, next(iter(errors.values())).values()))} pairs)")
        for name in names:
            cells[name].append(_cell(errors[name]) if name in errors else "")
    lines = [[title, *head], ["---"] * (len(head) + 1), *([name, *own] for name, own in cells.items())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(errors: Errors) -> str:
    ten, five = mean_of_scenes(errors), mean_of_scenes(errors, 5)
    return f"{ten.mean:.3f} [{ten.low:.3f}, {ten.high:.3f}]; {five.mean:.3f}".replace("0.", ".")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("measure")
    one.add_argument("scenes", type=Path, nargs="+")
    one.add_argument("-d", "--descriptor", action="append", required=True, help="spec, see evaluation.descriptors")
    one.add_argument("-o", "--output", type=Path, required=True)
    one.add_argument("--cache", type=Path, required=True, help="folder of keypoints and descriptors")
    one.add_argument("--views", default=",".join(VIEWS))
    one.add_argument("--steps", help="NAME or NAME:option=value,..., separated by semicolons; they add up")
    one.add_argument("--alone", action="store_true", help="steps do not add up: each changes the first")
    one.add_argument("--keypoints", type=int, default=2048)
    one.add_argument("--detector", default="sift", help="spec, see evaluation.descriptors.keypoint_sources")
    one.add_argument("--pairs", type=int, default=60, help="of each scene")
    one.add_argument("--device", default="cpu", help="where networks run and pairs are matched")
    two = commands.add_parser("show")
    two.add_argument("output", type=Path)
    two.add_argument("--markdown", action="store_true", help="tables of the documentation")
    parsed = parser.parse_args()
    if parsed.command == "measure":
        measure(parsed)
    else:
        document = json.loads(parsed.output.read_text())
        print(tables(document, OURS)) if parsed.markdown else show(document)


if __name__ == "__main__":
    main()
