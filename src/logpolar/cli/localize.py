"""logpolar localize"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from logpolar.cli.settings import make_settings, settings_options
from logpolar.matching.options import MatchingOptions
from logpolar.sfm.cameras import CameraOptions

_PATH = click.Path(path_type=Path)


@click.command(
    short_help="Find where new photos were taken, in a model.",
    epilog="Example: logpolar localize model/ new.jpg --camera-params cameras.txt",
)
@click.argument("model", type=_PATH)
@click.argument("photos", type=_PATH, nargs=-1, required=True, metavar="PHOTO...")
@settings_options(CameraOptions)
@settings_options(MatchingOptions)
@click.option("--neighbours", type=click.IntRange(1), default=20, show_default=True, help="Similar photos to match.")
@click.option("--write", type=_PATH, help="New folder for a copy of the model with these photos in it.")
@click.option("--json", "as_json", is_flag=True, help="Print the poses as JSON.")
def localize(
    model: Path, photos: tuple[Path, ...], neighbours: int, write: Path | None, as_json: bool, **settings: Any
) -> None:
    """Find the poses of PHOTOs in MODEL, a folder that `logpolar sfm` made; MODEL is not changed.

    Prints, per photo, name, quaternion (w x y z) and translation as in COLMAP's images.txt, inliers and standard
    deviations. Photos that cannot be localised are listed; the exit code is then 1. Needs the extra 'sfm'.
    """
    from logpolar.sfm.localisation import Localiser, write_with_photos

    matching, cameras = make_settings(MatchingOptions, settings), make_settings(CameraOptions, settings)
    localiser, found = Localiser(model, cameras, matching, neighbours), []
    for each in localiser.localise(photos):
        found.append(each)
        if each.reason:
            click.echo(f"logpolar: {each.reason}", err=True)
        elif not as_json:
            pose = " ".join(f"{value:.9g}" for value in (*each.quaternion, *each.translation))
            sigma = f"{each.rotation_sigma:.3g} degrees, {each.position_sigma:.3g} in position"
            click.echo(f"{each.name} {pose}  # {each.inliers} of {each.matches} inliers; +- {sigma}")
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], indent=1).replace("NaN", "null"))
    if write:
        count = write_with_photos(localiser.model, found, photos, write)
        click.echo(f"{write}: the model with {count} photos more", err=as_json)
    if any(each.reason for each in found):
        sys.exit(1)
