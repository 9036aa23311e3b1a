"""What `logpolar sfm` writes beside a model for people to look at: report.json, points.ply, summary.png."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from logpolar.sfm.diagnosis import diagnose, weakest_photos, why_unregistered
from logpolar.sfm.facts import Facts, SceneModel
from logpolar.sfm.mapper import DATABASE, MODELS, POINTS, REPORT, SUMMARY, NoModelError, SfmReport
from logpolar.sfm.picture import draw_summary
from logpolar.sfm.survey import find_database, find_models, survey
from logpolar.storage.atomic_io import write_whole
from logpolar.storage.documents import rounded, versions, write_json
from logpolar.viewing.drawing import write_picture


def write_reports(photos: Path, output: Path, report: SfmReport, command: str) -> None:
    """Write all reports on what ``pipeline.reconstruct`` left in ``output``; ``command`` made it."""
    facts = survey(find_models(output / MODELS), find_database(output), report.left_out)
    write_json(output / REPORT, asdict(report) | describe(facts, photos, command), indent=1)
    write_points(output / POINTS, facts.models[0])
    write_picture(output / SUMMARY, draw_summary(photos, output, report))


@contextlib.contextmanager
def explained(photos: Path, output: Path, command: str) -> Iterator[None]:
    """Within this, a reconstruction without a model leaves a report that says why."""
    try:
        yield
    except NoModelError:
        facts = survey({}, output / DATABASE)
        write_json(output / REPORT, {"made_of": ""} | describe(facts, photos, command), indent=1)
        raise


def describe(facts: Facts, photos: Path | None, command: str) -> dict[str, Any]:
    """Figures of every photo and camera, findings, versions and the command, for JSON."""
    reasons = why_unregistered(facts)
    lenses = [asdict(lens) | {"focal": rounded(lens.focal, 2)} for lens in facts.lenses.values()]
    return {
        "command": command,
        "versions": versions("pycolmap", "numpy"),
        "folder": None if photos is None else str(photos.resolve()),
        "images": [_image(facts, row, reasons) for row in range(len(facts.photos))],
        "weakest": [facts.photos[row].name for row in weakest_photos(facts)],
        "cameras": lenses,
        "diagnosis": [
            asdict(finding) | {"photos": [facts.photos[row].name for row in finding.photos]}
            for finding in diagnose(facts)
        ],
    }


def _image(facts: Facts, row: int, reasons: Mapping[int, str]) -> dict[str, Any]:
    figures = asdict(facts.photos[row])
    return figures | {
        "error": None if figures["error"] is None else rounded(figures["error"], 3),
        "verified_pairs": int((facts.verified & (facts.pairs.rows == row).any(axis=1)).sum()),
        "not_registered": reasons.get(row, ""),
    }


def write_points(path: Path, model: SceneModel) -> None:
    """Points with colours as a binary PLY file, which MeshLab, CloudCompare and Blender open."""
    kind = [*((axis, "<f4") for axis in "xyz"), *((colour, "u1") for colour in ("red", "green", "blue"))]
    table = np.empty(len(model.points), kind)
    for column, values in zip(table.dtype.names or (), (*model.points.T, *model.colours.T), strict=True):
        table[column] = values
    properties = [f"property {'float' if code == '<f4' else 'uchar'} {name}" for name, code in kind]
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {len(table)}", *properties, "end_header", ""]
    write_whole(path, "\n".join(lines).encode() + table.tobytes())
