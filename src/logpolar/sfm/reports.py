"""What `logpolar sfm` writes beside a model to look at: report.json, report.html, points.ply, summary.png."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from logpolar.errors import StorageError
from logpolar.sfm.diagnosis import diagnose, look_alikes, weakest_photos, why_unregistered
from logpolar.sfm.facts import Facts, SceneModel
from logpolar.sfm.mapper import DATABASE, MODELS, PAGE, POINTS, REPORT, SUMMARY, NoModelError, SfmReport
from logpolar.sfm.picture import draw_summary
from logpolar.sfm.scene_page import Provenance, read_pictures, write_scene_page
from logpolar.sfm.survey import find_database, find_models, survey
from logpolar.storage.atomic_io import write_whole
from logpolar.storage.documents import rounded, versions, write_json
from logpolar.storage.inputs import parse_json, read_bytes
from logpolar.viewing.drawing import write_picture


def write_reports(photos: Path, output: Path, report: SfmReport, command: str) -> None:
    """Write all reports on what ``pipeline.reconstruct`` left in ``output``; ``command`` made it."""
    facts = survey(find_models(output / MODELS), find_database(output), report.left_out)
    write_json(output / REPORT, asdict(report) | describe(facts, photos, command), indent=1)
    title, pictures = f"{photos.resolve().name}: reconstruction", read_pictures(photos, facts)
    write_scene_page(output / PAGE, facts, pictures, Provenance(title, command, report.seconds))
    write_points(output / POINTS, facts.models[0])
    write_picture(output / SUMMARY, draw_summary(facts, pictures, title))


@contextlib.contextmanager
def explained(photos: Path, output: Path, command: str) -> Iterator[None]:
    """Within this, a reconstruction without a model leaves a report that says why."""
    try:
        yield
    except NoModelError as error:
        facts = survey({}, output / DATABASE)
        write_json(output / REPORT, {"made_of": ""} | describe(facts, photos, command), indent=1)
        title, pictures = f"{photos.resolve().name}: no model", read_pictures(photos, facts)
        write_scene_page(output / PAGE, facts, pictures, Provenance(title, command))
        write_picture(output / SUMMARY, draw_summary(facts, pictures, title))
        raise NoModelError(f"{error}; {output / PAGE} says why") from error


def write_model_page(
    path: Path, folder: Path, photos: Path | None = None, database: Path | None = None, command: str = ""
) -> None:
    """Write the page of the models in a folder: of `logpolar sfm`, of COLMAP, or a model alone.

    ``photos``: their folder, by default that of the report beside the models, or ``images``; without it the page has no
    photos. ``database``: by default the one beside the models; without it the page knows nothing of matches.
    """
    for given in (folder, photos):
        if given is not None and not given.is_dir():
            raise StorageError(f"{given}: no such folder")
    models, database = find_models(folder), database or find_database(folder)
    if not models and database is None:
        raise StorageError(
            f"{folder}: no sparse model (cameras, images and points3D as .bin or .txt) and no {DATABASE}"
        )
    made = _read_details(database.parent if database else folder)
    facts = survey(models, database, made.get("left_out"))
    places = (photos, made.get("folder"), folder / "images")
    found = next((Path(place) for place in places if place and Path(place).is_dir()), None)
    source = Provenance(folder.resolve().name, made.get("command") or command, made.get("seconds") or {})
    write_scene_page(path, facts, read_pictures(found, facts), source)


def _read_details(folder: Path) -> dict[str, Any]:
    """What a report says beside the figures of the model; empty for a report that is not ours."""
    try:
        found = parse_json(read_bytes(folder / REPORT))
    except (StorageError, ValueError):
        return {}
    kinds = {"left_out": dict, "folder": str, "command": str, "seconds": dict}
    known = found if isinstance(found, dict) and "made_of" in found else {}
    return {name: known[name] for name, kind in kinds.items() if isinstance(known.get(name), kind)}


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
        "look_alikes": [_look_alike(facts, pair) for pair in look_alikes(facts)],
    }


def _look_alike(facts: Facts, pair: int) -> dict[str, Any]:
    known = None if facts.pairs.agreement is None else rounded(facts.pairs.agreement[pair], 3)
    return {
        "photos": [facts.photos[row].name for row in facts.pairs.rows[pair]],
        "inliers": int(facts.pairs.inliers[pair]),
        "common_points": int(facts.pairs.shared[pair]),
        "agreement": known,  # fraction of the matches that agree with the model; null: not checked
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
