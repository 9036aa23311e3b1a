"""logpolar demo"""

from __future__ import annotations

from pathlib import Path

import click

from logpolar.cli.options import model_option
from logpolar.cli.settings import Number
from logpolar.storage.atomic_io import check_picture


@click.command(
    short_help="Match a photo with a small, rotated view of itself.",
    epilog="Example: logpolar demo -o demo.png --zoom 4",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    default="demo.png",
    show_default=True,
    help="Picture to write (.png, .jpg, .webp).",
)
@model_option
@click.option(
    "--zoom", type=Number(1, 6), default=3.0, show_default=True, help="How many times smaller the second view is."
)
@click.option("--rotation", type=Number(), default=60.0, show_default=True, help="Rotation in degrees.")
@click.option(
    "--noise",
    type=Number(0, 50),
    default=4.0,
    show_default=True,
    help="Standard deviation of the noise, in gray levels of 255.",
)
def demo(output: Path, model: str, zoom: float, rotation: float, noise: float) -> None:
    """Match a photo with a smaller, rotated, tilted and noisy view of itself, and compare with RootSIFT.

    The photo ships with logpolar (NASA, public domain). The warp is known, so every match can be checked.
    """
    from logpolar.viewing.demo import CORRECT_WITHIN, demo_pair, demo_picture, run_demo
    from logpolar.viewing.drawing import write_picture

    check_picture(output)
    pair = demo_pair(zoom, rotation, noise)
    keypoints, results = run_demo(pair, model)
    before, after = (f"{view.shape[1]} x {view.shape[0]}" for view in (pair.first, pair.second))
    click.echo(f"A photo ({before}) and a view of it {zoom:g}x smaller, rotated by {rotation:g} degrees ({after}).")
    click.echo(f"keypoints: {len(keypoints[0])} and {len(keypoints[1])} (SIFT, the same for both descriptors)")
    click.echo(f"{'':16}{'matches':>9}{'correct':>9}{'':>7}{'inliers':>9}{'corner error':>15}")
    for result in results:
        precision = f"({100 * result.correct / result.matches:.0f} %)" if result.matches else ""
        error = f"{result.error:.2f} px" if result.error < 1e4 else "lost"
        click.echo(f"{result.name:16}{result.matches:9}{result.correct:9}{precision:>7}{result.inliers:9}{error:>15}")
    click.echo(f"correct: within {CORRECT_WITHIN:g} px of the true position; inliers: of the estimated homography")
    write_picture(output, demo_picture(results))
    click.echo(f"wrote {output}")
