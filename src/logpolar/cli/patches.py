"""logpolar patches"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from logpolar.cli.options import WordOrFraction, max_size_option
from logpolar.cli.settings import Number
from logpolar.storage.atomic_io import check_output


@click.command(
    short_help="Show sampling patterns and their patches.",
    epilog="Example: logpolar patches photo.jpg -o patches.png --count 3 --lambda 64",
)
@click.argument("image", type=click.Path(path_type=Path))
@click.option("--output", "-o", type=click.Path(path_type=Path), required=True, help="Figure (.png, .jpg, .pdf, .svg).")
@click.option("--count", type=click.IntRange(1, 10), default=4, show_default=True, help="Keypoints to show.")
@click.option(
    "--lambda",
    "log_polar_lambda",
    type=Number(min=1),
    default=96.0,
    show_default=True,
    help="Support of the log-polar pattern in keypoint sizes.",
)
@click.option(
    "--cartesian-lambda",
    type=Number(min=1),
    default=12.0,
    show_default=True,
    help="Support of the cartesian pattern in keypoint sizes.",
)
@click.option(
    "--inner-radius",
    type=WordOrFraction("covariant", "paper"),
    default=0.5,
    show_default=True,
    help="Innermost log-polar radius: tied to the keypoint (covariant), 1 px (paper), or between.",
)
@click.option("--antialias/--no-antialias", default=True, show_default=True, help="Look up in a Gaussian pyramid.")
@max_size_option
def patches(
    image: Path,
    output: Path,
    count: int,
    log_polar_lambda: float,
    cartesian_lambda: float,
    inner_radius: Any,
    antialias: bool,
    max_size: int,
) -> None:
    """Show where both sampling patterns sample an image, and the resulting patches. Needs the extra 'viz'."""
    from logpolar.errors import ImageError, LogpolarError
    from logpolar.images import read_downscaled
    from logpolar.keypoints.detection import SiftDetector
    from logpolar.sampling import Cartesian, LogPolar
    from logpolar.viewing.drawing import write_figure
    from logpolar.viewing.plotting import plot_patches, spread_keypoints

    if output.suffix.lower() not in (".png", ".jpg", ".jpeg", ".pdf", ".svg"):
        raise LogpolarError(f"{output}: figures are written as .png, .jpg, .pdf or .svg")
    check_output(output, image)
    gray, _ = read_downscaled(image, max_size or None)
    # Prefer keypoints whose support lies within the image, where patches show most.
    fitting = 0.4 * min(gray.shape) / (log_polar_lambda / 2)
    keypoints = spread_keypoints(SiftDetector(None)(gray), count, max(gray.shape) / 6, fitting)
    if len(keypoints) == 0:
        raise ImageError(f"{image}: no keypoints found")
    figure = plot_patches(
        gray,
        keypoints,
        LogPolar(log_polar_lambda, inner_radius=inner_radius, antialias=antialias),
        Cartesian(cartesian_lambda, antialias=antialias),
    )
    write_figure(output, figure)
    click.echo(f"wrote {output}, {len(keypoints)} keypoints")
