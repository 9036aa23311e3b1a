"""Several attempts of the incremental mapper, of which the one that explains most verified matches is kept.

COLMAP takes lenses of unknown focal length for 1.2 times the photo's longer side. Those of phones, drones and
action cameras are near 0.75. Where a scene is flat, the first two photos with a focal length far from the true one
give a wrong model, and no later adjustment mends it. So few photos of unknown lenses are mapped from both, and where
the models explain little, others start from other photos.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from logpolar.sfm.explanation import explained_matches, linked_photos
from logpolar.sfm.mapper import FEW_PHOTOS, MapperOptions, NoModelError, run_mapper
from logpolar.sfm.pycolmap_compat import open_database
from logpolar.sfm.runaways import runaways, set_focal_length

ENOUGH, MOST = 0.6, 0.5
"""Models that explain this fraction of their verified matches, and have this fraction of the photos that match any
other, are kept without another attempt."""

STARTS = (None, 0.75, None, 0.75)
"""Of each attempt, unknown focal lengths relative to the longer side; None: as COLMAP guessed them."""


@dataclass(frozen=True, eq=False)
class _Attempt:
    place: Path
    models: dict[int, Any]
    explained: int  # matches
    good: bool


def map_best(
    database: Path, photos: Path, output: Path, options: MapperOptions, on_image: Callable[[], object] | None = None
) -> dict[int, Any]:
    """As ``run_mapper``, of a few attempts with other seeds and focal lengths the one that explains most matches.

    They end when the models of the best have most photos, explain most of their matches and no camera has run away.
    Few photos of unknown lenses get two: a wrong model may explain much, and mapping takes little beside describing.
    """
    attempts = len(STARTS) if options.mapper == "incremental" else 1
    linked, free = linked_photos(database), not options.fixed_intrinsics and _unknown_lenses(database)
    best: _Attempt | None = None
    least = 2 if free and linked <= FEW_PHOTOS else 1
    for number in range(attempts):
        place = output / f"attempt-{number}"
        place.mkdir()
        try:
            given = _starting_from(database, STARTS[number] if free else None, output)
            models = run_mapper(given, photos, place, replace(options, seed=options.seed + number), on_image)
        except NoModelError:  # with another seed there may be one
            if best is None and number + 1 == attempts:
                raise
            continue
        made = _judge(place, models, database, linked, free)
        if best is None or made.explained > best.explained:
            best = made
        if best.good and number + 1 >= least:
            break
        on_image = None  # they have been counted
    assert best is not None
    for folder in best.place.iterdir():
        folder.rename(output / folder.name)
    for number in range(attempts):
        shutil.rmtree(output / f"attempt-{number}", ignore_errors=True)
    for copy in output.glob("start-*.db"):
        copy.unlink()
    return best.models


def _judge(place: Path, models: dict[int, Any], database: Path, linked: int, free: bool) -> _Attempt:
    astray = [runaways(model) if free else set[int]() for model in models.values()]
    explained, total = explained_matches(models.values(), database, astray)
    names = {model.images[image].name for model in models.values() for image in model.reg_image_ids()}
    good = explained >= ENOUGH * total and len(names) >= MOST * linked and not any(astray)
    return _Attempt(place, models, explained, good)


def _unknown_lenses(database: Path) -> bool:
    with contextlib.closing(open_database(database)) as file:
        return any(not camera.has_prior_focal_length for camera in file.read_all_cameras())


def _starting_from(database: Path, start: float | None, output: Path) -> Path:
    """The database, or a copy in which unknown focal lengths are ``start`` times the longer side.

    A copy, since the process may be killed: the one of the project must not be left with other focal lengths.
    """
    if start is None:
        return database
    copy = output / f"start-{start:g}.db"
    shutil.copyfile(database, copy)
    with contextlib.closing(open_database(copy)) as file:
        for camera in file.read_all_cameras():
            if not camera.has_prior_focal_length:
                set_focal_length(camera, start)
                file.update_camera(camera)
    return copy
