"""logpolar imc: submissions to the Image Matching Challenge."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from logpolar.cli.settings import Number
from logpolar.errors import LogpolarError
from logpolar.settings import DEFAULT_RATIO


@click.group(
    short_help="Write and check submissions to the Image Matching Challenge.",
    epilog="Example: logpolar imc export f.h5 m.h5 -o submission --scene reichstag && logpolar imc check submission",
)
def imc() -> None:
    """Submissions to the Image Matching Challenge: keypoints, descriptors, matches, config."""


@imc.command(
    short_help="Add a scene to a submission.",
    epilog="Example: logpolar imc export features.h5 matches.h5 -o submission/ --scene reichstag",
)
@click.argument("features", type=click.Path(path_type=Path))
@click.argument("matches", type=click.Path(path_type=Path), required=False)
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="Folder of the submission.")
@click.option("--scene", required=True, help="The scene's name in the benchmark.")
@click.option("--dataset", default="phototourism", show_default=True, help="The dataset's name in the benchmark.")
@click.option("--label", default="logpolar", show_default=True, help="Name of the method: a-z, 0-9, '-', '.', '_'.")
@click.option("--keypoint", default="sift", show_default=True, help="Name of the keypoints: a-z, 0-9, '-', '.'.")
@click.option("--descriptor", help="Name of the descriptor; by default the model's.")
@click.option("--authors", default="", help="Authors of the submission.")
@click.option("--email", default="", help="Contact address.")
@click.option("--description", default="", help="Short description of the method.")
@click.option(
    "--ratio",
    type=Number(0, 1, min_open=True),
    default=DEFAULT_RATIO,
    show_default=True,
    help="Ratio test; 1 for none.",
)
@click.option(
    "--threshold",
    type=Number(0, min_open=True),
    default=0.5,
    show_default=True,
    help="Largest error of an inlier in pixels, for DEGENSAC in the stereo task.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing scene.")
def export(
    features: Path,
    matches: Path | None,
    output: Path,
    scene: str,
    dataset: str,
    descriptor: str | None,
    overwrite: bool,
    **words: str | float,
) -> None:
    """Add a scene to a submission: FEATURES of `logpolar extract`, and MATCHES of every pair, of `match-features`.

    Without MATCHES the benchmark matches the descriptors itself, with --ratio. Run it once per scene; all scenes share
    one editable config.json.
    """
    from logpolar.features.collections import open_features
    from logpolar.integrations.imc.config import SubmissionOptions
    from logpolar.integrations.imc.exporting import export_submission

    if descriptor is None:
        with open_features(features) as file:
            descriptor = str(file.settings.get("model", "unknown")).lower().replace("_", "-")
    try:
        options = SubmissionOptions(descriptor=descriptor, **words)  # type: ignore[arg-type] # click has checked them
    except ValueError as error:
        raise LogpolarError(str(error)) from error
    click.echo(f"wrote {export_submission(features, matches, output, dataset, scene, options, overwrite)}")


@imc.command(
    short_help="Validate a submission.",
    epilog="Example: logpolar imc check submission/ --images imw_data/",
)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--images", type=click.Path(path_type=Path), help="The benchmark's data: <dataset>/<scene>/*.jpg.")
def check(folder: Path, images: Path | None) -> None:
    """Check names, shapes, types, ranges and completeness of a submission; lists problems and exits with code 1."""
    from logpolar.integrations.imc.checking import check_submission

    report = check_submission(folder, images)
    for problem in report.problems:
        click.echo(problem)
    found = f"{report.scenes} scenes, {report.images} images, {report.pairs} pairs with matches"
    if report.problems:
        click.echo(f"{folder}: {len(report.problems)} problems in {found}")
        sys.exit(1)
    click.echo(f"{folder}: no problems in {found}")
