"""Cameras that ran away: their focal length has become absurd, and they stand as far off.

A photo of flat ground from straight above looks the same through a longer lens from higher up. Where nothing else
decides, bundle adjustment lets focal length and height grow together, up to many thousand times the true ones. Such
cameras are put back: they get the focal length that the others have in the middle and no distortion, and their pose is
estimated anew. Then all is adjusted, first with their lenses held, then free; if they run away again, they stay held.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from logpolar.sfm.pycolmap_compat import import_pycolmap

_LEAST, _MOST, _MOST_EXTRA = 0.1, 10.0, 1.0
"""COLMAP's own limits of the focal length relative to the longer side, and of distortion."""

_FAR = 4.0
"""So many times above or below the middle of all, a focal length is suspicious."""

_USUAL = 1.2
"""COLMAP's guess, for want of a better one."""

_FEWEST, _MAX_ERROR = 12, 12.0
"""Inliers of a pose, and COLMAP's limit of their errors in pixels: photos with fewer are taken out."""

_LARGEST_ERROR, _LEAST_ANGLE = 4.0, 1.5
"""COLMAP's limits of the reprojection error in pixels, and of the angle between rays in degrees."""

Adjust = Callable[[Any, set[int]], object]
"""Bundle adjustment of a model, with the intrinsics of some cameras held."""


def runaways(model: Any) -> set[int]:
    """Numbers of the cameras whose focal length was not known and is absurd now."""
    numbers = {model.images[number].camera_id for number in model.reg_image_ids()}
    free = {number: model.cameras[number] for number in numbers}
    free = {number: camera for number, camera in free.items() if not camera.has_prior_focal_length}
    absurd = {number for number, camera in free.items() if camera.has_bogus_params(_LEAST, _MOST, _MOST_EXTRA)}
    middle = _middle(model, absurd)
    far = {number for number, camera in free.items() if not middle / _FAR <= _relative(camera) <= middle * _FAR}
    return absurd | far


def _relative(camera: Any) -> float:
    return float(camera.mean_focal_length() / max(camera.width, camera.height))


def set_focal_length(camera: Any, relative: float) -> None:
    """Of a camera of COLMAP, relative to the longer side."""
    parameters = np.array(camera.params)
    parameters[list(camera.focal_length_idxs())] = relative * max(camera.width, camera.height)
    camera.params = parameters


def _middle(model: Any, astray: set[int]) -> float:
    """Focal length in the middle of all cameras in use but these, relative to the longer side."""
    others = {model.images[number].camera_id for number in model.reg_image_ids()} - astray
    return float(np.median([_relative(model.cameras[number]) for number in others])) if others else _USUAL


def put_back(model: Any, adjust: Adjust) -> Any:
    """The model without runaways; the same if there are none."""
    astray = runaways(model)
    if not astray:
        return model
    held = copy.deepcopy(model)
    middle = _middle(held, astray)
    for number in sorted(astray):
        camera = held.cameras[number]
        parameters = np.array(camera.params)
        parameters[list(camera.extra_params_idxs())] = 0
        camera.params = parameters
        set_focal_length(camera, middle)
    for number in sorted(held.reg_image_ids()):
        image = held.images[number]
        if image.camera_id in astray and not _place(held, image):
            held.deregister_frame(image.frame_id)
    if not held.num_reg_images() or not held.num_points3D():
        return model
    _adjust(held, astray, adjust)
    free = copy.deepcopy(held)
    _adjust(free, set(), adjust)
    return held if runaways(free) else free


def _adjust(model: Any, held: set[int], adjust: Adjust) -> None:
    """Adjustment, after which COLMAP's limits of observations hold again."""
    adjust(model, held)
    pycolmap = import_pycolmap("structure from motion")
    pycolmap.ObservationManager(model).filter_all_points3D(_LARGEST_ERROR, _LEAST_ANGLE)
    model.update_point_3d_errors()


def _place(model: Any, image: Any) -> bool:
    """Estimate the pose of an image from the points it observes; whether there is one."""
    pycolmap = import_pycolmap("structure from motion")
    seen = [point for point in image.points2D if point.has_point3D()]
    if len(seen) < _FEWEST:
        return False
    options = pycolmap.AbsolutePoseEstimationOptions()
    options.ransac.max_error, options.ransac.random_seed = _MAX_ERROR, 0
    xyz = np.array([model.points3D[point.point3D_id].xyz for point in seen])
    camera = model.cameras[image.camera_id]
    found = pycolmap.estimate_and_refine_absolute_pose(np.array([point.xy for point in seen]), xyz, camera, options)
    if found is None or found["num_inliers"] < _FEWEST:
        return False
    image.frame.set_cam_from_world(camera.camera_id, found["cam_from_world"])
    return True
