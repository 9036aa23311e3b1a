"""Options of `logpolar eval` that decide which keypoints are described, and who describes which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from logpolar.cli.eval_output import Opened, Report, present
from logpolar.cli.options import Command, Number
from logpolar.errors import LogpolarError

if TYPE_CHECKING:
    from logpolar.evaluation.descriptors.keypoint_sources import KeypointSource
    from logpolar.evaluation.descriptors.registry import Descriptor

Groups = list[tuple["KeypointSource", list[tuple[str, "Descriptor"]]]]
"""Descriptors and their names by the keypoints that they describe."""


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

_detector_option = click.option(
    "--detector",
    default="sift",
    show_default=True,
    metavar="SPEC",
    help="Whose keypoints are described: sift, opencv:NAME, kornia:NAME; whole features have their own.",
)


def keypoint_options(command: Command) -> Command:
    """--detector, --fixed-size."""
    return _detector_option(fixed_size_option(command))


def take_source(values: dict[str, Any], keypoints: int, contrast: float, device: str) -> KeypointSource:
    """The keypoints that these options ask for, out of all values of a command; the others stay."""
    from logpolar.evaluation.descriptors.keypoint_sources import open_source

    try:
        return open_source(values.pop("detector"), keypoints, contrast, values.pop("fixed_size"), device)
    except ValueError as error:
        raise LogpolarError(str(error)) from error


def by_source(opened: Sequence[Opened], source: KeypointSource) -> Groups:
    """Names and descriptors by the keypoints they describe: the shared ones first, then each whole feature alone."""
    shared = [(name, descriptor) for name, descriptor in present(opened) if descriptor.own_keypoints is None]
    groups = [(source, shared)] if shared else []
    for name, descriptor in present(opened):
        if descriptor.own_keypoints is not None:
            if source.fixed_size is not None:
                raise LogpolarError(f"'{name}' has keypoints of its own, whose sizes --fixed-size cannot change")
            groups.append((descriptor.own_keypoints, [(name, descriptor)]))
    return groups


def note_keypoints(report: Report, opened: Sequence[Opened], source: KeypointSource) -> None:
    """Say whose keypoints the numbers are of, where it is not SIFT's alone."""
    if source.identity["kind"] != "sift":
        report.notes.append(f"Keypoints: {source.identity['kind']} {source.identity['class']}.")
    own = [name for name, descriptor in present(opened) if descriptor.own_keypoints is not None]
    if own:
        report.notes.append(f"On keypoints of their own: {', '.join(own)}.")
