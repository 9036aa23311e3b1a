"""logpolar sfm"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from logpolar.cli.options import (
    command_line,
    continuing,
    extraction_options,
    extractor_opener,
    jobs_option,
    pairs_file_option,
    take_extraction,
)
from logpolar.cli.settings import make_settings, settings_options
from logpolar.matching.options import MatchingOptions
from logpolar.sfm.mapper import MODELS, PAGE, SfmReport
from logpolar.sfm.pipeline import SfmOptions


@click.command(
    short_help="Reconstruct a folder of photos with COLMAP.",
    epilog="Example: logpolar sfm photos/ model/ --pairing retrieval --jobs 4",
)
@click.argument("photos", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
@extraction_options
@settings_options(SfmOptions)
@pairs_file_option
@settings_options(MatchingOptions)
@jobs_option
@click.option("--overwrite", is_flag=True, help="Start over instead of resuming.")
def sfm(photos: Path, output: Path, pairs: Path | None, jobs: int, overwrite: bool, **settings: Any) -> None:
    """Reconstruct a folder of photos into OUTPUT/sparse: features, pairs, matches, verification, COLMAP's mapper.

    Rerun the command to resume, or to add new photos. OUTPUT also holds the feature and match files, the
    COLMAP database, report.html to look at, report.json, points.ply and summary.png; a folder with a COLMAP project
    from elsewhere is refused. If reconstruction fails, report.html says why. Unreadable photos are listed; the exit
    code is then 1. Needs the extra 'sfm'.
    """
    from logpolar.sfm.pipeline import reconstruct
    from logpolar.sfm.reports import explained, write_reports

    command = command_line()
    device, opener = settings["device"], extractor_opener(**take_extraction(settings))
    options, matching = make_settings(SfmOptions, settings), make_settings(MatchingOptions, settings)
    with continuing(output), explained(photos, output, command):
        report = reconstruct(
            photos, output, opener, options, matching, pairs, jobs, overwrite, True, click.echo, device
        )
    write_reports(photos, output, report, command)
    _print(output, report)
    if report.left_out:
        sys.exit(1)


def _print(output: Path, report: SfmReport) -> None:
    for reason in report.left_out.values():
        click.echo(f"logpolar: left out: {reason}", err=True)
    readable = report.photos - len(report.left_out)
    click.echo(f"{output}: {len(report.registered)} of {readable} photos registered, {report.points} points")
    lengths = f"mean track length {report.mean_track_length:.2f}"
    click.echo(f"{lengths}, mean reprojection error {report.mean_reprojection_error:.2f} px")
    if report.models > 1:
        click.echo(f"COLMAP made {report.models} models; these figures are of the largest, number {report.model}")
    click.echo(f"wrote {output / MODELS} and {output / PAGE}")
