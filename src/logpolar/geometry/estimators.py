"""The robust estimators: PoseLib's LO-RANSAC and OpenCV's USAC (MAGSAC++), with one interface.

Every function takes matched points (N, 2), finite and at least as many as its model needs, an error threshold in their
units and a seed, and returns the model (None if there is none) with a mask (N,) of its inliers. The same input gives
the same output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import cv2
import numpy as np
import poselib
from numpy.typing import NDArray

from logpolar.types import Matrix

Mask: TypeAlias = NDArray[np.bool_]
Estimate: TypeAlias = tuple[Matrix | None, Mask]
"""A matrix: (3, 3), or the pose (3, 4) = [rotation | translation]."""

_CONFIDENCE = 0.99999
_ITERATIONS = 10000
_LEAST_ITERATIONS = 5000
"""Of PoseLib, whose own 1000 end before the best of several nearly equal models of a pair is found."""

_UNIT_CAMERA = {"model": "SIMPLE_PINHOLE", "width": 1, "height": 1, "params": [1.0, 0.0, 0.0]}


def _poselib_pose(first: Matrix, second: Matrix, threshold: float, seed: int) -> Estimate:
    options = {"max_epipolar_error": threshold, "seed": seed, "min_iterations": _LEAST_ITERATIONS}
    pose, info = poselib.estimate_relative_pose(first, second, _UNIT_CAMERA, _UNIT_CAMERA, options, {})
    return np.array(pose.Rt, np.float64), _mask(info["inliers"])


def _poselib_fundamental(first: Matrix, second: Matrix, threshold: float, seed: int) -> Estimate:
    matrix, info = poselib.estimate_fundamental(first, second, {"max_epipolar_error": threshold, "seed": seed}, {})
    return np.array(matrix, np.float64), _mask(info["inliers"])


def _poselib_homography(first: Matrix, second: Matrix, threshold: float, seed: int) -> Estimate:
    matrix, info = poselib.estimate_homography(first, second, {"max_reproj_error": threshold, "seed": seed}, {})
    return np.array(matrix, np.float64), _mask(info["inliers"])


def _usac(threshold: float, seed: int) -> Any:
    """The settings of ``cv2.USAC_MAGSAC``, with a seed."""
    options = cv2.UsacParams()
    options.score, options.loMethod = cv2.SCORE_METHOD_MAGSAC, cv2.LOCAL_OPTIM_SIGMA
    options.threshold, options.confidence, options.maxIterations = threshold, _CONFIDENCE, _ITERATIONS
    options.loIterations, options.randomGeneratorState = 10, seed
    return options


def _opencv_pose(first: Matrix, second: Matrix, threshold: float, seed: int) -> Estimate:
    none = np.zeros(0)
    matrix, mask = cv2.findEssentialMat(first, second, np.eye(3), np.eye(3), none, none, _usac(threshold, seed))
    essential, inliers = _whole(matrix), _mask(mask)
    if essential is None or not inliers.any():
        return None, inliers
    in_front, rotation, translation, _ = cv2.recoverPose(essential, first[inliers], second[inliers], np.eye(3))
    return (np.concatenate([rotation, translation], axis=1) if in_front else None), inliers


def _opencv_fundamental(first: Matrix, second: Matrix, threshold: float, seed: int) -> Estimate:
    matrix, mask = cv2.findFundamentalMat(first, second, _usac(threshold, seed))
    return _whole(matrix), _mask(mask)


def _opencv_homography(first: Matrix, second: Matrix, threshold: float, seed: int) -> Estimate:
    matrix, mask = cv2.findHomography(first, second, _usac(threshold, seed))
    return _whole(matrix), _mask(mask)


def _whole(matrix: Any) -> Matrix | None:
    """OpenCV's matrix, if there is one."""
    return None if matrix is None or np.shape(matrix) != (3, 3) else np.asarray(matrix, np.float64)


def _mask(inliers: Any) -> Mask:
    return np.asarray([] if inliers is None else inliers).reshape(-1).astype(np.bool_)


Estimator: TypeAlias = Callable[[Matrix, Matrix, float, int], Estimate]

POSE: dict[str, Estimator] = {"poselib": _poselib_pose, "opencv": _opencv_pose}
FUNDAMENTAL: dict[str, Estimator] = {"poselib": _poselib_fundamental, "opencv": _opencv_fundamental}
HOMOGRAPHY: dict[str, Estimator] = {"poselib": _poselib_homography, "opencv": _opencv_homography}
