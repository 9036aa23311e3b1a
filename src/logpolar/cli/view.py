"""logpolar view"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from logpolar.cli.match import match
from logpolar.cli.options import command_line
from logpolar.storage.atomic_io import check_page

_OF_MATCH_ALONE = {"output", "html", "h5", "as_json", "colour_by", "max_lines", "inliers_only", "compare"}


@click.group(short_help="Pages to look at results.")
def view() -> None:
    """Pages to look at results: each is one HTML file that opens from disk and loads nothing."""


@click.pass_context
def _matches(ctx: click.Context, /, output: Path, **values: Any) -> None:
    """Match two photos and write a page to look at the matches one by one.

    The page shows both photos with their matches; a click on a match shows both patches as the network sees them, the
    descriptors and the nearest other candidates. It is what `logpolar match --html` writes.
    """
    ctx.invoke(match, html=output, **values)


@view.command(short_help="A sparse model.", epilog="Example: logpolar view model model/ -o model.html")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="The page (.html).")
@click.option("--photos", type=click.Path(path_type=Path), help="Folder of the photos, if it has moved.")
@click.option("--database", type=click.Path(path_type=Path), help="COLMAP database, if not beside the model.")
def model(folder: Path, output: Path, photos: Path | None, database: Path | None) -> None:
    """Write a page to look at the sparse model in FOLDER: an output of `logpolar sfm`, or any COLMAP model.

    The page shows points and cameras in 3D, the photos, how they hang together, and findings in words where something
    is wrong. Without a database it knows nothing of matches, without the photos it shows none. Needs the extra 'sfm'.
    """
    from logpolar.sfm.reports import write_model_page

    check_page(output)
    write_model_page(output, folder, photos, database, command_line())
    click.echo(f"wrote {output}")


view.add_command(
    click.Command(
        "matches",
        callback=_matches,
        params=[
            *(each for each in match.params if each.name not in _OF_MATCH_ALONE),
            click.Option(["--output", "-o"], type=click.Path(path_type=Path), required=True, help="The page (.html)."),
        ],
        help=_matches.__doc__,
        short_help="The matches of two photos.",
        epilog="Example: logpolar view matches a.jpg b.jpg -o pair.html",
    )
)
