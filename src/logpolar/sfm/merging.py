"""Models that share photos, joined into one.

COLMAP aligns the smaller model to the larger one by what their common photos observe. The photos of both, with the
larger model's poses and cameras where both have them, are triangulated anew from the database; then COLMAP's
incremental mapper goes on from there: it completes and merges tracks, adjusts the whole, and may register further
photos. A joint model that has lost photos, or does not fit the matches as well as its parts, is not kept.
"""

from __future__ import annotations

import shutil
from itertools import combinations
from pathlib import Path
from typing import Any

from logpolar.sfm.known_poses import KnownPoses, triangulate
from logpolar.sfm.pycolmap_compat import import_pycolmap

FEWEST_COMMON = 3
"""Photos that two models must share to be aligned: two leave a rotation open if their points are poor."""
MOST_LOST = 0.05
"""Fraction of the photos of both models that the joint one may lose."""
WORSE, SLACK = 1.25, 0.05
"""Largest reprojection error: so many times that of the worse part, and so many pixels more."""


def merge_models(database: Path, photos: Path, folder: Path, models: dict[int, Any], settings: Any) -> dict[int, Any]:
    """Models by number after joining, those in ``folder`` replaced; ``settings``: pycolmap's incremental options.

    A joint model has the number of the larger part. What COLMAP cannot join stays apart.
    """
    pycolmap, models = import_pycolmap("structure from motion"), dict(models)
    failed: set[tuple[int, int]] = set()
    if not hasattr(pycolmap, "align_reconstructions_via_reprojections"):
        return models
    while pair := _next_pair(models, failed):
        larger, smaller = pair
        place = folder / "merging"
        place.mkdir()
        try:
            joint = _join(database, photos, place, models[larger], models[smaller], settings)
            if joint is None:
                failed.add(pair)
                continue
            for number in pair:
                shutil.rmtree(folder / str(number), ignore_errors=True)
                del models[number]
            (folder / str(larger)).mkdir()
            joint.write(str(folder / str(larger)))
            models[larger] = joint
            failed = {each for each in failed if larger not in each}  # it is another model now
        finally:
            shutil.rmtree(place, ignore_errors=True)
    return models


def _next_pair(models: dict[int, Any], failed: set[tuple[int, int]]) -> tuple[int, int] | None:
    """The two models, the larger first, that share most photos."""
    best, most = None, FEWEST_COMMON - 1
    for pair in combinations(sorted(models, key=lambda n: (-models[n].num_reg_images(), n)), 2):
        common = len(_names(models[pair[0]]) & _names(models[pair[1]]))
        if pair not in failed and common > most:
            best, most = pair, common
    return best


def _names(model: Any) -> set[str]:
    return {str(model.images[number].name) for number in model.reg_image_ids()}


def _join(database: Path, photos: Path, place: Path, larger: Any, smaller: Any, settings: Any) -> Any | None:
    """One model of both, or None."""
    import pycolmap

    aligned = pycolmap.align_reconstructions_via_reprojections(smaller, larger)
    if aligned is None:
        return None
    try:
        start = triangulate(database, photos, place, _both(place, larger, smaller, aligned), settings)[0]
        if not start.num_points3D():
            return None
        (place / "joint").mkdir()
        found = pycolmap.incremental_mapping(
            str(database), str(photos), str(place / "joint"), settings, input_path=str(place / "0")
        )
    except (RuntimeError, ValueError):  # COLMAP gives up; the parts are fine
        return None
    joint = max(found.values(), key=lambda model: model.num_reg_images(), default=None)
    wanted = _names(larger) | _names(smaller)
    if joint is None or len(wanted - _names(joint)) > MOST_LOST * len(wanted):
        return None
    return joint if fits_as_well(joint, larger, smaller) else None


def fits_as_well(model: Any, *before: Any) -> bool:
    """Whether a model made of others fits its matches about as well as the worst of them."""
    errors = [each.compute_mean_reprojection_error() for each in before]
    return bool(model.compute_mean_reprojection_error() <= WORSE * max(errors) + SLACK)


def _both(place: Path, larger: Any, smaller: Any, aligned: Any) -> KnownPoses:
    """Poses of both models in the frame of the larger one, and their cameras."""
    poses: dict[str, tuple[float, ...]] = {}
    cameras: dict[str, Any] = {}
    for model, similarity in ((larger, None), (smaller, aligned)):
        for number in model.reg_image_ids():
            image = model.images[number]
            name, pose = str(image.name), image.cam_from_world()
            if name in poses:
                continue
            pose = pose if similarity is None else similarity.transform_camera_world(pose)
            x, y, z, w = (float(value) for value in pose.rotation.quat)
            poses[name] = (w, x, y, z, *(float(value) for value in pose.translation))
            cameras[name] = model.cameras[image.camera_id]
    return KnownPoses(place, poses, cameras)
