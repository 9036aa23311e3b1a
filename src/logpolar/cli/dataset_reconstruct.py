"""logpolar dataset reconstruct"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from logpolar.cli.options import continuing
from logpolar.cli.settings import make_settings, settings_options
from logpolar.sfm.dense import DenseOptions, DenseReport


@click.command(
    short_help="Reconstruct photos into a COLMAP dense workspace.",
    epilog="Example: logpolar dataset reconstruct photos/ workspace/ --single-camera",
)
@click.argument("photos", nargs=-1, required=True, metavar="PHOTOS...")
@click.argument("workspace", type=click.Path(path_type=Path))
@settings_options(DenseOptions)
@click.option("--overwrite", is_flag=True, help="Start over; removes only what this command has created.")
def reconstruct(photos: tuple[str, ...], workspace: Path, overwrite: bool, **settings: Any) -> None:
    """Reconstruct photos of one place (files, folders, globs) with pycolmap, for `logpolar dataset colmap`.

    WORKSPACE becomes a COLMAP dense workspace: images/, sparse/ and, if pycolmap has CUDA, stereo/depth_maps/. Rerun
    the command to resume after the last finished step. Unreadable photos are listed; the exit code is then 1. Needs the
    extra 'sfm'.
    """
    from logpolar.sfm.dense import reconstruct_dense

    options = make_settings(DenseOptions, settings)
    with continuing(workspace):
        report = reconstruct_dense(photos, workspace, options, overwrite, progress=True, say=click.echo)
    _print(workspace, report)
    if report.left_out:
        sys.exit(1)


def _print(workspace: Path, report: DenseReport) -> None:
    for reason in report.left_out.values():
        click.echo(f"logpolar: left out: {reason}", err=True)
    if report.left_out:
        click.echo(f"{len(report.left_out)} of {report.photos} photos cannot be read")
    readable = report.registered + len(report.unregistered)
    click.echo(f"{workspace}: {report.registered} of {readable} photos registered, {report.points} points")
    if report.models > 1:
        click.echo(f"COLMAP made {report.models} disconnected models; this is the largest")
    if report.unregistered:
        click.echo(f"not registered: {', '.join(report.unregistered[:10])}{', ...' * (len(report.unregistered) > 10)}")
    click.echo(_next_steps(workspace, report))


def _next_steps(workspace: Path, report: DenseReport) -> str:
    place = shlex.quote(str(workspace))
    build = f"logpolar dataset colmap {place} -o {shlex.quote(workspace.resolve().name + '.h5')}"
    if report.dense:
        return f"{report.depth_maps} depth maps; next: {build}"
    return f"""
NO DEPTH MAPS: {report.depth_maps} of {report.registered} exist. They need CUDA, which was not found here.
Everything else is done. On a machine with CUDA, either run the same command again, with another pycolmap:
  pip uninstall pycolmap && pip install pycolmap-cuda12
or continue with COLMAP itself:
  colmap patch_match_stereo --workspace_path {place} --workspace_format COLMAP --PatchMatchStereo.geom_consistency true
Then: {build}"""
