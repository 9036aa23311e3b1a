"""Options of `logpolar eval` that decide which keypoints are described."""

from __future__ import annotations

from typing import Any

import click

from logpolar.cli.options import Number


class FixedSize(click.ParamType):  # type: ignore[type-arg] # generic in the newest click only
    """``median`` or a share of the image's longer side."""

    name = "median|0..1"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        return value if value == "median" else Number(0, 1, min_open=True).convert(value, param, ctx)


fixed_size_option = click.option(
    "--fixed-size",
    type=FixedSize(),
    help="Do without detected scales: all keypoints of an image get their median size, or a share of its longer side.",
)
