"""logpolar eval, and its commands on scenes: patches, retrieval"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logpolar.cli.eval_keypoints import fixed_size_option
from logpolar.cli.eval_output import (
    Common,
    Opened,
    Report,
    bar,
    decimal,
    eval_options,
    open_descriptors,
    percent,
    present,
    take_common,
    working,
)
from logpolar.cli.options import Command
from logpolar.cli.settings import make_settings, settings_options
from logpolar.errors import LogpolarError
from logpolar.evaluation.options import RetrievalOptions

if TYPE_CHECKING:
    from logpolar.evaluation.pairs import DescribedFile
    from logpolar.evaluation.patches import SceneOptions, SceneResult


@click.group(
    "eval",
    short_help="Measure descriptors.",
    epilog="Example: logpolar eval hpatches hpatches/ -d rootsift -d logpolar-96 -o results/",
)
def evaluate() -> None:
    """Measure descriptors, the library's and other people's, and write tables and figures.

    Each command writes its numbers as JSON and CSV, a Markdown table, and figures (extra 'viz') to a folder. With
    --cache descriptors are computed once.
    """


_SCENE_OPTIONS = (
    click.option("--part", type=click.Choice(["train", "validation", "test"]), help="Pairs of this part only."),
    click.option("--pairs", type=click.IntRange(min=0), default=0, show_default="all", help="Image pairs of a file."),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Decides what is drawn."),
    fixed_size_option,
)


def _scene_command(command: Command) -> Command:
    for option in reversed(_SCENE_OPTIONS):
        command = option(command)
    argument = click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
    return argument(eval_options(command))


def _take_scene(values: dict[str, Any]) -> SceneOptions:
    from logpolar.evaluation.patches import SceneOptions

    return SceneOptions(*(values.pop(name) for name in ("part", "pairs", "seed", "fixed_size")))


def _check_scenes(files: Sequence[Path]) -> dict[str, dict[str, str]]:
    """What tells the scenes from others, by their names; raises for a file that cannot be used, before any work."""
    from logpolar.datasets.files import CorrespondenceFile, file_names
    from logpolar.evaluation.cache import scene_identity

    identities = []
    for path in files:
        with CorrespondenceFile(path) as file:
            if not file.complete:
                raise LogpolarError(f"{path}: is incomplete; run the command that makes it again")
            identities.append({"file": path.name, **scene_identity(file)})
    scenes = dict(zip(file_names(files), identities, strict=True))
    if len(scenes) < len(files):
        raise LogpolarError("two of the files have the same name, and so would their results")
    if "mean" in scenes:
        raise LogpolarError("a scene cannot be called 'mean', as the mean of all is; rename the file")
    return scenes


def _describe_all(
    files: Sequence[Path], names: Iterable[str], opened: Sequence[Opened], options: SceneOptions, common: Common
) -> Iterator[tuple[str, str, DescribedFile]]:
    """Each descriptor on each scene: their names, and the pairs with their descriptors."""
    from logpolar.datasets.files import CorrespondenceFile
    from logpolar.evaluation.patches import describe_scene

    for path, scene in zip(files, names, strict=True):
        with CorrespondenceFile(path) as file:
            for name, descriptor in present(opened):
                progress = bar(f"{scene}, {name}")
                yield name, scene, describe_scene(file, descriptor, options, common.cache, progress)


@evaluate.command(
    short_help="FPR95 on scenes, and by errors of the detector.",
    epilog="Example: logpolar eval patches test/*.h5 -d rootsift -d logpolar-96 -o results/ --cache cache/",
)
@_scene_command
@click.option("--resamples", type=click.IntRange(min=0), default=1000, show_default=True, help="For the intervals.")
def patches(files: tuple[Path, ...], resamples: int, **values: Any) -> None:
    """The paper's Table 1 and Fig. 4 on correspondence files, one a scene.

    FPR95, in percent, of all pairs of a scene together, and the mean of scenes; 95 % intervals by resampling image
    pairs; rank-1 among the keypoints of the other image, also where scales differ by more than 2x. The figure breaks
    FPR95 down by scale ratio and orientation error, each class at the threshold of its own right pairs.
    """
    from logpolar.evaluation.patches import mean_result, score_scene

    common, options = take_common(values), _take_scene(values)
    opened, data = open_descriptors(common), _check_scenes(files)
    found: dict[str, dict[str, SceneResult]] = {name: {} for name, _ in present(opened)}
    with working(common):
        for name, scene, described in _describe_all(files, data, opened, options, common):
            found[name][scene] = score_scene(described, resamples, options.seed)
    columns = [f"{scene}, FPR95 %" for scene in data]
    columns += ["mean", "95 %", "rank-1", "95 %", "rank-1, scales differ > 2x", "N (pairs)"]
    report = Report("patches", data, {**asdict(options), "resamples": resamples}, opened, columns)
    report.records["-classes"] = []
    means = {}
    for name, scenes in found.items():
        means[name] = mean_result(list(scenes.values()))
        _add_patches(report, name, {**scenes, "mean": means[name]})
    if len(data) > 1:
        report.notes.append("Means are over scenes, each counting the same; N is their sum.")

    def draw() -> Any:
        from logpolar.evaluation.figures import plot_classes

        return plot_classes({name: mean.classes for name, mean in means.items()})

    if means:
        report.figures[""] = draw
    report.write(common.output)


def _add_patches(report: Report, name: str, scenes: dict[str, SceneResult]) -> None:
    mean = scenes["mean"]
    low, high = (percent(value) for value in mean.interval("fpr95"))
    least, most = (decimal(value) for value in mean.interval("rank1"))
    score = mean.score
    cells = [percent(result.score.fpr95) for result in scenes.values()]
    cells += [f"{low} - {high}", decimal(score.rank1), f"{least} - {most}", decimal(score.rank1_scales_differ_2x)]
    report.add(name, [*cells, f"{score.correspondences} ({score.pairs})"])
    report.results[name] = {scene: result.to_dict() for scene, result in scenes.items()}
    for scene, result in scenes.items():
        plain = result.to_dict()
        classes = plain.pop("classes")
        for key in ("fpr95", "rank1"):
            plain[f"{key}_low"], plain[f"{key}_high"] = plain.pop(f"{key}_interval")
        report.records[""].append({"descriptor": name, "scene": scene, **plain})
        report.records["-classes"] += _class_records(name, scene, classes)


def _class_records(name: str, scene: str, classes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from itertools import pairwise

    from logpolar.evaluation.patches import ANGLE_EDGES, SCALE_EDGES

    for (low, high), counts, shares in zip(pairwise(ANGLE_EDGES), classes["counts"], classes["fpr95"], strict=True):
        for (small, large), count, share in zip(pairwise(SCALE_EDGES), counts, shares, strict=True):
            angles = {"degrees_from": low, "degrees_to": high}
            scales = {"scale_from": round(small, 4), "scale_to": round(large, 4)}
            yield {"descriptor": name, "scene": scene, **angles, **scales, "right_pairs": count, "fpr95": share}


@evaluate.command(
    short_help="Ranks among thousands of distractors, on scenes.",
    epilog="Example: logpolar eval retrieval test/*.h5 -d rootsift -d logpolar-96 -o results/ --cache cache/",
)
@_scene_command
@settings_options(RetrievalOptions)
def retrieval(files: tuple[Path, ...], **values: Any) -> None:
    """The paper's Fig. 5 on correspondence files, one a scene.

    Each keypoint of the first image looks for its partner among those of all correspondences and many other keypoints
    of the second image, farther than 3 px from any matched one. Shares are of all pairs of a scene together; the table
    has the mean of scenes.
    """
    import numpy as np

    from logpolar.evaluation.retrieval import RetrievalResult, mean_shares, retrieve, summarise

    common, options = take_common(values), _take_scene(values)
    pools = make_settings(RetrievalOptions, values)
    opened, data = open_descriptors(common), _check_scenes(files)
    found: dict[str, dict[str, RetrievalResult]] = {name: {} for name, _ in present(opened)}
    with working(common):
        for name, scene, described in _describe_all(files, data, opened, options, common):
            found[name][scene] = retrieve(described.images(), pools, options.seed)
    shown = (1, 2, 5, 10, 100, 1000)
    columns = ["rank-1", *(f"rank ≤ {place}" for place in shown[1:]), "N (pairs)", "distractors, mean"]
    report = Report("retrieval", data, {**asdict(options), **asdict(pools)}, opened, columns)
    places = np.unique(np.geomspace(1, pools.matches + pools.distractors, 200).astype(int)).tolist()
    curves = {}
    for name, scenes in found.items():
        mean = summarise(list(scenes.values()))
        cells = [decimal(mean.shares[place]) for place in shown]
        report.add(name, [*cells, f"{mean.correspondences} ({mean.pairs})", f"{mean.distractors:.0f}"])
        summaries = {**{scene: summarise([result]) for scene, result in scenes.items()}, "mean": mean}
        report.results[name] = {scene: summary.to_dict() for scene, summary in summaries.items()}
        curves[name] = mean_shares(list(scenes.values()), places)
        report.results[name]["mean"]["curve"] = {"places": places, "shares": curves[name].round(5).tolist()}
        for scene, summary in summaries.items():
            plain = summary.to_dict()
            shares = {f"rank_{place}": share for place, share in plain.pop("shares").items()}
            report.records[""].append({"descriptor": name, "scene": scene, **plain, **shares})

    def draw() -> Any:
        from logpolar.evaluation.figures import plot_ranks

        return plot_ranks(places, curves)

    if found:
        report.figures[""] = draw
    report.write(common.output)
