"""Several attempts of the incremental mapper, of which the one that explains most verified matches is kept.

COLMAP takes lenses of unknown focal length for 1.2 times the photo's longer side. Those of phones, drones and
action cameras are near 0.75. Where a scene is flat, the first two photos with a focal length far from the true one
give a wrong model, and no later adjustment mends it. So where a first attempt explains little, others start from other
photos and from the other focal length.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from logpolar.sfm.explanation import explained_matches, linked_photos
from logpolar.sfm.mapper import MapperOptions, NoModelError, run_mapper
from logpolar.sfm.pycolmap_compat import open_database
from logpolar.sfm.runaways import runaways

ENOUGH, MOST = 0.6, 0.5
"""The models of an attempt that explain this fraction of their verified matches, and have this fraction of the photos
that match any other, are kept without another attempt."""

STARTS = (None, 0.75, None, 0.75)
"""Of each attempt, unknown focal lengths relative to the longer side; None: as COLMAP guessed them."""


def map_best(
    database: Path, photos: Path, output: Path, options: MapperOptions, on_image: Callable[[], object] | None = None
) -> dict[int, Any]:
    """As ``run_mapper``, of a few attempts with other seeds and focal lengths the one that explains most matches.

    One attempt is enough if its models have most photos, explain most of their matches and no camera has run away.
    """
    most = MOST * linked_photos(database)
    attempts = len(STARTS) if options.mapper == "incremental" else 1
    best: tuple[int, Path, dict[int, Any]] | None = None
    for number in range(attempts):
        place = output / f"attempt-{number}"
        place.mkdir()
        start = None if options.fixed_intrinsics else STARTS[number]
        try:
            given = _starting_from(database, start, output)
            models = run_mapper(given, photos, place, replace(options, seed=options.seed + number), on_image)
        except NoModelError:  # with another seed there may be one
            if best is None and number + 1 == attempts:
                raise
            continue
        astray = {model: set() if options.fixed_intrinsics else runaways(models[model]) for model in models}
        explained, total = explained_matches(models.values(), database, [astray[model] for model in models])
        if best is None or explained > best[0]:
            best = explained, place, models
        names = {model.images[image].name for model in models.values() for image in model.reg_image_ids()}
        if explained >= ENOUGH * total and len(names) >= most and not any(astray.values()):
            break
        on_image = None  # they have been counted
    assert best is not None
    for folder in best[1].iterdir():
        folder.rename(output / folder.name)
    for number in range(attempts):
        shutil.rmtree(output / f"attempt-{number}", ignore_errors=True)
    for copy in output.glob("start-*.db"):
        copy.unlink()
    return best[2]


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
                parameters = np.array(camera.params)
                parameters[list(camera.focal_length_idxs())] = start * max(camera.width, camera.height)
                camera.params = parameters
                file.update_camera(camera)
    return copy
