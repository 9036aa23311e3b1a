"""Two-view geometry, estimated robustly from matched points.

Convention:
    - points are in pixels of the original images, and so are matrices;
    - ``threshold`` is in pixels of the images as described: with ``scales`` (described over original size, see
      ``Features.scale``) an image that was downscaled before detection gets a larger tolerance in its own pixels;
    - a point that is not finite is never an inlier; without enough points, or with all on one line (within the
      threshold), there is no matrix and no inlier.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.geometry.estimators import FUNDAMENTAL, HOMOGRAPHY, POSE, Estimator
from logpolar.geometry.homography import warp_points
from logpolar.geometry.intrinsics import AnyCamera, rays_and_focal
from logpolar.geometry.options import EstimationOptions
from logpolar.geometry.significance import MIN_SIGNIFICANCE, measure_significance, sampson_error
from logpolar.images import resize_matrix, resize_points
from logpolar.types import Array, Matrix

Points: TypeAlias = Array
Scales: TypeAlias = tuple[float, float]

_PRECISE = 2.0

_ALMOST_ALL = 0.95
"""Fraction of the inliers that a rotation must explain for the camera not to have moved."""


@dataclass(frozen=True, eq=False)
class Geometry:
    """A matrix (3, 3) from the first image to the second, or None if there is none, and a mask (N,) of its inliers.

    ``significance``: minus the decimal logarithm of how often matches at random would agree as well; -inf without a
    matrix. See ``common_scene``.
    """

    matrix: Matrix | None
    inliers: NDArray[np.bool_]
    significance: float = -np.inf

    @property
    def inlier_count(self) -> int:
        return int(self.inliers.sum())

    @property
    def common_scene(self) -> bool:
        """Whether the inliers are more than chance explains: the images show the same thing."""
        return self.significance >= MIN_SIGNIFICANCE


@dataclass(frozen=True, eq=False)
class RelativePose(Geometry):
    """Pose of the second camera relative to the first: X_second = rotation @ X_first + translation.

    ``matrix`` is the essential matrix. The length of ``translation`` (3,) is unknown and set to 1. Both are None
    without a pose. Without a ``baseline``, a rotation alone explains the inliers, as of identical photos or a camera on
    a tripod: the translation is arbitrary.
    """

    rotation: Matrix | None = None
    translation: Matrix | None = None
    baseline: bool = True

    @property
    def axis_angle(self) -> tuple[float, Matrix]:
        """The rotation as an angle in degrees and its axis (3,); 0 about z without a pose."""
        rotation = np.eye(3) if self.rotation is None else self.rotation
        vector = np.asarray(cv2.Rodrigues(rotation)[0], np.float64).ravel()
        length = float(np.linalg.norm(vector))
        return float(np.degrees(length)), vector / length if length else np.array([0.0, 0.0, 1.0])


def estimate_pose(
    first: Points,
    second: Points,
    first_camera: AnyCamera,
    second_camera: AnyCamera,
    options: EstimationOptions | None = None,
    *,
    scales: Scales = (1.0, 1.0),
    **changes: Any,
) -> RelativePose:
    """Relative pose of two calibrated images from matched points (N, 2); needs 5.

    >>> pose = estimate_pose(a, b, "PINHOLE,640,480,500,500,320,240", matrix)     # doctest: +SKIP

    Cameras: ``Intrinsics``, a COLMAP camera string, or an intrinsic matrix (3, 3), which need not be triangular (as
    that of a rotated image is not). ``changes``: fields of ``EstimationOptions``, as keywords.
    """
    options = replace(options or EstimationOptions(), **changes)
    _check_points(first, second)
    rays, threshold = calibrated(first, second, first_camera, second_camera, options.threshold_of("pose"), scales)
    found = _solve(_POSE, *rays, threshold, options)
    if found.matrix is None:
        return RelativePose(None, found.inliers)
    pose, (first_rays, second_rays) = found.matrix, rays
    baseline = not _rotates_only(first_rays[found.inliers], second_rays[found.inliers], threshold)
    return RelativePose(_essential(pose), found.inliers, found.significance, pose[:, :3], _direction(pose), baseline)


def estimate_fundamental(
    first: Points,
    second: Points,
    options: EstimationOptions | None = None,
    *,
    scales: Scales = (1.0, 1.0),
    **changes: Any,
) -> Geometry:
    """Fundamental matrix, x2' F x1 = 0, of two uncalibrated images; needs 8 points.

    ``changes``: fields of ``EstimationOptions``, as keywords.
    """
    options = replace(options or EstimationOptions(), **changes)
    _check_points(first, second)
    here, there = described(first, scales[0]), described(second, scales[1])
    found = _solve(_FUNDAMENTAL, here, there, options.threshold_of("fundamental"), options)
    if found.matrix is None:
        return found
    return replace(found, matrix=_normalised(_resize(scales[1]).T @ found.matrix @ _resize(scales[0])))


def estimate_homography(
    first: Points,
    second: Points,
    options: EstimationOptions | None = None,
    *,
    scales: Scales = (1.0, 1.0),
    **changes: Any,
) -> Geometry:
    """Homography that maps points (N, 2) of the first image to the second; needs 4.

    For planar scenes and purely rotating cameras. ``changes``: fields of ``EstimationOptions``, as keywords.
    """
    options = replace(options or EstimationOptions(), **changes)
    _check_points(first, second)
    here, there = described(first, scales[0]), described(second, scales[1])
    found = _solve(_HOMOGRAPHY, here, there, options.threshold_of("homography"), options)
    if found.matrix is None:
        return found
    matrix = _refined(found.matrix, here[found.inliers], there[found.inliers])
    return replace(found, matrix=_normalised(np.linalg.inv(_resize(scales[1])) @ matrix @ _resize(scales[0])))


def calibrated(
    first: Points,
    second: Points,
    first_camera: AnyCamera,
    second_camera: AnyCamera,
    threshold: float,
    scales: Scales,
) -> tuple[tuple[Matrix, Matrix], float]:
    """Points as rays of their cameras, and the threshold in their units: at the mean of the two cameras' pixels."""
    first_rays, first_focal = rays_and_focal(first, first_camera)
    second_rays, second_focal = rays_and_focal(second, second_camera)
    pixel = (1 / (first_focal * scales[0]) + 1 / (second_focal * scales[1])) / 2
    return (first_rays, second_rays), threshold * pixel


