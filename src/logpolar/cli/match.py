"""logpolar match"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logpolar.cli.options import (
    ENGINE,
    command_line,
    detector_of,
    extraction_options,
    look_extraction,
    model_of_look,
    open_extractor,
    take_extraction,
)
from logpolar.cli.settings import make_settings, settings_options
from logpolar.errors import LogpolarError
from logpolar.geometry.options import EstimationOptions, SecondLookOptions
from logpolar.matching.options import MatchingOptions, PairMatchingOptions
from logpolar.settings import DEFAULT_CONTRAST, DetectionOptions
from logpolar.storage.atomic_io import check_output, check_page, check_picture
from logpolar.viewing.options import DrawingOptions

if TYPE_CHECKING:
    from logpolar.evaluation.descriptors.extraction import MethodExtractor
    from logpolar.features.extractor import Extractor
    from logpolar.features.features import Features
    from logpolar.geometry.second_look import MatchedImages
    from logpolar.geometry.two_view import RelativePose
    from logpolar.geometry.verification import Cameras, VerifiedMatches

_CAMERA = "Camera of the {} photo, to print the pose: 'exif', or as COLMAP writes it (PINHOLE,640,480,500,500,320,240)."


@click.command(epilog="Example: logpolar match a.jpg b.jpg -o matches.png --h5 matches.h5")
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Picture of the matches (.png, .jpg, .webp).")
@click.option("--html", type=click.Path(path_type=Path), help="Page to look at the matches one by one (.html).")
@click.option("--h5", type=click.Path(path_type=Path), help="File for features and matches (HDF5, replaced).")
@extraction_options
@settings_options(PairMatchingOptions)
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
@settings_options(SecondLookOptions)
@settings_options(DrawingOptions)
@click.option(
    "--compare",
    metavar="SPEC",
    help="Also match with this descriptor: rootsift, a model, ...; see `eval`. Both look once; with "
    "--second-look same, twice.",
)
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
    compare: str | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Match two photos and draw or store the result.

    With cameras, the pose of the second photo relative to the first is printed: X_second = R X_first + t, x to the
    right, y down, z forward. Two photos whose matches agree no better than chance are reported as such. --compare
    matches the same keypoints by another descriptor, with the same options, and adds its picture below.

    A second look (--second-look) matches the photos again with keypoints of a network, and then the region that both
    show, at the same scale and rotation: it finds several times as many matches where one photo is a close-up.
    """
    from logpolar.geometry.second_look import match_images
    from logpolar.matching.learned import matching_of_looks

    names = _names(first, second)
    _check_outputs(output, h5, first, second, names)
    if html:
        check_page(html, first, second)
    cameras = _cameras(first, second, camera_a, camera_b)
    model = geometry or ("pose" if cameras else "fundamental")
    if model == "pose" and not cameras:
        raise LogpolarError("--geometry pose needs --camera-a and --camera-b")
    matching, estimation = make_settings(PairMatchingOptions, values), make_settings(EstimationOptions, values)
    second_look, device = make_settings(SecondLookOptions, values), values["device"]
    looks = _open_looks(compare, second_look.second_look, matching, take_extraction(values))
    for own in looks.values():
        matching_of_looks(matching, [extractor.settings for extractor in own])  # refuses before anything is extracted
    size = second_look.region_size
    results = {
        name: match_images(
            first, second, own, model, matching, estimation, cameras=cameras, region_size=size, device=device
        )
        for name, own in looks.items()
    }
    _print(first, second, results, as_json)
    extractors, pair = next(iter(looks.values())), next(iter(results.values()))
    if h5:
        _store(h5, names, pair, extractors)
    if output:
        _draw(output, first, second, results, make_settings(DrawingOptions, values))
    if html:
        _write_page(html, (first, second), pair, extractors[0], matching, cameras)
    for written in (h5, output, html):
        if written:
            click.echo(f"wrote {written}", err=as_json)


def _open_looks(
    compare: str | None, second_look: str, matching: MatchingOptions, extraction: dict[str, Any]
) -> dict[str, list[Extractor]]:
    """Our extractors of the first and second look and, to compare with, those of another descriptor; by name."""
    ours = open_extractor(**extraction)
    opened: dict[str, list[Extractor]] = {ours.model.name: [ours]}
    if compare:
        other = _open_other(compare, extraction)
        if other.name in opened:
            raise LogpolarError(f"--compare {compare}: give another descriptor than the model itself")
        opened[other.name] = [other]
    if second_look == "auto":
        second_look = "none" if compare else model_of_look(second_look, ours.model.card.precision)
    if second_look == "same":
        return {name: own * 2 for name, own in opened.items()}
    if second_look != "none":
        if compare:
            raise LogpolarError("--compare needs --second-look same or none: another model's would mix the two")
        opened[ours.model.name] += [open_extractor(**look_extraction(extraction, second_look))]
    return opened


def _open_other(compare: str, extraction: dict[str, Any]) -> MethodExtractor:
    from logpolar.evaluation.descriptors.extraction import MethodExtractor

    engine = {name: extraction[name] for name in ENGINE}
    detection = make_settings(DetectionOptions, extraction)
    _, detector = detector_of(extraction["model"], extraction["detector"])
    if detector != "sift":
        detector = f"logpolar:{detector},orientation={extraction['orientation']}"
    keypoints = extraction["max_keypoints"]
    return MethodExtractor(compare, keypoints, detection, engine, detector, contrast=DEFAULT_CONTRAST)


