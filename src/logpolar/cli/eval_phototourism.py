"""logpolar eval phototourism"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logpolar.cli.eval_keypoints import by_source, keypoint_options, note_keypoints, take_source
from logpolar.cli.eval_output import (
    Common,
    Report,
    bar,
    decimal,
    eval_options,
    open_descriptors,
    present,
    take_common,
    working,
)
from logpolar.cli.options import jobs_option
from logpolar.cli.settings import make_settings, settings_options
from logpolar.errors import LogpolarError
from logpolar.evaluation.poses.options import PhototourismOptions

if TYPE_CHECKING:
    from logpolar.evaluation.descriptors.keypoint_sources import KeypointSource
    from logpolar.evaluation.descriptors.registry import Descriptor
    from logpolar.evaluation.poses.phototourism import PoseResults
    from logpolar.evaluation.poses.prepared import DescribedImage, PreparedScene
    from logpolar.evaluation.poses.scenes import PosedScene

_COLUMNS = ("scene", "views", "mAA 10°", "mAP 15°", "N", "ratio", "matches", "inliers", "registered")
_DEGREES = tuple(range(1, 16))
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@click.command(
    short_help="Poses from matched descriptors, stereo and multi-view.",
    epilog="Example: logpolar eval phototourism scenes/reichstag -d logpolar-96 -d rootsift -o results/",
)
@click.argument("scenes", nargs=-1, required=True, metavar="SCENES...", type=click.Path(path_type=Path))
@eval_options
@keypoint_options
@settings_options(PhototourismOptions)
@click.option(
    "--tune",
    multiple=True,
    metavar="SCENE",
    type=click.Path(path_type=Path),
    help="Choose the ratio of each descriptor on this other scene instead, of a correspondence file on the pairs that "
    "validate, if there are any; repeatable.",
)
@click.option("--multi-view/--no-multi-view", default=True, show_default=True, help="Needs the extra 'sfm'.")
@jobs_option
def phototourism(scenes: tuple[Path, ...], tune: tuple[Path, ...], multi_view: bool, jobs: int, **values: Any) -> None:
    """The paper's Table 5: relative poses from matched keypoints, against known ones.

    SCENES are COLMAP models with undistorted images (sparse/, images/), scenes of the Image Matching Challenge
    (set_100/), or correspondence files of scenes. mAA is the mean of the shares of pairs within 1, 2, ... 10 degrees,
    mAP of those within 5, 10 and 15 degrees.
    """
    common, settings = take_common(values), make_settings(PhototourismOptions, values)
    source = take_source(values, settings.keypoints, settings.contrast, common.device)
    run = _Run(common, settings, source, multi_view, jobs)
    _check(scenes, tune)
    opened = open_descriptors(common, keypoints=settings.keypoints)
    by_source(opened, source)  # raises for those that do not go together
    measured, tuning = _read(scenes, run), _read(tune, run, "validation")
    with _one_thread_each(jobs), working(common):
        prepared, others = _prepare(measured, run, multi_view), _prepare(tuning, run, False)
        found = {name: _measure(name, descriptor, prepared, others, run) for name, descriptor in present(opened)}
    more = {"multi_view": multi_view, "tune": [scene.name for scene in tuning], **source.settings}
    data = {each.scene.name: _counts(each) for each in prepared}
    report = Report("phototourism", data, {**asdict(settings), **more}, opened, _COLUMNS)
    for name, results in found.items():
        _add(report, name, results, settings.seed)
    _add_notes(report, len(data))
    note_keypoints(report, opened, source)
    if found:
        report.figures[""] = lambda: _draw(found)
    report.write(common.output)


@dataclass(frozen=True)
class _Run:
    common: Common
    options: PhototourismOptions
    source: KeypointSource
    multi_view: bool
    jobs: int


def _check(scenes: tuple[Path, ...], tune: tuple[Path, ...]) -> None:
    names = [path.resolve() for path in scenes]
    if len(set(names)) < len(names):
        raise LogpolarError("a scene is named twice")
    both = set(names) & {path.resolve() for path in tune}
    if both:
        raise LogpolarError(f"{min(both)}: the ratio is to be tuned on other scenes than those that are measured")


@contextlib.contextmanager
def _one_thread_each(jobs: int) -> Iterator[None]:
    """Processes that are started have one core each, for matrix products too."""
    changed = [name for name in _THREADS if jobs > 1 and name not in os.environ]
    os.environ.update(dict.fromkeys(changed, "1"))
    try:
        yield
    finally:
        for name in changed:
            del os.environ[name]


def _read(paths: tuple[Path, ...], run: _Run, part: str | None = None) -> list[PosedScene]:
    from logpolar.evaluation.poses.scenes import read_scene

    least = run.options.min_shared, run.options.min_visibility
    scenes = [read_scene(path, *least, part) for path in paths]
    names = {scene.name for scene in scenes}
    if len(names) < len(scenes):
        raise LogpolarError("two scenes have the same name, and so would their results")
    if "mean" in names:
        raise LogpolarError("a scene cannot be called 'mean', as the mean of all is; rename the folder")
    for scene in scenes:
        for reason in scene.left_out.values():
            click.echo(f"logpolar: left out: {reason}", err=True)
    return scenes


def _prepare(scenes: list[PosedScene], run: _Run, multi_view: bool) -> list[PreparedScene]:
    from logpolar.evaluation.poses.prepared import prepare_scene

    return [
        prepare_scene(scene, run.options, multi_view, run.source, bar(f"{scene.name}, keypoints")) for scene in scenes
    ]


def _measure(
    name: str, descriptor: Descriptor, scenes: list[PreparedScene], tuning: list[PreparedScene], run: _Run
) -> PoseResults:
    from logpolar.evaluation.poses.phototourism import PoseResults, evaluate_multi_view, evaluate_stereo, tune_ratio

    options, tuned = run.options, dict[float, float]()
    if tuning:
        described = [(prepared, _describe(name, descriptor, prepared, run)) for prepared in tuning]
        ratio, tuned = tune_ratio(described, options, jobs=run.jobs)
        options = replace(options, ratio=ratio)
    found = PoseResults(options.ratio, tuned)
    for prepared in scenes:
        scene, images = prepared.scene.name, _describe(name, descriptor, prepared, run)
        progress = bar(f"{scene}, {name}, matching", "pair")
        found.stereo[scene] = evaluate_stereo(prepared, images, options, run.jobs, progress)
        if run.multi_view:
            found.multi_view[scene] = evaluate_multi_view(prepared, images, options, run.jobs, progress)
    return found


def _describe(name: str, descriptor: Descriptor, prepared: PreparedScene, run: _Run) -> dict[int, DescribedImage]:
    import cv2

    from logpolar.evaluation.cache import DescriptorCache
    from logpolar.evaluation.poses.prepared import describe_scene

    own, identity = descriptor.own_keypoints, prepared.scene.identity()
    settings = {"opencv": cv2.__version__, **(own or run.source).settings}
    with DescriptorCache(run.common.cache, descriptor, "phototourism", identity, settings) as cache:
        return describe_scene(prepared, cache, own, bar(f"{prepared.scene.name}, {name}"))


# Results


def _counts(prepared: PreparedScene) -> dict[str, Any]:
    scene, bags = prepared.scene, {str(size): len(bags) for size, bags in prepared.bags.items()}
    counts = {"images": len(scene.images), "possible_pairs": len(scene.pairs), "pairs": len(prepared.pairs)}
    return {**scene.identity(), **counts, "bags": bags, "left_out": scene.left_out}


def _add(report: Report, name: str, found: PoseResults, seed: int) -> None:
    report.results[name] = found.to_dict()
    for record in found.records():
        start = {"descriptor": name, "ratio": found.ratio, "scene": record["scene"], "views": record["views"]}
        report.records[""].append({**start, "seed": seed, **record})
        if record["views"] in ("two", "several") and (record["scene"] != "mean" or len(found.stereo) > 1):
            counts = ["" if record[key] is None else f"{record[key]:g}" for key in ("matches_median", "inliers_median")]
            scores = [decimal(record["maa10"]), decimal(record["map15"]), str(record["pairs"]), f"{found.ratio:g}"]
            report.add(name, [record["scene"], record["views"], *scores, *counts, decimal(record["registered"])])


def _add_notes(report: Report, scenes: int) -> None:
    from logpolar.evaluation.poses.scores import MEANINGS

    report.notes.append(f"mAA 10°: {MEANINGS['maa10']}; mAP 15°: {MEANINGS['map15']}. Error: {MEANINGS['error']}.")
    report.notes.append("N: image pairs. Matches and inliers are medians of a pair; registered: share of images.")
    if scenes > 1:
        report.notes.append("Means are over scenes, each counting the same; N is their sum.")


def _draw(found: Mapping[str, PoseResults]) -> Any:
    from logpolar.evaluation.figures import plot_curves

    curves = {name: (_DEGREES, results.shares(_DEGREES)) for name, results in found.items()}
    return plot_curves({"two views": curves}, "error of the pose, degrees", "share of image pairs within it")
