"""logpolar match"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from logpolar.cli.options import extraction_options, open_extractor, ratio_option
from logpolar.cli.settings import Number
from logpolar.errors import LogpolarError
from logpolar.settings import DEFAULT_THRESHOLD
from logpolar.storage.atomic_io import check_output, check_picture


@click.command(epilog="Example: logpolar match a.jpg b.jpg -o matches.png --h5 matches.h5")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Picture of the matches (.png, .jpg, .webp).")
@click.option("--h5", type=click.Path(path_type=Path), help="File for features and matches (HDF5, replaced).")
@extraction_options
@ratio_option
@click.option(
    "--geometry",
    type=click.Choice(["fundamental", "homography", "none"]),
    default="fundamental",
    show_default=True,
    help="Geometry to verify matches with: fundamental for 3D scenes, homography for planar ones or a rotating camera.",
)
@click.option(
    "--threshold",
    type=Number(0, min_open=True),
    default=DEFAULT_THRESHOLD,
    show_default=True,
    help="Largest error of an inlier in pixels.",
)
def match(
    first: Path,
    second: Path,
    output: Path | None,
    h5: Path | None,
    ratio: float,
    geometry: str,
    threshold: float,
    **extraction: Any,
) -> None:
    """Match two photos and draw or store the result."""
    import numpy as np

    from logpolar.geometry.two_view import Geometry, estimate_fundamental, estimate_homography
    from logpolar.images import read_image
    from logpolar.matching.files import PairWriter
    from logpolar.matching.nearest import match_descriptors
    from logpolar.viewing.drawing import draw_matches, write_picture

    names = _names(first, second)
    if output:
        check_picture(output, first, second)
    if h5:
        check_output(h5, first, second)
        if output and h5.resolve() == output.resolve():
            raise LogpolarError(f"{h5}: the picture and the HDF5 file need different names")
        _check_replaceable(h5, names)
    extractor = open_extractor(**extraction)
    ours, theirs = extractor.extract(first), extractor.extract(second)
    matches = match_descriptors(ours.descriptors, theirs.descriptors, ratio=ratio, device=extraction["device"])
    here, there = ours.keypoints.xy[matches.indices[:, 0]], theirs.keypoints.xy[matches.indices[:, 1]]
    if geometry == "none":
        verified = Geometry(None, np.ones(len(matches), np.bool_))
    elif geometry == "homography":
        verified = estimate_homography(here, there, threshold)
    else:
        verified = estimate_fundamental(here, there, threshold)

    for path, found in ((first, ours), (second, theirs)):
        click.echo(f"{path}: {found.image_size[0]} x {found.image_size[1]}, {len(found)} keypoints")
    click.echo(f"{len(matches)} matches")
    if geometry != "none":
        click.echo(f"{verified.inlier_count} of them agree with one {geometry} ({threshold:g} px)")
    if h5:
        with PairWriter(h5, extractor.settings, overwrite=True) as writer:
            for name, found in {names[0]: ours, names[1]: theirs}.items():
                writer.add(name, found)
            writer.add_matches(*names, len(ours), matches)
        click.echo(f"wrote {h5}")
    if output:
        caption = f"{verified.inlier_count} of {len(matches)} matches agree" if geometry != "none" else ""
        picture = draw_matches(read_image(first), read_image(second), here, there, verified.inliers, caption)
        write_picture(output, picture)
        click.echo(f"wrote {output}")


def _check_replaceable(path: Path, names: tuple[str, str]) -> None:
    """Only an earlier result of the same two images may be replaced."""
    from logpolar.features.files import FeatureFile

    if path.exists():
        with FeatureFile(path) as file:
            others = set(file.names()) - set(names)
        if others:
            raise LogpolarError(f"{path}: holds other images ({len(others)}); choose another name")


def _names(first: Path, second: Path) -> tuple[str, str]:
    """File names; two different files of one name are prefixed with their folders' names."""
    if first.name != second.name or first.resolve() == second.resolve():
        return first.name, second.name
    first, second = first.resolve(), second.resolve()
    return f"{first.parent.name}/{first.name}", f"{second.parent.name}/{second.name}"
