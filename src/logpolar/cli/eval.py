"""logpolar eval"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from logpolar.cli.options import ENGINE, WordOrFraction, continuing, engine_options, jobs_option
from logpolar.cli.settings import Command, make_settings, settings_options, with_options
from logpolar.evaluation.options import (
    AmosOptions,
    DetectorsOptions,
    HPatchesOptions,
    PatchesOptions,
    PhototourismOptions,
    RetrievalOptions,
    RunOptions,
    SfmTestOptions,
)

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
    click.option("--cache", type=click.Path(path_type=Path, file_okay=False), help="Folder to cache descriptors in."),
    click.option("--skip-missing", is_flag=True, help="List descriptors whose weights are missing instead of failing."),
)

_FIXED_SIZE = click.option(
    "--fixed-size",
    type=WordOrFraction("median", min_open=True),
    help="Ignore detected scales: all keypoints of an image get their median size, or a fraction of its longer side.",
)

_DETECTOR = click.option(
    "--detector",
    default="sift",
    show_default=True,
    metavar="SPEC",
    help="Keypoint detector: sift, logpolar, logpolar:FILE, opencv:NAME, kornia:NAME; whole features have their own.",
)


def _protocol(kind: type[Any], *more: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """The options of a protocol and of every run."""
    return lambda command: with_options(command, [*_RUN, engine_options, *more, settings_options(kind)])


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
    """Evaluate the library's and other descriptors; write tables and figures.

    Each command writes its numbers as JSON and CSV, a Markdown table, and figures (extra 'viz') to a folder. With
    --cache descriptors are computed once.
    """


@evaluate.command(
    short_help="FPR95 on scenes, also by detector error.",
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
    short_help="Retrieval ranks among thousands of distractors, on scenes.",
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
    click.option("--rotations", default="", metavar="NUMBERS", help="Also measure at these degrees, comma-separated."),
    click.option("--zooms", default="", metavar="NUMBERS", help="Also measure at these factors, comma-separated."),
)
def hpatches(**values: Any) -> None:
    """The paper's Table 3 on a folder of HPatches sequences, and curves over rotation and zoom.

    rank-1: mode paper pools all correspondences of a split, mode full ranks within each pair. MMA: fraction of mutual
    nearest neighbours within a pixel threshold of the truth. --rotations and --zooms transform the second images.
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
        help="Comma-separated lambdas, for descriptors whose spec does not set it.",
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
    short_help="Repeatability and localisation error of detectors.",
    epilog="Example: logpolar eval detectors hpatches/ webcams.txt -d sift -d opencv:ORB -o results/ --zoom 3",
)
@click.argument("paths", nargs=-1, required=True, metavar="DATA...", type=_PATH)
@_protocol(DetectorsOptions)
def detectors(**values: Any) -> None:
    """Fraction of keypoints that are found again in another image, and their mean error in pixels.

    DATA are folders of HPatches sequences, lists of aligned image pairs as for `logpolar dataset aligned`, and COLMAP
    workspaces with depth maps. Detectors are named by -d: sift, logpolar, logpolar:FILE, opencv:NAME, kornia:NAME.
    """
    _evaluate("detectors", DetectorsOptions, values)


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
        help="Tune each descriptor's ratio on this other scene (of a correspondence file, on its validation pairs, "
        "if any); repeatable.",
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
    short_help="Structure from motion on scenes with known cameras; includes COLMAP's SIFT.",
    epilog="Example: logpolar eval sfm scenes/trevi_fountain -d logpolar-96 -d colmap-sift --downscale 3 -o results/",
)
@_SCENES
@_protocol(SfmTestOptions, _DETECTOR, jobs_option)
def sfm(**values: Any) -> None:
    """Reconstruct scenes by `logpolar sfm` with each descriptor, and compare with the true cameras.

    SCENES are as for `logpolar eval phototourism`; only images are used, and poses as ground truth. The descriptor
    'colmap-sift' is COLMAP's own pipeline: its SIFT, with the same limit of keypoints, and its matcher with defaults.
    Matching is exhaustive; verification and mapper are the same for all. With --cache, interrupted runs are resumed.
    Needs the extra 'sfm'.
    """
    _evaluate("sfm", SfmTestOptions, values)


@evaluate.command(
    short_help="Compare runs with the paper's tables and figures.",
    epilog="Example: logpolar eval report results/ ablation/ -o report/",
)
@click.argument("results", nargs=-1, required=True, metavar="RESULTS...", type=_PATH)
@click.option("--output", "-o", type=_PATH, required=True, help="Folder, or Markdown file.")
def report(results: tuple[Path, ...], output: Path) -> None:
    """Compare the results of the other commands with the paper's tables and figures.

    RESULTS are their output folders, searched at any depth: patches.json, retrieval.json, hpatches.json, amos.json,
    phototourism.json, sfm.json, and table.csv of `logpolar ablate`. Several runs of one protocol are allowed, such as
    `eval patches` with and without --fixed-size. Writes report.html to look at, report.md, report.json, and figures
    (extra 'viz'); with -o NAME.md, that file and NAME.html, and the others in the folder NAME.
    """
    from logpolar.evaluation.report.sections import report_results

    sections, made, folder = report_results(results, output)
    for section in sections:
        state = "not run" if section.missing else ", ".join(run.label for run in section.runs) or "drawn"
        click.echo(f"{section.title}: {state}")
    click.echo(f"wrote {', '.join(made)} to {folder}")
