"""logpolar eval phototourism"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logpolar.cli.options import jobs_option
from logpolar.cli.settings import make_settings, settings_options
from logpolar.errors import LogpolarError
from logpolar.evaluation.phototourism_options import PhototourismOptions

if TYPE_CHECKING:
    from logpolar.evaluation.descriptors import Descriptor
    from logpolar.evaluation.phototourism import MultiViewResult, PreparedScene, StereoResult
    from logpolar.evaluation.pose_scores import PoseScore

_ALL = "mean"
"""The row of the mean over the scenes, where there are several."""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@click.command(
    short_help="Poses from matched descriptors, stereo and multi-view (the paper's Table 5).",
    epilog="Example: logpolar eval phototourism scenes/reichstag -d logpolar-96 -d rootsift -o results/",
)
@click.argument("scenes", nargs=-1, required=True, metavar="SCENES...", type=click.Path(path_type=Path))
@click.option(
    "--descriptor", "-d", "specs", multiple=True, required=True, metavar="SPEC", help="What to measure; repeatable."
)
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="Folder.")
@settings_options(PhototourismOptions)
@click.option(
    "--tune",
    multiple=True,
    metavar="SCENE",
    type=click.Path(path_type=Path),
    help="Choose the ratio of each descriptor on this other scene instead; repeatable.",
)
@click.option("--multi-view/--no-multi-view", default=True, show_default=True, help="Needs the extra 'sfm'.")
@click.option("--device", default="cpu", show_default=True, help="What describes: cpu or cuda.")
@jobs_option
def phototourism(
    scenes: tuple[Path, ...],
    specs: tuple[str, ...],
    output: Path,
    tune: tuple[Path, ...],
    multi_view: bool,
    device: str,
    jobs: int,
    **settings: Any,
) -> None:
    """Relative poses from matched SIFT keypoints, against known ones.

    SCENES are COLMAP models with undistorted images (sparse/, images/), scenes of the Image Matching Challenge
    (set_100/), or correspondence files of scenes. Prints a table and writes phototourism.json and phototourism.csv.
    mAA is the mean of the shares of pairs within 1, 2, ... 10 degrees, mAP of those within 5, 10 and 15 degrees.
    """
    options = make_settings(PhototourismOptions, settings)
    _check(scenes, tune, device)
    run = _Run(options, multi_view, jobs)
    with _one_thread_each(jobs):
        descriptors = _open(specs, device)
        _make_folder(output)
        prepared, tuning = (_prepare(paths, run, several) for paths, several in ((scenes, multi_view), (tune, False)))
        click.echo(_line("descriptor", "scene", "views", "pairs", "mAA 10", "mAP 15", "matches", "inliers"))
        found = [_measure(descriptor, prepared, tuning, run) for descriptor in descriptors]
    _write(output, options, multi_view, found, prepared)


@dataclass(frozen=True)
class _Run:
    options: PhototourismOptions
    multi_view: bool
    jobs: int


@dataclass(frozen=True, eq=False)
class _Found:
    """Of one descriptor: results by scene, the ratio that was used and, if it was tuned, what others gave."""

    descriptor: Descriptor
    ratio: float
    tuned: dict[float, float]
    stereo: dict[str, StereoResult]
    multi_view: dict[str, MultiViewResult]


def _check(scenes: tuple[Path, ...], tune: tuple[Path, ...], device: str) -> None:
    names = [path.resolve() for path in scenes]
    if len(set(names)) < len(names):
        raise LogpolarError("a scene is named twice")
    both = set(names) & {path.resolve() for path in tune}
    if both:
        raise LogpolarError(f"{min(both)}: the ratio is to be tuned on other scenes than those that are measured")
    if device != "cpu" and device.partition(":")[0] != "cuda":
        raise LogpolarError(f"the device must be cpu or cuda, not '{device}'")


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


def _open(specs: tuple[str, ...], device: str) -> list[Descriptor]:
    from logpolar.evaluation.descriptors import open_descriptor

    opened = [open_descriptor(spec, device) for spec in specs]
    if len({descriptor.name for descriptor in opened}) < len(opened):
        raise LogpolarError("two descriptors have the same name in tables")
    return opened


def _make_folder(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise LogpolarError(f"{output}: is a file, not a folder")
    output.mkdir(parents=True, exist_ok=True)


def _prepare(paths: tuple[Path, ...], run: _Run, multi_view: bool) -> list[PreparedScene]:
    from logpolar.evaluation.phototourism import prepare_scene
    from logpolar.evaluation.posed_scenes import read_scene

    options = run.options
    scenes = [read_scene(path, options.min_shared, options.min_visibility) for path in paths]
    if len({scene.name for scene in scenes}) < len(scenes):
        raise LogpolarError("two scenes have the same name")
    for scene in scenes:
        for reason in scene.left_out.values():
            click.echo(f"logpolar: left out: {reason}", err=True)
    return [prepare_scene(scene, options, multi_view) for scene in scenes]


def _measure(descriptor: Descriptor, scenes: list[PreparedScene], tuning: list[PreparedScene], run: _Run) -> _Found:
    from logpolar.evaluation.phototourism import describe_scene, evaluate_multi_view, evaluate_stereo, tune_ratio

    options, tuned = run.options, dict[float, float]()
    if tuning:
        described = [(prepared, describe_scene(prepared, descriptor.describe)) for prepared in tuning]
        ratio, tuned = tune_ratio(described, options, jobs=run.jobs)
        options = replace(options, ratio=ratio)
        click.echo(f"{descriptor.name}: tuned ratio {ratio:g}")
    found = _Found(descriptor, options.ratio, tuned, {}, {})
    for prepared in scenes:
        name, images = prepared.scene.name, describe_scene(prepared, descriptor.describe)
        found.stereo[name] = evaluate_stereo(prepared, images, options, run.jobs)
        _tell_stereo(descriptor.name, name, found.stereo[name])
        if run.multi_view:
            found.multi_view[name] = evaluate_multi_view(prepared, images, options, run.jobs)
            _tell(descriptor.name, name, "several", found.multi_view[name].score)
    if len(scenes) > 1:
        for views, score in _means(found).items():
            _tell(descriptor.name, _ALL, views, score)
    return found


def _means(found: _Found) -> dict[str, PoseScore]:
    """Each scene counts the same."""
    from logpolar.evaluation.pose_scores import PoseScore

    kinds = {"two": [result.score for result in found.stereo.values()]}
    if found.multi_view:
        kinds["several"] = [result.score for result in found.multi_view.values()]
    return {views: PoseScore.mean(scores) for views, scores in kinds.items()}


# Output


def _tell_stereo(descriptor: str, scene: str, result: StereoResult) -> None:
    _tell(descriptor, scene, "two", result.score, f"{result.matches_median:g}", f"{result.inliers_median:g}")


def _tell(descriptor: str, scene: str, views: str, score: PoseScore, *more: str) -> None:
    click.echo(_line(descriptor, scene, views, score.pairs, _share(score.maa10), _share(score.map15), *more))


def _line(descriptor: str, scene: str, views: str, *columns: object) -> str:
    return f"{descriptor:<24}  {scene:<24}  {views:<8}{''.join(f'{column:>9}' for column in columns)}"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4f}"


def _write(
    output: Path, options: PhototourismOptions, multi_view: bool, found: list[_Found], scenes: list[PreparedScene]
) -> None:
    from logpolar.datasets.building import versions
    from logpolar.evaluation.pose_scores import MEANINGS
    from logpolar.outputs import write_whole

    others = {**_version("pycolmap", multi_view), **_version("poselib", options.estimator == "poselib")}
    result = {
        "meaning": MEANINGS,
        "seed": options.seed,
        "options": asdict(options),
        "multi_view": multi_view,
        "versions": versions(**others),
        "scenes": {each.scene.name: _scene_dict(each) for each in scenes},
        "descriptors": {each.descriptor.name: _found_dict(each) for each in found},
    }
    write_whole(output / "phototourism.json", (json.dumps(result) + "\n").encode())
    write_whole(output / "phototourism.csv", _table(found, options.seed).encode())
    click.echo(f"{output}: phototourism.json, phototourism.csv")


def _version(package: str, used: bool) -> dict[str, str]:
    from importlib.metadata import version

    return {package: version(package)} if used else {}


def _scene_dict(prepared: PreparedScene) -> dict[str, Any]:
    scene, bags = prepared.scene, {str(size): len(bags) for size, bags in prepared.bags.items()}
    counts = {"images": len(scene.images), "possible_pairs": len(scene.pairs), "pairs": len(prepared.pairs)}
    return {**counts, "bags": bags, "left_out": scene.left_out}


def _found_dict(found: _Found) -> dict[str, Any]:
    return {
        "identity": found.descriptor.identity,
        "ratio": found.ratio,
        "maa10_by_tuned_ratio": {f"{ratio:g}": round(maa, 5) for ratio, maa in found.tuned.items()},
        "mean": {views: score.to_dict() for views, score in _means(found).items()},
        "stereo": {scene: result.to_dict() for scene, result in found.stereo.items()},
        "multi_view": {scene: result.to_dict() for scene, result in found.multi_view.items()},
    }


def _table(found: list[_Found], seed: int) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    header = ("descriptor", "ratio", "scene", "views", "seed", "pairs", "maa10", "map15")
    writer.writerow([*header, "matches_median", "inliers_median", "registered"])
    for each in found:
        start = each.descriptor.name, each.ratio
        for scene, stereo in each.stereo.items():
            medians = stereo.matches_median, stereo.inliers_median
            writer.writerow([*start, scene, "two", seed, *_values(stereo.score), *medians, ""])
        for scene, several in each.multi_view.items():
            for size, score in several.scores.items():
                writer.writerow([*start, scene, f"bags of {size}", seed, *_values(score), "", "", ""])
            writer.writerow(
                [*start, scene, "several", seed, *_values(several.score), "", "", _cell(several.registered)]
            )
        for views, score in _means(each).items():
            writer.writerow([*start, _ALL, views, seed, *_values(score), "", "", ""])
    return text.getvalue()


def _values(score: PoseScore) -> list[object]:
    return [score.pairs, _cell(score.maa10), _cell(score.map15)]


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.5f}"
