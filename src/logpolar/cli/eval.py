"""logpolar eval"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from logpolar.cli.options import ENGINE, Command, Number, continuing, engine_options, jobs_option
from logpolar.cli.settings import make_settings, settings_options
from logpolar.evaluation.options import (
    AmosOptions,
    HPatchesOptions,
    PatchesOptions,
    PhototourismOptions,
    RetrievalOptions,
    RunOptions,
    SfmTestOptions,
)


class FixedSize(click.ParamType):  # type: ignore[type-arg] # generic in the newest click only
    """``median`` or a fraction of the image's longer side."""

    name = "median|0..1"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        return value if value == "median" else Number(0, 1, min_open=True).convert(value, param, ctx)


_PATH = click.Path(path_type=Path)
_FOLDER = click.argument("folder", type=_PATH)
_FILES = click.argument("files", nargs=-1, required=True, metavar="FILE...", type=_PATH)
_SCENES = click.argument("scenes", nargs=-1, required=True, metavar="SCENES...", type=_PATH)
_SPLIT = click.option("--split", type=click.Choice(["train", "validation", "test"]), help="Pairs of this split only.")

_RUN = (
    click.option(
        "--descriptor",
        "-d",
        "specs",
        multiple=True,
        required=True,
        metavar="SPEC",
        help="NAME[:FILE][,key=value]: sift, rootsift, a model, hardnet:FILE, opencv:ORB, ...; repeatable.",
    ),
    click.option(
        "--output", "-o", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder for results."
    ),
    click.option(
        "--cache", type=click.Path(path_type=Path, file_okay=False), help="Folder that keeps descriptors for next time."
    ),
    click.option("--skip-missing", is_flag=True, help="Give descriptors without their file a row that says so."),
)

_FIXED_SIZE = click.option(
    "--fixed-size",
    type=FixedSize(),
    help="Ignore detected scales: all keypoints of an image get their median size, or a fraction of its longer side.",
)

_DETECTOR = click.option(
    "--detector",
    default="sift",
    show_default=True,
    metavar="SPEC",
    help="Detector of the keypoints: sift, opencv:NAME, kornia:NAME; whole features have their own.",
)


