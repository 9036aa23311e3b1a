"""logpolar match"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logpolar.cli.options import extraction_options, open_extractor, take_extraction
from logpolar.cli.settings import make_settings, settings_options
from logpolar.errors import LogpolarError
from logpolar.geometry.options import EstimationOptions
from logpolar.matching.options import MatchingOptions
from logpolar.storage.atomic_io import check_output, check_page, check_picture

if TYPE_CHECKING:
    from logpolar.features.extractor import Extractor
    from logpolar.features.features import Features
    from logpolar.geometry.verification import Cameras, VerifiedMatches

_CAMERA = "Camera of the {} photo, to print the pose: 'exif', or as COLMAP writes it (PINHOLE,640,480,500,500,320,240)."


@click.command(epilog="Example: logpolar match a.jpg b.jpg -o matches.png --h5 matches.h5")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Picture of the matches (.png, .jpg, .webp).")
@click.option("--html", type=click.Path(path_type=Path), help="Page to look at the matches one by one (.html).")
@click.option("--h5", type=click.Path(path_type=Path), help="File for features and matches (HDF5, replaced).")
@extraction_options
@settings_options(MatchingOptions)
@click.option(
    "--geometry",
    type=click.Choice(["fundamental", "homography", "pose", "none"]),
    show_default="pose with cameras, otherwise fundamental",
    help="Geometry to verify matches with: fundamental or pose for 3D scenes, homography for planar ones or a rotating "
    "camera.",
)
@click.option("--camera-a", metavar="CAMERA", help=_CAMERA.format("first"))
@click.option("--camera-b", metavar="CAMERA", help=_CAMERA.format("second"))
@settings_options(EstimationOptions)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def match(
    first: Path,
    second: Path,
    output: Path | None,
    html: Path | None,
    h5: Path | None,
    geometry: str | None,
    camera_a: str | None,
    camera_b: str | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Match two photos and draw or store the result.

    With cameras, the pose of the second photo relative to the first is printed: X_second = R X_first + t, x to the
    right, y down, z forward. Two photos whose matches agree no better than chance are reported as such.
    """
    from logpolar.geometry.verification import match_and_verify
    from logpolar.matching.learned import check_features

    names = _names(first, second)
    _check_outputs(output, h5, first, second, names)
    if html:
        check_page(html, first, second)
    cameras = _cameras(first, second, camera_a, camera_b)
    model = geometry or ("pose" if cameras else "fundamental")
    if model == "pose" and not cameras:
        raise LogpolarError("--geometry pose needs --camera-a and --camera-b")
    matching, estimation = make_settings(MatchingOptions, values), make_settings(EstimationOptions, values)
    device, extractor = values["device"], open_extractor(**take_extraction(values))
    check_features(matching, extractor.settings)
    ours, theirs = extractor.extract(first), extractor.extract(second)
    found = match_and_verify(ours, theirs, model, matching, estimation, cameras=cameras, device=device)
    if as_json:
        images = {key: _image(path, each) for key, path, each in (("a", first, ours), ("b", second, theirs))}
        click.echo(json.dumps({**images, **found.to_dict()}, indent=1))
    else:
        for path, each in ((first, ours), (second, theirs)):
            click.echo(f"{path}: {each.image_size[0]} x {each.image_size[1]}, {len(each)} keypoints")
        click.echo(_text(found))
    if h5:
        _store(h5, names, (ours, theirs), extractor.settings, found)
    if output:
        _draw(output, first, second, found)
    if html:
        _write_page(html, (first, second), (ours, theirs), found, extractor, matching, found.threshold or 0.0, cameras)
    for written in (h5, output, html):
        if written:
            click.echo(f"wrote {written}", err=as_json)


def _text(found: VerifiedMatches) -> str:
    """The result in a few lines."""
    from logpolar.geometry.verification import MODEL_NAMES

    geometry, lines = found.geometry, [f"{len(found.matches)} matches"]
    if found.model == "none":
        return lines[0]
    agree = f"of them agree with one {MODEL_NAMES[found.model]} ({found.threshold:g} px)"
    if not geometry.common_scene:
        reason = f"{geometry.inlier_count} {agree}, no more than by chance"
        return "\n".join([*lines, f"no common scene found: {reason if geometry.inlier_count else 'no agreement'}"])
    lines.append(f"{geometry.inlier_count} {agree}")
    if pose := found.pose:
        angle, axis = pose.axis_angle
        lines.append(f"rotation: {angle:.2f} degrees about ({_numbers(axis)})")
        lines.append(f"translation: towards ({_numbers(pose.translation)})")
    return "\n".join(lines)


def _numbers(vector: Any) -> str:
    return ", ".join(f"{value:.4f}" for value in vector)


def _image(path: Path, features: Features) -> dict[str, Any]:
    width, height = features.image_size
    return {"image": str(path), "width": width, "height": height, "keypoints": len(features)}


def _cameras(first: Path, second: Path, camera_a: str | None, camera_b: str | None) -> Cameras | None:
    from logpolar.geometry.intrinsics import Intrinsics

    if not camera_a and not camera_b:
        return None
    if not camera_a or not camera_b:
        raise LogpolarError("a pose needs the cameras of both photos: --camera-a and --camera-b")
    found = [
        Intrinsics.from_exif(path) if text == "exif" else Intrinsics.parse(text)
        for path, text in ((first, camera_a), (second, camera_b))
    ]
    return found[0], found[1]


def _store(
    path: Path, names: tuple[str, str], features: tuple[Features, Features], settings: Any, found: VerifiedMatches
) -> None:
    from logpolar.matching.files import PairWriter

    with PairWriter(path, settings, overwrite=True) as writer:
        for name, each in dict(zip(names, features, strict=True)).items():
            writer.add(name, each)
        common_scene = None if found.model == "none" else found.geometry.common_scene
        writer.add_matches(*names, len(features[0]), found.matches, common_scene)


def _draw(path: Path, first: Path, second: Path, found: VerifiedMatches) -> None:
    from logpolar.images import read_image
    from logpolar.viewing.drawing import draw_matches, write_picture

    caption, good = "", found.geometry.inliers
    if found.model != "none" and not found.geometry.common_scene:
        caption, good = f"no common scene found ({len(found.matches)} matches)", good & False
    elif found.model != "none":
        caption = f"{found.geometry.inlier_count} of {len(found.matches)} matches agree"
    write_picture(
        path, draw_matches(read_image(first), read_image(second), found.first_xy, found.second_xy, good, caption)
    )


def _write_page(
    path: Path,
    photos: tuple[Path, Path],
    features: tuple[Features, Features],
    found: VerifiedMatches,
    extractor: Extractor,
    matching: MatchingOptions,
    threshold: float,
    cameras: Cameras | None,
) -> None:
    from logpolar.viewing.pages.pair import Side, write_pair_page

    sides = Side.open(photos[0], features[0]), Side.open(photos[1], features[1])
    command = shlex.join(["logpolar", *sys.argv[1:]])
    sampling = extractor.model.sampling
    write_pair_page(path, sides, found, sampling, matching, threshold, cameras=cameras, command=command)


def _check_outputs(output: Path | None, h5: Path | None, first: Path, second: Path, names: tuple[str, str]) -> None:
    if output:
        check_picture(output, first, second)
    if h5:
        check_output(h5, first, second)
        if output and h5.resolve() == output.resolve():
            raise LogpolarError(f"{h5}: the picture and the HDF5 file need different names")
        _check_replaceable(h5, names)


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
