"""logpolar extract"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from logpolar.cli.options import (
    continuing,
    executor_option,
    extraction_options,
    extractor_opener,
    make_workers,
    masks_option,
    shard_size_option,
    shards_of,
    warn_about_jobs,
)
from logpolar.errors import ImageError

SHARD_SIZE = 256


@click.command(epilog="Example: logpolar extract photos/ 'more/*.png' -o features.h5 --jobs 4")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    required=True,
    help="HDF5 file, or collection, to add to.",
)
@extraction_options
@masks_option
@click.option(
    "--jobs",
    "-j",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    callback=warn_about_jobs,
    help="Images at a time.",
)
@executor_option
@shard_size_option("images", SHARD_SIZE)
@click.option("--overwrite", is_flag=True, help="Start over instead of adding to an existing file.")
def extract(
    paths: tuple[str, ...],
    output: Path,
    masks: Path | None,
    jobs: int,
    executor: str,
    shard_size: int | None,
    overwrite: bool,
    **extraction: Any,
) -> None:
    """Extract features of images, folders and globs into one file; tar files and URLs as well.

    The file is HDF5 in hloc's layout; with --shard-size it is a folder of such files. Rerun the
    command to resume. Unreadable images are listed at the end with exit code 1 (2 if there were no
    others).
    """
    from logpolar.features.batch import extract_images
    from logpolar.images.masks import find_masks
    from logpolar.images.remote import find_sources

    images = find_sources(paths)
    found = find_masks(masks, images) if masks else None
    opener = extractor_opener(**extraction)
    shards = shards_of(output, shard_size, SHARD_SIZE)
    with continuing(output):
        workers = make_workers(executor, jobs, 4, extraction["device"])
        report = extract_images(images, output, opener, workers, overwrite, True, masks=found, shard_size=shards)
    if len(report.failed) == 1 == len(images):
        raise ImageError(next(iter(report.failed.values())))
    for reason in report.failed.values():
        click.echo(f"logpolar: left out: {reason}", err=True)
    if len(report.failed) == len(images):
        raise ImageError(f"none of the {len(images)} images could be read")
    skipped = f", {report.skipped} already present" if report.skipped else ""
    click.echo(f"{output}: added {report.done} of {len(images)} images with {report.keypoints} keypoints{skipped}")
    if found is not None:
        for name in images.keys() - found.keys():
            click.echo(f"logpolar: {name}: no mask in {masks}", err=True)
        click.echo(f"{report.masked} keypoints on masked pixels dropped")
    if report.failed:
        sys.exit(1)