def _print(first: Path, second: Path, results: dict[str, MatchedImages], as_json: bool) -> None:
    pair, *others = results.values()
    sides = [("a", first, pair.first), ("b", second, pair.second)]
    if as_json:
        about = {key: _image(path, features) for key, path, features in sides}
        compared = {name: each.found.to_dict() for name, each in list(results.items())[1:]}
        result = {**about, **pair.found.to_dict(), **({"compare": compared} if others else {})}
        click.echo(json.dumps(result, indent=1))
        return
    for _, path, features in sides:
        width, height = features.image_size
        click.echo(f"{path}: {width} x {height}, {len(features)} keypoints")
    click.echo(_table(results) if others else _text(pair.found))


def _table(results: dict[str, MatchedImages]) -> str:
    """A line for each descriptor."""
    rows = [("descriptor", "matches", "inliers", "pose")]
    for name, pair in results.items():
        found = pair.found
        inliers = "-" if found.model == "none" else str(found.geometry.inlier_count)
        if found.model != "none" and not found.geometry.common_scene:
            pose = "no common scene found"
        else:
            pose = f"{_rotation(found.pose)}, {_translation(found.pose)}" if found.pose else "-"
        rows.append((name, str(len(found.matches)), inliers, pose))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]}".rstrip() for row in rows
    )


def _text(found: VerifiedMatches) -> str:
    """The result in a few lines."""
    from logpolar.geometry.verification import MODEL_NAMES

    geometry, lines = found.geometry, [f"{len(found.matches)} matches"]
    if found.added:
        lines[0] += f", {found.added} of them by a second look"
    if found.model == "none":
        return lines[0]
    agree = f"of them agree with one {MODEL_NAMES[found.model]} ({found.threshold:g} px)"
    if not geometry.common_scene:
        reason = f"{geometry.inlier_count} {agree}, no more than by chance"
        return "\n".join([*lines, f"no common scene found: {reason if geometry.inlier_count else 'no agreement'}"])
    lines.append(f"{geometry.inlier_count} {agree}")
    if pose := found.pose:
        lines += [_rotation(pose), _translation(pose)]
    return "\n".join(lines)


def _rotation(pose: RelativePose) -> str:
    angle, axis = pose.axis_angle
    return f"rotation: {angle:.2f} degrees about ({_numbers(axis)})"


def _translation(pose: RelativePose) -> str:
    if not pose.baseline:
        return "translation: none (no baseline: a rotation explains the matches)"
    return f"translation: towards ({_numbers(pose.translation)})"


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


def _store(path: Path, names: tuple[str, str], pair: MatchedImages, looks: list[Extractor]) -> None:
    from logpolar.matching.files import PairWriter

    settings, found = looks[0].settings, pair.found
    if found.looks:
        settings = {**settings, "second_look": looks[1].settings}
    with PairWriter(path, settings, overwrite=True) as writer:
        for name, each in dict(zip(names, (pair.first, pair.second), strict=True)).items():
            writer.add(name, each)
        common_scene = None if found.model == "none" else found.geometry.common_scene
        writer.add_matches(*names, len(pair.first), found.matches, common_scene)


def _draw(path: Path, first: Path, second: Path, results: dict[str, MatchedImages], options: DrawingOptions) -> None:
    from logpolar.images import read_image
    from logpolar.images.exif import read_orientation
    from logpolar.viewing.drawing import draw_matches, stack, write_picture

    images = read_image(first), read_image(second)
    orientations = read_orientation(first), read_orientation(second)
    pictures = []
    for name, pair in results.items():
        found = pair.found
        caption, good = _caption(found), found.geometry.inliers
        if found.model != "none" and not found.geometry.common_scene:
            good = good & False
        pictures.append(
            draw_matches(
                *images,
                found.first_xy,
                found.second_xy,
                good,
                f"{name}: {caption}" if len(results) > 1 else caption,
                quality=-found.matches.distances,
                options=options,
                orientations=orientations,
            )
        )
    write_picture(path, stack(pictures) if len(pictures) > 1 else pictures[0])


def _caption(found: VerifiedMatches) -> str:
    if found.model == "none":
        return f"{len(found.matches)} matches"
    if not found.geometry.common_scene:
        return f"no common scene found ({len(found.matches)} matches)"
    return f"{found.geometry.inlier_count} of {len(found.matches)} matches agree"


def _write_page(
    path: Path,
    photos: tuple[Path, Path],
    pair: MatchedImages,
    extractor: Extractor,
    matching: MatchingOptions,
    cameras: Cameras | None,
) -> None:
    from logpolar.viewing.pages.pair import Side, write_pair_page

    sides, found = (Side.open(photos[0], pair.first), Side.open(photos[1], pair.second)), pair.found
    sampling, threshold = extractor.model.sampling, found.threshold or 0.0
    write_pair_page(path, sides, found, sampling, matching, threshold, cameras=cameras, command=command_line())


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
