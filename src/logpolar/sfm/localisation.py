"""Poses of new photos in a model that `logpolar sfm` made, by features of the same kind.

The photo's features are matched with those of the model's photos; a match with a keypoint that observes a 3D point
gives a correspondence between image and world. COLMAP estimates the pose from them and refines it; its covariance gives
the uncertainty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.errors import LogpolarError, StorageError
from logpolar.features.extractor import Extractor
from logpolar.features.features import Features
from logpolar.features.files import FeatureFile
from logpolar.keypoints.detection import SiftDetector
from logpolar.matching.nearest import match_features
from logpolar.matching.options import MatchingOptions
from logpolar.matching.retrieval import find_centres, pool, shipped_centres
from logpolar.sfm.cameras import CameraOptions, read_calibration, reader_options
from logpolar.sfm.mapper import MODELS, read_report
from logpolar.sfm.pipeline import FEATURES
from logpolar.sfm.pycolmap_compat import import_pycolmap_4, quiet
from logpolar.sfm.workspace import read_model
from logpolar.storage.atomic_io import check_place
from logpolar.types import FloatArray

FEWEST_INLIERS = 12
"""A pose with fewer is not trusted."""


@dataclass(frozen=True)
class LocalisedPhoto:
    """Pose of a photo, X_camera = R(quaternion) X + translation, or the reason why there is none."""

    name: str
    quaternion: tuple[float, float, float, float] = (1, 0, 0, 0)  # w, x, y, z
    translation: tuple[float, float, float] = (0, 0, 0)
    centre: tuple[float, float, float] = (0, 0, 0)
    inliers: int = 0
    matches: int = 0  # correspondences with points of the model
    rotation_sigma: float = math.nan  # degrees
    position_sigma: float = math.nan  # in the model's unit
    focal: float = 0.0
    reason: str = ""


@dataclass(frozen=True, eq=False)
class _View:
    """A photo of the model: features that observe points, and the points (N, 3)."""

    features: Features
    points: NDArray[np.float64]
    summary: FloatArray


class Localiser:
    """Localises photos in the model in ``folder``, which `logpolar sfm` wrote; the model is not changed."""

    def __init__(
        self,
        folder: str | Path,
        cameras: CameraOptions | None = None,
        matching: MatchingOptions | None = None,
        neighbours: int = 20,
        threads: int = 0,
    ) -> None:
        self._pycolmap = import_pycolmap_4("localisation")
        folder = Path(folder)
        report = read_report(folder)
        if report is None or not (folder / FEATURES).is_file():
            raise StorageError(f"{folder}: no finished model of `logpolar sfm` with its {FEATURES}")
        self.model = read_model(folder / MODELS / str(report.model))
        self._cameras, self._matching, self._neighbours = cameras or CameraOptions(), matching, neighbours
        self._calibration = read_calibration(self._cameras)
        with FeatureFile(folder / FEATURES) as file:
            self._extractor = _extractor_like(file.settings, file.path, threads)
            images = [self.model.images[number] for number in sorted(self.model.reg_image_ids())]
            names = [image.name for image in images]
            shipped = shipped_centres(file.settings)
            self._centres = (
                find_centres(names, lambda name: file.read(name).descriptors) if shipped is None else shipped
            )
            self._views = [self._view(file, image) for image in images]

    def _view(self, file: FeatureFile, image: Any) -> _View:
        features = file.read(image.name)
        if len(features) != len(image.points2D):
            raise StorageError(f"{file.path}: the features of {image.name} are not those of the model")
        rows = [row for row, point in enumerate(image.points2D) if point.has_point3D()]
        xyz = [self.model.points3D[image.points2D[row].point3D_id].xyz for row in rows]
        kept = np.array(rows, np.intp)
        seen = replace(features, keypoints=features.keypoints[kept], descriptors=features.descriptors[kept])
        summary = pool(features.descriptors, self._centres)
        return _View(seen, np.array(xyz, np.float64).reshape(-1, 3), summary)

    def localise(self, photos: Iterable[Path]) -> Iterator[LocalisedPhoto]:
        """One result per photo; a photo that cannot be read or localised has a reason."""
        for path in photos:
            try:
                yield self._localise(path)
            except LogpolarError as error:
                yield LocalisedPhoto(path.name, reason=str(error))

    def _localise(self, path: Path) -> LocalisedPhoto:
        features = self._extractor.extract(path)
        camera = self._camera(path, features.image_size)
        xy, xyz = self._correspondences(features)
        estimation = self._pycolmap.AbsolutePoseEstimationOptions()
        refinement = self._pycolmap.AbsolutePoseRefinementOptions()
        refinement.refine_focal_length = not camera.has_prior_focal_length
        with quiet():
            found = None
            if len(xy) >= FEWEST_INLIERS:
                found = self._pycolmap.estimate_and_refine_absolute_pose(
                    xy.astype(np.float64) + 0.5, xyz, camera, estimation, refinement, return_covariance=True
                )
        if found is None or found["num_inliers"] < FEWEST_INLIERS:
            count = 0 if found is None else int(found["num_inliers"])
            words = f"{path}: not localised: {count} inliers of {len(xy)} matches"
            return LocalisedPhoto(path.name, matches=len(xy), inliers=count, reason=words)
        pose = found["cam_from_world"]
        x, y, z, w = (float(value) for value in pose.rotation.quat)
        rotation, position = _sigmas(found.get("covariance"), pose)
        return LocalisedPhoto(
            path.name,
            (w, x, y, z),
            _three(pose.translation),
            _three(pose.inverse().translation),
            int(found["num_inliers"]),
            len(xy),
            rotation,
            position,
            float(camera.mean_focal_length()),
        )

    def _camera(self, path: Path, size: tuple[int, int]) -> Any:
        if self._calibration and (reason := self._calibration.misfit(size)):
            raise LogpolarError(f"{path}: {reason}")
        options = reader_options(self._pycolmap, self._cameras, self._calibration)
        with quiet():
            camera = self._pycolmap.infer_camera_from_image(str(path), options)
        if self._calibration:
            camera.params, camera.has_prior_focal_length = list(self._calibration.parameters), True
        return camera

    def _correspondences(self, features: Features) -> tuple[FloatArray, NDArray[np.float64]]:
        """Positions (N, 2) and points (N, 3): the best match of each keypoint over the most similar photos."""
        summary = pool(features.descriptors, self._centres)
        order = np.argsort([-float(view.summary @ summary) for view in self._views])[: self._neighbours]
        best: dict[int, tuple[float, NDArray[np.float64]]] = {}
        for number in order:
            view = self._views[number]
            matches = match_features(features, view.features, self._matching)
            for (row, other), distance in zip(matches.indices.tolist(), matches.distances.tolist(), strict=True):
                if row not in best or distance < best[row][0]:
                    best[row] = distance, view.points[other]
        rows = sorted(best)
        points = np.array([best[row][1] for row in rows], np.float64).reshape(-1, 3)
        return features.keypoints.xy[np.array(rows, np.intp)], points


def _extractor_like(settings: dict[str, Any], path: Path, threads: int) -> Extractor:
    """The extractor that made a feature file."""
    detector = dict(settings.get("detector", {}))
    if detector.pop("name", "") != "SiftDetector":
        raise StorageError(f"{path}: its keypoints are not SIFT's as `logpolar sfm` detects them")
    sizes = {"max_size": settings.get("max_size"), "min_size": settings.get("min_size", 0)}
    extractor = Extractor(settings["model"], SiftDetector(**detector), threads=threads, **sizes)
    if extractor.settings["model_hash"] != settings.get("model_hash"):
        raise StorageError(f"{path}: was made with another version of the model {settings['model']}")
    return extractor


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    x, y, z = (float(value) for value in values)
    return x, y, z


def _sigmas(covariance: Any, pose: Any) -> tuple[float, float]:
    """Standard deviations of the rotation in degrees and of the position, from the covariance of (rotation, shift)."""
    if covariance is None or not np.isfinite(covariance).all():
        return math.nan, math.nan
    rotation = np.array(covariance)[:3, :3]
    matrix, shift = pose.rotation.matrix(), np.array(pose.translation)
    cross = np.array([[0, -shift[2], shift[1]], [shift[2], 0, -shift[0]], [-shift[1], shift[0], 0]])
    jacobian = np.concatenate([-matrix.T @ cross, -matrix.T], axis=1)  # of the centre -R^T t by both
    centre = jacobian @ np.array(covariance) @ jacobian.T
    return math.degrees(math.sqrt(max(np.trace(rotation), 0))), math.sqrt(max(float(np.trace(centre)), 0))


def write_with_photos(model: Any, found: Sequence[LocalisedPhoto], photos: Sequence[Path], output: Path) -> int:
    """Write a copy of the model with the localised photos to a new folder; the number of photos."""
    pycolmap = import_pycolmap_4("localisation")
    if output.exists():
        raise StorageError(f"{output}: exists already; choose another name")
    check_place(output)
    count, names = 0, {str(image.name) for image in model.images.values()}
    for each, path in zip(found, photos, strict=True):
        if each.reason:
            continue
        if each.name in names:
            raise StorageError(f"{path}: the model has a photo called {each.name} already")
        with quiet():
            camera = pycolmap.infer_camera_from_image(str(path))
        camera.camera_id = max(model.cameras.keys(), default=0) + 1
        model.add_camera_with_trivial_rig(camera)
        w, x, y, z = each.quaternion
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(np.array([x, y, z, w])), np.array(each.translation))
        number = max(model.images.keys(), default=0) + 1
        image = pycolmap.Image(name=each.name, camera_id=camera.camera_id, image_id=number)
        model.add_image_with_trivial_frame(image, pose)
        names.add(each.name)
        count += 1
    output.mkdir()
    model.write(str(output))
    return count