def _check_points(first: Points, second: Points) -> None:
    shapes = np.shape(first), np.shape(second)
    if shapes[0] != shapes[1] or shapes[0][1:] != (2,):
        raise ValueError(f"matched points must have shapes (N, 2), not {shapes[0]} and {shapes[1]}")


def _solve(kind: _Kind, first: Matrix, second: Matrix, threshold: float, options: EstimationOptions) -> Geometry:
    """A finite model, its inliers and their significance; points and threshold in the same units."""
    usable = np.flatnonzero(np.isfinite(np.concatenate([first, second], axis=1)).all(axis=1))
    inliers = np.zeros(len(first), np.bool_)
    if len(usable) < kind.minimum:
        return Geometry(None, inliers)
    here, there = first[usable], second[usable]
    if min(_width(here), _width(there)) <= threshold:
        return Geometry(None, inliers)
    try:
        model, mask = kind.estimators[options.estimator](here, there, threshold, options.seed)
    except cv2.error:  # degenerate points, for example all identical
        return Geometry(None, inliers)
    if model is None or not np.isfinite(model).all() or not model.any() or mask.sum() < kind.minimum:
        return Geometry(None, inliers)
    inliers[usable] = mask
    significance = measure_significance(
        partial(kind.error, model), here, there, mask, threshold, kind.sample, kind.models
    )
    return Geometry(model, inliers, significance)


def _width(points: Matrix) -> float:
    """Spread of points (N, 2) across the line that fits them best: 0 at one place or on one line."""
    return float(np.linalg.svd(points - points.mean(axis=0), compute_uv=False)[-1] / np.sqrt(len(points)))


def _refined(matrix: Matrix, first: Matrix, second: Matrix) -> Matrix:
    """Least squares over the most precise inliers.

    Most keypoints are localised within a fraction of a pixel, but inliers may be off by the whole threshold, and a few
    of those would outweigh all others at the image's corners. So points beyond ``_PRECISE`` standard deviations,
    estimated from the median, are left out.
    """
    error = _transfer_error(matrix, first, second)
    for _ in range(3):
        precise = error <= _PRECISE * 1.4826 * np.median(error)
        if precise.sum() <= 4:
            break
        better = np.asarray(cv2.findHomography(first[precise], second[precise])[0], np.float64)
        after = _transfer_error(better, first, second) if better.shape == (3, 3) else np.array([np.inf])
        if not np.median(after) < np.median(error):
            break
        matrix, error = better, after
    return matrix


def _transfer_error(homography: Matrix, first: Matrix, second: Matrix) -> Matrix:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.linalg.norm(warp_points(homography, first)[0] - second, axis=1))


def _pose_error(pose: Matrix, first: Matrix, second: Matrix) -> Matrix:
    return sampson_error(_essential(pose), first, second)


def _rotates_only(first: Matrix, second: Matrix, threshold: float) -> bool:
    """Whether the rotation that fits rays (N, 2) best leaves almost all of them within the threshold."""
    units = [np.concatenate([rays, np.ones((len(rays), 1))], axis=1) for rays in (first, second)]
    units = [rays / np.linalg.norm(rays, axis=1, keepdims=True) for rays in units]
    left, _, right = np.linalg.svd(units[1].T @ units[0])
    rotation = left @ np.diag([1, 1, np.linalg.det(left @ right)]) @ right
    apart = np.linalg.norm(units[0] @ rotation.T - units[1], axis=1)
    return bool((apart <= threshold).mean() >= _ALMOST_ALL)


def _essential(pose: Matrix) -> Matrix:
    x, y, z = _direction(pose)
    return np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ pose[:, :3]


def _direction(pose: Matrix) -> Matrix:
    """The translation, of length 1."""
    return np.asarray(pose[:, 3] / max(float(np.linalg.norm(pose[:, 3])), 1e-12))


def _resize(scale: float) -> Matrix:
    """``described`` as a matrix."""
    return resize_matrix((1, 1), (scale, scale))


def described(points: Points, scale: float) -> Matrix:
    """Points of the original image in the image as described."""
    return np.asarray(resize_points(np.asarray(points, np.float64), scale), np.float64)


def _normalised(matrix: Matrix) -> Matrix:
    """With 1 in the last place, unless that is 0; then of norm 1."""
    last = float(matrix[2, 2])
    return np.asarray(matrix / (last if abs(last) > 1e-12 * np.abs(matrix).max() else np.linalg.norm(matrix)))


@dataclass(frozen=True, eq=False)
class _Kind:
    """A kind of model: how it is estimated, and what significance depends on."""

    estimators: Mapping[str, Estimator]
    error: Callable[[Matrix, Matrix, Matrix], Matrix]  # of matches, given the model
    minimum: int  # matches needed
    sample: int  # matches in a minimal sample
    models: int  # most models of a sample


_POSE = _Kind(POSE, _pose_error, 5, 5, 10)
_FUNDAMENTAL = _Kind(FUNDAMENTAL, sampson_error, 8, 7, 3)
_HOMOGRAPHY = _Kind(HOMOGRAPHY, _transfer_error, 4, 4, 1)
