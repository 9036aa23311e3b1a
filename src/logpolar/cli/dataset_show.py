"""logpolar dataset show"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from logpolar.cli.dataset import print_rejects
from logpolar.cli.options import command_line
from logpolar.storage.atomic_io import check_page

if TYPE_CHECKING:
    from logpolar.datasets.files import CorrespondenceFile
    from logpolar.datasets.statistics import Statistics


@click.command(
    short_help="Show the content of a correspondence file.", epilog="Example: logpolar dataset show trevi.h5 -o trevi/"
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Folder for pictures (needs the extra 'viz').")
@click.option("--html", type=click.Path(path_type=Path), help="Page with tables and pictures (.html).")
@click.option("--count", type=click.IntRange(1, 50), default=8, show_default=True, help="Image pairs to show.")
@click.option("--split", type=click.Choice(["train", "validation", "test"]), help="Sample pairs of this split only.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed of the sample.")
def show(file: Path, output: Path | None, html: Path | None, count: int, split: str | None, seed: int) -> None:
    """Show the content of a correspondence file: statistics and, with -o, pictures, with --html, a page of both.

    statistics.png: scale ratio, orientation residual, both in the classes of the paper's Fig. 4, rejects by cause.
    pairs.jpg: image pairs with lines. depth.png: images above their depth, red where unknown. patches.png: patch pairs
    in both samplings.
    """
    from logpolar.datasets.files import CorrespondenceFile
    from logpolar.datasets.statistics import Statistics

    if html is not None:
        check_page(html, file)
    with CorrespondenceFile(file) as opened:
        statistics = Statistics.of(opened)
        _print(opened, statistics)
        if output is not None:
            _draw(opened, statistics, output, count, split, seed)
        if html is not None:
            _write_page(opened, statistics, html, count, split, seed)


def _write_page(
    file: CorrespondenceFile, statistics: Statistics, html: Path, count: int, split: str | None, seed: int
) -> None:
    import numpy as np

    from logpolar.datasets.page import write_dataset_page
    from logpolar.datasets.pictures import sample_pairs

    sample = sample_pairs(file, 100, np.random.default_rng(seed), split)
    write_dataset_page(html, file, statistics, sample, count, command_line())
    click.echo(f"wrote {html}")


def _print(file: CorrespondenceFile, statistics: Statistics) -> None:
    counts = file.counts()
    state = "" if file.complete else "; INCOMPLETE, rerun the command that builds it"
    click.echo(f"{file.path}: {file.settings.get('source')}{state}")
    for what, number in counts.items():
        click.echo(f"  {what.replace('_', ' '):28}{number:>10}")
    for split in ("train", "validation", "test"):
        click.echo(f"  pairs of {split:19}{len(file.pairs(split)):>10}")
    quantiles = ", ".join(f"{100 * q:g} %: {value:.2f}x" for q, value in statistics.quantiles().items())
    click.echo(f"scale mismatch: {quantiles or 'none'}; above 2x: {100 * statistics.fraction_above(2):.2f} %")
    print_rejects(file)
    for reason in file.summary.get("left_out", {}).values():
        click.echo(f"  left out: {reason}")


def _draw(
    file: CorrespondenceFile, statistics: Statistics, output: Path, count: int, split: str | None, seed: int
) -> None:
    import numpy as np

    from logpolar.datasets.pictures import draw_depths, draw_pairs, draw_patches, plot_statistics, sample_pairs
    from logpolar.errors import LogpolarError
    from logpolar.sampling import Cartesian, LogPolar
    from logpolar.viewing.drawing import write_figure, write_picture

    if output.exists() and not output.is_dir():
        raise LogpolarError(f"{output}: is a file, not a folder")
    random = np.random.default_rng(seed)
    many = sample_pairs(file, 100, random, split)
    if not many:
        which = f" in the split {split}" if split else ""
        raise LogpolarError(f"{file.path}: no correspondences to show{which}")
    figure = plot_statistics(statistics, file.path.name)
    output.mkdir(parents=True, exist_ok=True)
    write_figure(output / "statistics.png", figure, dpi=110)
    write_picture(output / "pairs.jpg", draw_pairs(file, many[:count]))
    write_picture(output / "patches.png", draw_patches(file, many, LogPolar(inner_radius=0.5), Cartesian()))
    made = ["statistics.png", "pairs.jpg", "patches.png"]
    shown = sorted({image for number in many[:count] for image in file.pair_images[number].tolist()})
    depths = draw_depths(file, shown)
    if depths is not None:
        write_picture(output / "depth.png", depths)
        made.append("depth.png")
    click.echo(f"wrote {', '.join(made)} to {output}")
