"""Poses of new photos in a model that `logpolar sfm` made, by features of the same kind.

The photo's features are matched with those of the model's photos; a match with a keypoint that observes a 3D point
gives a correspondence between image and world. COLMAP estimates the pose from them and refines it; its covariance gives
the uncertainty.

The camera is, in this order: the calibration that was given; that of the model, if all its photos share one and it
agrees with the photo's size and EXIF data; else COLMAP's guess from EXIF data, whose focal length is estimated with the
pose unless EXIF knows it.
"""

from __future__ import annotations

import copy
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
from logpolar.sfm.pipeline import FEATURES, MERGED
from logpolar.sfm.pycolmap_compat import import_pycolmap_4, quiet
from logpolar.sfm.workspace import read_model
from logpolar.storage.atomic_io import check_place
from logpolar.types import FloatArray

FEWEST_INLIERS = 12
"""A pose with fewer is not trusted."""


SAME_FOCAL = 0.1
"""Relative difference of focal lengths up to which EXIF data may mean the camera of the model."""


@dataclass(frozen=True)
class PhotoCamera:
    """The camera that a pose was computed with."""

    kind: str  # COLMAP's name of the camera model
    width: int
    height: int
    parameters: tuple[float, ...]
    number: int | None = None  # of the model's camera, if it is that


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
    camera: PhotoCamera | None = None
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
            self._shared = _shared_camera(self.model, images)
            centres = shipped_centres(file.settings)
            if centres is None:
                names = [image.name for image in images]
                centres = find_centres(names, lambda name: file.read(name).descriptors)
            self._centres = centres
            counts = _merged_counts(folder / MERGED, [image.name for image in images])
            self._views = [self._view(file, image, counts.get(image.name)) for image in images]

    def _view(self, file: FeatureFile, image: Any, merged: int | None) -> _View:
        """``merged``: its number of keypoints with those of second looks, which follow the features and are left out:
        their descriptors are of another model."""
        features = file.read(image.name)
        if len(image.points2D) not in (len(features), merged):
            raise StorageError(f"{file.path}: the features of {image.name} are not those of the model")
        rows = [row for row, point in enumerate(image.points2D[: len(features)]) if point.has_point3D()]
        try:
            xyz = [self.model.points3D[image.points2D[row].point3D_id].xyz for row in rows]
        except KeyError as error:
            raise StorageError(f"the model is damaged: {image.name} observes a point that is not in it") from error
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
        estimation.ransac.random_seed = 0
        refinement = self._pycolmap.AbsolutePoseRefinementOptions()
        unknown = not camera.has_prior_focal_length
        estimation.estimate_focal_length = refinement.refine_focal_length = unknown
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
            self._used(camera),
        )

    def _used(self, camera: Any) -> PhotoCamera:
        number = camera.camera_id if self._shared is not None and camera.camera_id == self._shared.camera_id else None
        parameters = tuple(float(value) for value in camera.params)
        return PhotoCamera(str(camera.model.name), int(camera.width), int(camera.height), parameters, number)

    def _camera(self, path: Path, size: tuple[int, int]) -> Any:
        if self._calibration and (reason := self._calibration.misfit(size)):
            raise LogpolarError(f"{path}: {reason}")
        options = reader_options(self._pycolmap, self._cameras, self._calibration)
        with quiet():
            camera = self._pycolmap.infer_camera_from_image(str(path), options)
        if self._calibration:
            camera.params, camera.has_prior_focal_length = list(self._calibration.parameters), True
            return camera
        return self._shared_with(camera) or camera

    def _shared_with(self, guess: Any) -> Any | None:
        """A copy of the model's only camera, if it can be what COLMAP has guessed from size and EXIF data."""
        shared = self._shared
        if shared is None or (shared.width, shared.height) != (guess.width, guess.height):
            return None
        known, refined = guess.mean_focal_length(), shared.mean_focal_length()
        if guess.has_prior_focal_length and abs(known - refined) > SAME_FOCAL * refined:
            return None
        camera = copy.deepcopy(shared)
        camera.has_prior_focal_length = True  # it is not estimated again
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


def _shared_camera(model: Any, images: Sequence[Any]) -> Any | None:
    """The camera of all images, if there is only one and it saw enough of them to be known."""
    numbers = {image.camera_id for image in images}
    return model.cameras[numbers.pop()] if len(numbers) == 1 and len(images) > 2 else None


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
        if each.camera is None:  # not localised
            continue
        if each.name in names:
            raise StorageError(f"{path}: the model has a photo called {each.name} already")
        camera = _add_camera(pycolmap, model, each.camera)
        w, x, y, z = each.quaternion
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(np.array([x, y, z, w])), np.array(each.translation))
        number = max(model.images.keys(), default=0) + 1
        image = pycolmap.Image(name=each.name, camera_id=camera, image_id=number)
        model.add_image_with_trivial_frame(image, pose)
        names.add(each.name)
        count += 1
    output.mkdir()
    model.write(str(output))
    return count


def _add_camera(pycolmap: Any, model: Any, used: PhotoCamera) -> int:
    """Number of the camera that a pose was computed with, in the model; added unless it is there."""
    if used.number is not None:
        return used.number
    number = max(model.cameras.keys(), default=0) + 1
    kind = getattr(pycolmap.CameraModelId, used.kind)
    camera = pycolmap.Camera(camera_id=number, model=kind, width=used.width, height=used.height)
    camera.params = list(used.parameters)
    model.add_camera_with_trivial_rig(camera)
    return number


def _merged_counts(path: Path, names: Sequence[str]) -> dict[str, int]:
    """Keypoints of both looks at photos; nothing of those that had one look."""
    if not path.is_file():
        return {}
    with FeatureFile(path) as file:
        return {name: file.count(name) for name in set(names) & set(file.names())}