def _protocol(kind: type[Any], *more: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """The options of a protocol, and those of every run."""
    options: list[Callable[[Any], Any]] = [*_RUN, engine_options, *more, settings_options(kind)]

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _evaluate(protocol: str, kind: type[Any], values: dict[str, Any]) -> None:
    """Run a protocol with the values of a command's options, and print its table."""
    from logpolar.evaluation.protocol import evaluate

    engine = {name: values.pop(name) for name in ENGINE}
    run = RunOptions(**{name: values.pop(name) for name in ("specs", "output", "cache", "skip_missing")}, engine=engine)
    options = make_settings(kind, values)
    inputs = {name: value for name, value in values.items() if name not in kind.__dataclass_fields__}
    with continuing(run.cache) if run.cache else contextlib.nullcontext():
        results = evaluate(protocol, run, options=options, **inputs)
    click.echo(results.markdown(), nl=False)
    click.echo(f"wrote {', '.join(results.written)} to {run.output}")


@click.group(
    "eval",
    short_help="Evaluate descriptors.",
    epilog="Example: logpolar eval hpatches hpatches/ -d rootsift -d logpolar-96 -o results/",
)
def evaluate() -> None:
    """Evaluate descriptors, the library's and others, and write tables and figures.

    Each command writes its numbers as JSON and CSV, a Markdown table, and figures (extra 'viz') to a folder. With
    --cache descriptors are computed once.
    """


@evaluate.command(
    short_help="FPR95 on scenes, also by errors of the detector.",
    epilog="Example: logpolar eval patches test/*.h5 -d rootsift -d logpolar-96 -o results/ --cache cache/",
)
@_FILES
@_protocol(PatchesOptions, _SPLIT, _FIXED_SIZE)
def patches(**values: Any) -> None:
    """The paper's Table 1 and Fig. 4 on correspondence files, one for each scene.

    FPR95, in percent, over all pairs of a scene, and the mean of scenes; 95 % intervals by bootstrapping image pairs;
    rank-1 among the keypoints of the other image, also for scale mismatches of more than 2x. The figure breaks FPR95
    down by scale ratio and orientation error, each class at the threshold of its own correct pairs.
    """
    _evaluate("patches", PatchesOptions, values)


@evaluate.command(
    short_help="Ranks among thousands of distractors, on scenes.",
    epilog="Example: logpolar eval retrieval test/*.h5 -d rootsift -d logpolar-96 -o results/ --cache cache/",
)
@_FILES
@_protocol(RetrievalOptions, _SPLIT, _FIXED_SIZE)
def retrieval(**values: Any) -> None:
    """The paper's Fig. 5 on correspondence files, one for each scene.

    Each keypoint of the first image is searched for among the correspondences and many other keypoints of the second
    image, farther than 3 px from any matched one. Fractions are over all pairs of a scene; the table has the mean of
    scenes.
    """
    _evaluate("retrieval", RetrievalOptions, values)


@evaluate.command(
    short_help="Ranks and matches on HPatches sequences.",
    epilog="Example: logpolar eval hpatches hpatches/ -d sift -d logpolar-96 -o results/ --rotations 0,45,90",
)
@_FOLDER
@_protocol(
    HPatchesOptions,
    _DETECTOR,
    _FIXED_SIZE,
    click.option("--rotations", default="", metavar="NUMBERS", help="Comma-separated degrees: measure at each, too."),
    click.option("--zooms", default="", metavar="NUMBERS", help="Comma-separated factors: measure at each, too."),
)
def hpatches(**values: Any) -> None:
    """The paper's Table 3 on a folder of HPatches sequences, and curves over rotation and zoom.

    rank-1: mode paper has all correspondences of a split in one pool, mode full ranks within each pair. MMA: fraction
    of mutual nearest neighbours within some pixels of the truth. --rotations and --zooms transform the second images.
    """
    _evaluate("hpatches", HPatchesOptions, values)


@evaluate.command(
    short_help="Ranks on AMOS patches.",
    epilog="Example: logpolar eval amos AMOS/ -d sift -d logpolar-96 -o results/ --lambdas 2,6,12",
)
@_FOLDER
@_protocol(
    AmosOptions,
    click.option(
        "--lambdas",
        default="",
        metavar="NUMBERS",
        help="Comma-separated supports, for all descriptors that take one and have none in their spec.",
    ),
)
def amos(**values: Any) -> None:
    """The paper's Table 4 on a folder of AMOS patches: Train/, train_patches.pt, images_in_views.npy.

    Ranks among all pairs of all views. Scales in these files are half-widths of patches, not sizes of SIFT keypoints:
    lambda = 2 is the patch itself. Needs the extra 'torch' to read the files.

    In place of the folder, a list of image pairs of fixed cameras, as for `logpolar dataset aligned`: places are then
    SIFT keypoints of the first images. Its results are marked as a stand-in.
    """
    _evaluate("amos", AmosOptions, values)


@evaluate.command(
    short_help="Poses from matched descriptors, stereo and multi-view.",
    epilog="Example: logpolar eval phototourism scenes/reichstag -d logpolar-96 -d rootsift -o results/",
)
@_SCENES
@_protocol(
    PhototourismOptions,
    _DETECTOR,
    _FIXED_SIZE,
    click.option(
        "--tune",
        multiple=True,
        metavar="SCENE",
        type=_PATH,
        help="Tune the ratio of each descriptor on this other scene, of a correspondence file on its validation pairs, "
        "if any; repeatable.",
    ),
    click.option("--multi-view/--no-multi-view", default=True, show_default=True, help="Needs the extra 'sfm'."),
    jobs_option,
)
def phototourism(**values: Any) -> None:
    """The paper's Table 5: relative poses from matched keypoints, against known ones.

    SCENES are COLMAP models with undistorted images (sparse/, images/), scenes of the Image Matching Challenge
    (set_100/), or correspondence files of scenes. mAA is the mean of the fractions of pairs within 1, 2, ... 10
    degrees, mAP of those within 5, 10 and 15 degrees.
    """
    _evaluate("phototourism", PhototourismOptions, values)


@evaluate.command(
    short_help="Structure from motion against known cameras, and COLMAP's own SIFT.",
    epilog="Example: logpolar eval sfm scenes/trevi_fountain -d logpolar-96 -d colmap-sift --downscale 3 -o results/",
)
@_SCENES
@_protocol(SfmTestOptions, jobs_option)
def sfm(**values: Any) -> None:
    """Models of photos alone, by `logpolar sfm` with each descriptor, compared with the true cameras.

    SCENES are as for `logpolar eval phototourism`; only their images are used, and poses as the truth. The descriptor
    'colmap-sift' stands for COLMAP alone: its SIFT with as many keypoints, its matcher with its defaults. All match
    every image with every other, with the same verification and mapper. With --cache a second run resumes the first.
    Needs the extra 'sfm'.
    """
    _evaluate("sfm", SfmTestOptions, values)


@evaluate.command(
    short_help="All runs beside the paper's tables and figures.",
    epilog="Example: logpolar eval report results/ ablation/ -o report/",
)
@click.argument("results", nargs=-1, required=True, metavar="RESULTS...", type=_PATH)
@click.option("--output", "-o", type=_PATH, required=True, help="Folder, or Markdown file.")
def report(results: tuple[Path, ...], output: Path) -> None:
    """Put the results of the other commands beside the tables and figures of the paper.

    RESULTS are their output folders, searched at any depth: patches.json, retrieval.json, hpatches.json, amos.json,
    phototourism.json, sfm.json, and table.csv of `logpolar ablate`. There may be several runs of one protocol, such as
    `eval patches` with and without --fixed-size. Writes report.md, report.json, and figures (extra 'viz'); if the
    output is called NAME.md, that file and the others into the folder NAME.
    """
    from logpolar.evaluation.report.sections import report_results

    sections, made, folder = report_results(results, output)
    for section in sections:
        state = "not run" if section.missing else ", ".join(run.label for run in section.runs) or "drawn"
        click.echo(f"{section.title}: {state}")
    click.echo(f"wrote {', '.join(made)} to {folder}")
