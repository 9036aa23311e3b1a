"""Relative poses before and after each step of the pipeline, at several zooms, with intervals.

    python benchmarks/pose.py scenes/a scenes/b -d logpolar-96 -d rootsift -o pose.json

For each descriptor, step and zoom: mean of scenes of mAA at 5 and at 10 degrees (mean of the fractions of pairs whose
larger angular error is within 1, 2, ... degrees), the 95 % interval of that mean by resampling pairs within scenes, and
the interval of the change from the step before, by resampling the same pairs in both. Steps add up, in this order;
``--steps`` chooses others. The first is the pipeline of version 0.1.

Pairs are those that ``logpolar eval phototourism --pairs N --seed 0`` draws. Images are described once for each choice
of keypoints, cached in ``--cache``. ``VALIDATION`` are the scenes on which defaults are chosen: training scenes of
different kinds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from logpolar.evaluation.cache import DescriptorCache
from logpolar.evaluation.descriptors.keypoint_sources import sift_source
from logpolar.evaluation.descriptors.registry import Method, open_method
from logpolar.evaluation.options import PhototourismOptions
from logpolar.evaluation.phototourism import describe_images, prepare_scene, read_views
from logpolar.evaluation.posed_scenes import PosedScene, RowPair
from logpolar.evaluation.poses import Errors, evaluate_stereo, fractions_within
from logpolar.settings import DEFAULT_MIN_SIZE, DEFAULT_SPREAD, DEFAULT_THRESHOLDS
from logpolar.storage.documents import versions

SEED, RESAMPLES = 0, 2000

VALIDATION = (
    *("drone_lewis", "hawa_mahal", "kite_boruszyn", "magdalen"),
    *("monstree", "prague_astronomical_clock", "statue_of_liberty", "stonehenge"),
)

VIEWS: dict[str, dict[str, float]] = {
    "zoom 1": {},
    "zoom 3": {"zoom": 3},
    "true zoom 3": {"true_zoom": 3},
    "zoom 4": {"zoom": 4},
    "zoom 2": {"zoom": 2},
}
"""What happens to the second image of each pair, in the order of their importance."""

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
    "1 PoseLib": {"estimator": "poselib", "threshold": DEFAULT_THRESHOLDS["pose"]},
    "2 spread": {"spread": DEFAULT_SPREAD},
    "3 consensus": {"ratio": 0.95, "filter": "auto"},
    "4 guided": {"guided": True},
    "5 min_size": {"min_size": DEFAULT_MIN_SIZE},
}


class Interval(NamedTuple):
    """A mean and the limits of its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def draw(scene: PosedScene, count: int) -> list[RowPair]:
    """The pairs of ``draw_pairs``, in the order in which they were drawn: fewer pairs are the first of more."""
    order = np.random.default_rng(SEED).permutation(len(scene.pairs))[:count]
    return [scene.pairs[index] for index in order]


def accuracy(errors: Sequence[Errors], degrees: int) -> np.ndarray:
    """(N,): for each pair the fraction of 1, 2, ... degrees that its error is within; its mean is the mAA."""
    return np.array([np.mean(fractions_within([pair], range(1, degrees + 1))) for pair in errors])


def mean_of_scenes(
    errors: Mapping[str, Sequence[Errors]], degrees: int, before: Mapping[str, Sequence[Errors]] | None = None
) -> Interval:
    """Unweighted mean of scenes of the mAA, or of its change from errors ``before`` of the same pairs."""
    values = [accuracy(own, degrees) for own in errors.values()]
    if before is not None:
        values = [now - accuracy(before[scene], degrees) for scene, now in zip(errors, values, strict=True)]
    random = np.random.default_rng(SEED)
    means = [own[random.integers(len(own), size=(RESAMPLES, len(own)))].mean(axis=1) for own in values]
    low, high = np.percentile(np.mean(means, axis=0), [2.5, 97.5])
    return Interval(*(round(float(each), 4) for each in (np.mean([own.mean() for own in values]), low, high)))


