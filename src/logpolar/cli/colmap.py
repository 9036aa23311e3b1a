"""logpolar colmap: COLMAP databases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logpolar.cli.options import (
    continuing,
    description_options,
    extractor_opener,
    jobs_option,
    pairs_file_option,
    take_extraction,
)
from logpolar.cli.settings import make_settings, settings_options
from logpolar.errors import LogpolarError
from logpolar.matching.options import MatchingOptions
from logpolar.sfm.export import ExportOptions
from logpolar.sfm.redescription import RedescriptionOptions

if TYPE_CHECKING:
    from logpolar.sfm.database_files import DatabaseReport

_PATH = click.Path(path_type=Path)
_output = click.option("--output", "-o", type=_PATH, required=True, help="New COLMAP database.")
_overwrite = click.option("--overwrite", is_flag=True, help="Replace OUTPUT if it is a COLMAP database.")


@click.group(
    short_help="Write COLMAP databases, or redescribe an existing one.",
    epilog="Example: logpolar colmap redescribe database.db photos/ -o new.db && "
    "colmap mapper --database_path new.db --image_path photos --output_path sparse",
)
def colmap() -> None:
    """COLMAP databases with our keypoints, descriptors and verified matches. Needs the extra 'sfm'."""


@colmap.command(
    short_help="Write feature and match files to a database.",
    epilog="Example: logpolar colmap export features.h5 matches.h5 --images photos/ -o database.db",
)
@click.argument("features", type=_PATH)
@click.argument("matches", type=_PATH, required=False)
@click.option("--images", type=_PATH, help="Folder of the photos; cameras are guessed from EXIF.")
@click.option("--cameras", type=_PATH, help="Database to copy cameras, images and rigs from instead.")
@_output
@settings_options(ExportOptions)
@_overwrite
def export(
    features: Path, matches: Path | None, images: Path | None, cameras: Path | None, output: Path, **settings: Any
) -> None:
    """Write FEATURES and MATCHES, from `extract` and `match-features` or from hloc, to a new COLMAP database.

    Matches are verified by two-view geometry, so that `colmap mapper` can start at once. Without MATCHES the database
    has only keypoints and descriptors. OUTPUT is written atomically.
    """
    from logpolar.sfm.export import export_database

    if (images is None) == (cameras is None):
        raise LogpolarError("give either the photos (--images) or a database with cameras (--cameras)")
    overwrite, options = settings.pop("overwrite"), make_settings(ExportOptions, settings)
    _print(output, export_database(features, matches, output, images, cameras, options, overwrite, progress=True))


@colmap.command(
    short_help="Redescribe and rematch the keypoints of a database.",
    epilog="Example: logpolar colmap redescribe database.db photos/ -o new.db --model logpolar-96",
)
@click.argument("database", type=_PATH)
@click.argument("photos", type=_PATH)
@_output
@description_options
@settings_options(RedescriptionOptions)
@pairs_file_option
@settings_options(MatchingOptions)
@jobs_option
@_overwrite
@click.option("--compare", is_flag=True, help="Map both databases with COLMAP and print what they give.")
def redescribe(database: Path, photos: Path, output: Path, pairs: Path | None, **settings: Any) -> None:
    """Redescribe the keypoints of a COLMAP database; match, verify and write them to a new database.

    Cameras, images, rigs and keypoints are kept, with their stored scale and orientation. DATABASE itself is never
    changed. Rerun the command to resume.
    """
    from logpolar.sfm.redescription import redescribe_database

    device, opener = settings["device"], extractor_opener(**take_extraction(settings), min_size=0)
    jobs, overwrite, compare = (settings.pop(name) for name in ("jobs", "overwrite", "compare"))
    options, matching = make_settings(RedescriptionOptions, settings), make_settings(MatchingOptions, settings)
    with continuing(output.with_name(f"{output.name}.features.h5")):
        report = redescribe_database(
            database, photos, output, opener, options, matching, pairs, jobs, overwrite, True, device
        )
    _print(output, report)
    _print_comparison(database, output, photos if compare else None)


def _print_comparison(before: Path, after: Path, photos: Path | None) -> None:
    """A table of both databases and, with photos, of the models that COLMAP's mapper makes of them."""
    from logpolar.sfm.database_files import read_content
    from logpolar.sfm.redescription import map_quickly

    contents = [read_content(path) for path in (before, after)]
    rows = [
        (name, *(f"{getattr(content, key)}" for content in contents))
        for name, key in (("pairs verified", "verified"), ("matches", "matches"), ("inliers", "inliers"))
    ]
    if photos:
        old, new = (map_quickly(path, photos) for path in (before, after))
        rows += [
            ("images registered", str(old.images), str(new.images)),
            ("points", str(old.points), str(new.points)),
            ("track length", f"{old.track_length:.2f}", f"{new.track_length:.2f}"),
            ("reprojection error, px", f"{old.error:.3f}", f"{new.error:.3f}"),
            ("mapping, s", f"{old.seconds:.1f}", f"{new.seconds:.1f}"),
        ]
    for name, old_value, new_value in [("", "before", "after"), *rows]:
        click.echo(f"{name:24}{old_value:>10}{new_value:>10}")


def _print(output: Path, report: DatabaseReport) -> None:
    if report.columns == 2:
        click.echo("keypoints have no scale and orientation: described at 4 px, upright; only positions are stored")
    if report.descriptor_bytes < 512:
        click.echo("descriptors are stored in 8 bits, as COLMAP 3 requires; do not match them with COLMAP itself")
    click.echo(f"{output}: {report.images} images, {report.keypoints} keypoints")
    if report.pairs:
        verified = f"; {report.verified} pairs verified, with {report.inliers} matches" if report.verified else ""
        click.echo(f"{report.pairs} pairs matched, {report.matches} matches{verified}")
    else:
        click.echo("no matches: COLMAP cannot match these descriptors; use `logpolar match-features`")
