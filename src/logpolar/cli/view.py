"""logpolar view"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from logpolar.cli.match import match

_OF_MATCH_ALONE = {"output", "html", "h5", "as_json"}


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
