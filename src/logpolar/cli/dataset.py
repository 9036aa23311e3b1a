"""logpolar dataset: correspondences for training and testing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logpolar.cli.options import continuing, jobs_option
from logpolar.cli.settings import make_settings, settings_options
from logpolar.datasets.options import AlignedOptions, PhotoOptions, SceneOptions
from logpolar.errors import LogpolarError
from logpolar.settings import FILE_ENDINGS

if TYPE_CHECKING:
    from logpolar.datasets.building import BuildReport
    from logpolar.datasets.files import CorrespondenceFile

_PATH = click.Path(path_type=Path)
overwrite_option = click.option("--overwrite", is_flag=True, help="Start over instead of resuming.")


@click.group(
    short_help="Build and inspect correspondences for training and testing.",
    epilog="Example: logpolar dataset colmap WORKSPACE -o scene.h5 && logpolar dataset show scene.h5 -o pictures/",
)
def dataset() -> None:
    """Correspondences for training and testing, from COLMAP scenes, single photos or fixed cameras.

    From a folder of pictures of one place: `reconstruct`, then `colmap`. From any photos: `homographies`. From images
    of fixed cameras: `aligned`.
    """


@dataset.command(
    short_help="Correspondences from COLMAP dense workspaces.",
    epilog="Example: logpolar dataset colmap scenes/trevi scenes/vienna -o train/",
)
@click.argument("workspaces", nargs=-1, required=True, metavar="WORKSPACE...", type=_PATH)
@click.option("--output", "-o", type=_PATH, required=True, help="File (.h5), or a folder for one file per workspace.")
@settings_options(SceneOptions)
@jobs_option
@overwrite_option
def colmap(workspaces: tuple[Path, ...], output: Path, jobs: int, overwrite: bool, **settings: Any) -> None:
    """Correspondences from COLMAP dense workspaces: images/, sparse/, stereo/depth_maps/.

    SIFT keypoints are linked through poses and depth maps, of any resolution, where other views confirm the depth. One
    file is written per workspace; `-o name.h5` with several workspaces writes name-WORKSPACE.h5. Rerun the command to
    resume. Unusable images are listed, with exit code 1. An unusable workspace does not stop the others; the exit code
    is then 2. Needs the extra 'sfm'.
    """
    from logpolar.datasets.scenes import build_scene

    options, left_out, failed = make_settings(SceneOptions, settings), 0, 0
    for workspace, target in _targets(workspaces, output):
        try:
            with _folder_for(target, output), continuing(target):
                left_out += _print(target, build_scene(workspace, target, options, jobs, overwrite, progress=True))
        except LogpolarError as error:
            if len(workspaces) == 1:
                raise
            failed += 1
            click.echo(f"logpolar: error: {error}", err=True)
    if failed or left_out:
        sys.exit(2 if failed else 1)


@contextlib.contextmanager
def _folder_for(target: Path, output: Path) -> Iterator[None]:
    """Create the output folder, if there is to be one; remove it if it stays empty."""
    new = target.parent == output and not output.exists()
    if new:
        output.mkdir(parents=True)
    try:
        yield
    finally:
        if new and not any(output.iterdir()):
            output.rmdir()


def _targets(workspaces: tuple[Path, ...], output: Path) -> list[tuple[Path, Path]]:
    """The file of each workspace."""
    names = [workspace.resolve().name for workspace in workspaces]
    if len(set(names)) < len(names):
        raise LogpolarError("two workspaces have the same name, so their files would collide")
    if output.is_dir() or output.suffix not in FILE_ENDINGS:
        files = [output / f"{name}.h5" for name in names]
    elif len(workspaces) == 1:
        files = [output]
    else:
        files = [output.with_name(f"{output.stem}-{name}{output.suffix}") for name in names]
    return list(zip(workspaces, files, strict=True))


def _print(target: Path, report: BuildReport) -> int:
    """Print the result and return the number of images left out."""
    from logpolar.datasets.files import CorrespondenceFile

    for reason in report.left_out.values():
        click.echo(f"logpolar: left out: {reason}", err=True)
    counts, size = report.counts, target.stat().st_size / 1e6
    pairs = f"{counts['pairs']} pairs, {counts['correspondences']} correspondences"
    left_out = f"; {len(report.left_out)} left out" if report.left_out else ""
    done = "was already complete: " if report.was_complete else ""
    click.echo(f"{target}: {done}{counts['images']} images, {pairs}, {size:.1f} MB{left_out}")
    with CorrespondenceFile(target) as file:
        print_rejects(file)
    if counts["correspondences"] == 0:
        raise LogpolarError(f"{target}: no correspondences found; the rejects above say why")
    return len(report.left_out)


def print_rejects(file: CorrespondenceFile) -> None:
    """Print rejects by cause."""
    click.echo("rejected, by cause:")
    rejects = {"image pairs": file.summary.get("image_pairs_rejected", {}), "keypoints": file.rejects()}
    for what, causes in rejects.items():
        for cause, number in causes.items():
            if number:  # views of photos have no depth to fail by
                click.echo(f"  {what + ':':13}{cause:30}{number:>10}")


@dataset.command(
    short_help="Correspondences from single photos.",
    epilog="Example: logpolar dataset homographies photos/ -o photos.h5 --views 3",
)
@click.argument("photos", nargs=-1, required=True, metavar="PHOTOS...")
@click.option("--output", "-o", type=_PATH, required=True, help="File (.h5).")
@settings_options(PhotoOptions)
@jobs_option
@overwrite_option
def homographies(photos: tuple[str, ...], output: Path, jobs: int, overwrite: bool, **settings: Any) -> None:
    """Correspondences from single photos: two views each, related by a random homography, under different light.

    Rerun the command to resume. Unreadable photos are listed; the exit code is then 1.
    """
    from logpolar.datasets.homographies import build_photos
    from logpolar.images import find_images

    options = make_settings(PhotoOptions, settings)
    _check_ending(output)
    with continuing(output):
        report = build_photos(find_images(photos), output, options, jobs, overwrite, progress=True)
    if _print(output, report):
        sys.exit(1)


@dataset.command(
    short_help="Correspondences from images of fixed cameras.",
    epilog="Example: logpolar dataset aligned webcams.txt -o webcams.h5",
)
@click.argument("lists", nargs=-1, required=True, metavar="PAIRS...", type=_PATH)
@click.option("--output", "-o", type=_PATH, required=True, help="File (.h5).")
@settings_options(AlignedOptions)
@jobs_option
@overwrite_option
def aligned(lists: tuple[Path, ...], output: Path, jobs: int, overwrite: bool, **settings: Any) -> None:
    """Correspondences from pairs of images of the same view, or of views related by a known homography.

    PAIRS are text files. Each line has the paths of two images and, unless they show the same view, of a file with the
    3 x 3 homography from the first to the second; paths are relative to the list. Keypoints detected in one image only
    are carried to the other. Pairs that are not aligned are listed; the exit code is then 1. Rerun the command to
    resume.
    """
    from logpolar.datasets.aligned import build_aligned, read_pair_list

    options = make_settings(AlignedOptions, settings)
    _check_ending(output)
    pairs = [pair for path in lists for pair in read_pair_list(path)]
    with continuing(output):
        report = build_aligned(pairs, output, options, jobs, overwrite, progress=True)
    if _print(output, report):
        sys.exit(1)


def _check_ending(output: Path) -> None:
    if output.suffix not in FILE_ENDINGS:
        raise LogpolarError(f"{output}: correspondence files end in {' or '.join(FILE_ENDINGS)}")