def measure(
    scenes: Sequence[Path], method: Method, options: PhototourismOptions, cache: Path | None, jobs: int
) -> tuple[dict[str, list[Errors]], dict[str, float]]:
    """Errors of pairs by scene, and medians of matches, inliers and keypoints over all pairs."""
    errors: dict[str, list[Errors]] = {}
    counts: dict[str, list[float]] = {"matches": [], "inliers": [], "keypoints": []}
    source = sift_source(options.keypoints, options.contrast, spread=options.spread)
    for path in scenes:
        scene = read_views(path, options)
        prepared = prepare_scene(scene, options, source=source)
        with DescriptorCache(cache, method, "pose", scene.identity(), source.settings) as views:
            images = describe_images(prepared, views, method.source)
        found = evaluate_stereo(prepared, images, options, jobs)
        errors[scene.name] = [result.errors for result in found.results]
        counts["matches"] += [result.matches for result in found.results]
        counts["inliers"] += [result.inliers for result in found.results]
        counts["keypoints"] += [len(images[row].keypoints) for _, row in prepared.pairs]
    return errors, {name: float(np.median(values)) for name, values in counts.items()}


def steps_of(text: str | None) -> dict[str, dict[str, Any]]:
    """Named changes of options; ``NAME:option=value,...;NAME:...`` in place of the usual steps."""
    if text is None:
        return STEPS
    chosen = {}
    for part in text.split(";"):
        name, _, changes = part.partition(":")
        chosen[name] = dict(STEPS[name]) if not changes and name in STEPS else _changes(changes)
    return chosen


def _changes(text: str) -> dict[str, Any]:
    pairs = (change.split("=") for change in text.split(",") if change)
    return {name: _value(value) for name, value in pairs}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", type=Path, nargs="+")
    parser.add_argument("-d", "--descriptor", action="append", required=True, help="spec, see evaluation.descriptors")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--zooms", default=",".join(VIEWS))
    parser.add_argument("--steps", help="NAME or NAME:option=value,..., separated by semicolons; they add up")
    parser.add_argument("--alone", action="store_true", help="steps do not add up: each changes the first")
    parser.add_argument("--keypoints", type=int, default=2048)
    parser.add_argument("--pairs", type=int, default=60, help="of each scene")
    parser.add_argument("--images", type=int, default=0, help="pairs of that many images of each scene; 0: of all")
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parsed = parser.parse_args()
    result: dict[str, Any] = {}
    for spec in parsed.descriptor:
        method = open_method(spec, threads=1)
        for view in parsed.zooms.split(","):
            common = {**OLD, "keypoints": parsed.keypoints, "pairs": parsed.pairs, "images": parsed.images}
            common |= {"seed": SEED, **VIEWS[view]}
            options = PhototourismOptions(**common)
            first = before = None
            for step, changes in steps_of(parsed.steps).items():
                start = time.perf_counter()
                options = replace(first if parsed.alone and first else options, **changes)
                errors, medians = measure(parsed.scenes, method, options, parsed.cache, parsed.jobs)
                scores = {f"maa{degrees}": mean_of_scenes(errors, degrees) for degrees in (5, 10)}
                change = mean_of_scenes(errors, 10, before) if before else None
                line = f"{scores['maa10']}" + (f"  change {change}" if change else "")
                shown = " ".join(f"{name} {value:.0f}" for name, value in medians.items())
                seconds = time.perf_counter() - start
                print(f"{method.name:20} {view:12} {step:24} {line}  {shown}  {seconds:.0f} s", flush=True)
                result.setdefault(method.name, {}).setdefault(view, {})[step] = {
                    "options": asdict(options),
                    **{name: value._asdict() for name, value in scores.items()},
                    "change_maa10": change and change._asdict(),
                    "medians": medians,
                    "errors": errors,
                }
                first = first or options
                before = before if parsed.alone and before else errors
                about = {"seed": SEED, "resamples": RESAMPLES, "versions": versions()}
                parsed.output.write_text(json.dumps({**about, "results": result}) + "\n")


if __name__ == "__main__":
    main()
