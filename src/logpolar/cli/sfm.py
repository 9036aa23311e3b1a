"""logpolar sfm"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from logpolar.cli.options import (
    command_line,
    continuing,
    detector_of,
    extraction_options,
    extractor_opener,
    jobs_option,
    look_extraction,
    masks_option,
    model_of_look,
    pairs_file_option,
    take_extraction,
)
from logpolar.cli.settings import Number, make_settings, settings_options
from logpolar.errors import LogpolarError
from logpolar.matching.options import MatchingOptions
from logpolar.settings import DEFAULT_MAX_KEYPOINTS
from logpolar.sfm.mapper import MODELS, PAGE, REPORT, NoModelError, SfmReport, check_claim
from logpolar.sfm.pipeline import SfmInputs, SfmOptions
from logpolar.sfm.quality import DEFAULT_QUALITY, QUALITIES, QUALITY_NAMES, Quality

if TYPE_CHECKING:
    from logpolar.features.batch import OpenExtractor

_PATH = click.Path(path_type=Path)


@click.command(
    short_help="Reconstruct a folder of photos with COLMAP.",
    epilog="Example: logpolar sfm photos/ model/ --pairing retrieval --jobs 4",
)
@click.argument("photos", type=_PATH)
@click.argument("output", type=_PATH)
@click.option(
    "--quality",
    type=click.Choice(QUALITY_NAMES),
    default=DEFAULT_QUALITY,
    show_default=True,
    help="Number of keypoints, image size, refinement and mapper together; other options override it.",
)
@extraction_options
@settings_options(SfmOptions)
@click.option("--poses", type=_PATH, help="Known poses (COLMAP model or text file): triangulate only.")
@masks_option
@click.option("--features", type=_PATH, help="Feature file or collection of the photos: nothing is extracted.")
@click.option("--georegister", metavar="SYSTEM", help="Align to GPS: enu (metres), or a code such as EPSG:32632.")
@click.option("--control", type=_PATH, help="Ground control points to check --georegister, as in OpenDroneMap.")
@click.option("--fps", type=Number(0.01, 240), default=2.0, show_default=True, help="Frames per second of a video.")
@pairs_file_option
@settings_options(MatchingOptions)
@jobs_option
@click.option("--overwrite", is_flag=True, help="Start over instead of resuming.")
@click.option("--quiet", "-q", is_flag=True, help="Print errors only.")
@click.option("--verbose", "-v", is_flag=True, help="Print COLMAP's log as well.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def sfm(ctx: click.Context, /, photos: Path, output: Path, **settings: Any) -> None:
    """Reconstruct PHOTOS, a folder or a video, into OUTPUT/sparse: features, matches, verification, COLMAP's mapper.

    If photos are missing from the model, their pairs are looked at again, see --second-look, and all is mapped anew.
    Rerun the command to resume, to add new photos or to drop removed ones. OUTPUT also holds the feature and match
    files, the COLMAP database, report.html to look at, report.json, points.ply and summary.png; a folder with a
    COLMAP project from elsewhere is refused. Exit code 1: no model, which report.html explains, most photos missing
    from it, or photos that could not be used. Needs the extra 'sfm'.
    """
    from logpolar.images.preparation import is_video
    from logpolar.sfm.georegistration import check_positions, check_systems
    from logpolar.sfm.pipeline import reconstruct
    from logpolar.sfm.pycolmap_compat import verbose
    from logpolar.sfm.reports import explained, write_reports

    _apply_quality(ctx, settings, quality := QUALITIES[settings.pop("quality")])
    if is_video(photos) and _left_open(ctx, "camera_mode"):
        settings["camera_mode"] = "single"  # frames have no EXIF data that would tell COLMAP so
    command = command_line()
    device = settings["device"]
    extraction = {**take_extraction(settings), "contrast_threshold": quality.contrast_threshold}
    opener = extractor_opener(**extraction)
    silent, as_json = settings.pop("quiet"), settings.pop("as_json")
    say = (lambda line: None) if silent or as_json else click.echo
    options = make_settings(SfmOptions, settings)
    again = _look_opener(options.second_look, extraction)
    system, control = settings.pop("georegister"), settings.pop("control")
    if control and not system:
        raise LogpolarError("--control needs --georegister")
    if system:
        check_systems(system, control)
    photos, skipped = _prepare(photos, output, settings.pop("fps"), say)
    if system:
        check_positions(photos)
    inputs = SfmInputs(*(settings.pop(name) for name in ("pairs", "masks", "poses", "features")))
    run = settings.pop("jobs"), settings.pop("overwrite"), not silent, say, device, _warn
    with continuing(output), verbose(settings.pop("verbose")):
        try:
            with explained(photos, output, command):
                matching = make_settings(MatchingOptions, settings)
                report = reconstruct(photos, output, opener, options, matching, inputs, *run, again)
        except NoModelError as error:
            _warn(str(error))
            sys.exit(1)
    write_reports(photos, output, report, command)
    if as_json:
        click.echo((output / REPORT).read_text())
    elif not silent:
        _print(output, report)
    placed = not system or _georegister(photos, output, report, system, control, say)
    sys.exit(max(_judge(output, report), int(skipped), int(not placed)))


for _option in sfm.params:
    if _option.name in ("max_keypoints", "max_size"):
        _option.show_default = "by --quality"  # type: ignore[attr-defined]


def _apply_quality(ctx: click.Context, settings: dict[str, Any], quality: Quality) -> None:
    """Settings that the command line leaves open are those of the preset."""
    for name in ("max_keypoints", "max_size", "refine"):
        if _left_open(ctx, name):
            settings[name] = getattr(quality, name)
    settings["ba_iterations"] = quality.ba_iterations


def _look_opener(second_look: str, extraction: dict[str, Any]) -> OpenExtractor | None:
    """Opens the extractors of second looks, whose keypoints are for one region each: as many as `match` finds."""
    from logpolar.models import load_model

    if second_look == "none":
        return None
    few = extraction | {"max_keypoints": DEFAULT_MAX_KEYPOINTS}
    if second_look == "same":
        return extractor_opener(**few)
    descriptor, _ = detector_of(extraction["model"], extraction.get("detector"))
    model = model_of_look(second_look, load_model(descriptor).card.precision)
    opener = extractor_opener(**look_extraction(few, model))
    if second_look != "auto":
        opener(threads=1)  # a model that cannot be opened is told before hours of other work
    return opener


def _left_open(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.DEFAULT


def _prepare(photos: Path, output: Path, fps: float, say: Callable[[str], None]) -> tuple[Path, bool]:
    """The folder of photos that COLMAP can read, and whether some could not be converted."""
    from logpolar.images.preparation import prepare_photos

    check_claim(output)
    made = prepare_photos(photos, output / "photos", fps)
    if made.frames:
        say(f"{photos}: {made.frames} frames in {made.folder}")
    if made.converted:
        say(f"{made.converted} photos converted to JPEG in {made.folder}, which COLMAP reads")
    if made.unread:
        say("not read: " + ", ".join(f"{count} x {kind}" for kind, count in sorted(made.unread.items())))
    for reason in made.failed.values():
        _warn(f"left out: {reason}")
    return made.folder, bool(made.failed)


def _georegister(
    photos: Path, output: Path, report: SfmReport, system: str, control: Path | None, say: Callable[[str], None]
) -> bool:
    """Whether it went well; if not, the model is there all the same."""
    from logpolar.sfm.georegistration import GEOREGISTERED, georegister, read_positions

    positions = read_positions(photos, [image.name for image in report.registered])
    place = output / GEOREGISTERED
    try:
        record = georegister(output / MODELS / str(report.model), place, positions, system, control)
    except LogpolarError as error:
        _warn(str(error))
        return False
    say(f"{place}: {record.system}, add the offset {record.offset}")
    for what, found in (("GPS positions", record.gps), ("control points", record.control)):
        if found:
            axes = f"{found.east:.3g} / {found.north:.3g} / {found.up:.3g} m"
            say(f"{found.count} {what}: east / north / up {axes} RMS, {found.median:.3g} m median")
    return True


def _warn(line: str) -> None:
    click.echo(f"logpolar: {line}", err=True)


def _judge(output: Path, report: SfmReport) -> int:
    """The exit code; a failure is said with its reason."""
    if report.failed:
        findings = json.loads((output / REPORT).read_text()).get("diagnosis", [])
        why = "; ".join(f"{each['title']}: {each['advice']}" for each in findings[:1])
        words = f"only {len(report.registered)} of {report.photos} photos were registered"
        _warn(f"reconstruction failed: {words}" + (f" ({why})" if why else ""))
    return int(bool(report.failed or report.left_out))


def _print(output: Path, report: SfmReport) -> None:
    readable = report.photos - len(report.left_out)
    click.echo(f"{output}: {len(report.registered)} of {readable} photos registered, {report.points} points")
    lengths = f"mean track length {report.mean_track_length:.2f}"
    click.echo(f"{lengths}, mean reprojection error {report.mean_reprojection_error:.2f} px")
    if report.models > 1:
        click.echo(f"COLMAP made {report.models} models; these figures are of the largest, number {report.model}")
    click.echo(f"wrote {output / MODELS} and {output / PAGE}")
