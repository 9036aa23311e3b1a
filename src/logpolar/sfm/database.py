"""Content of a COLMAP database, read and written through pycolmap, which hides the versions of the layout.

Convention:
    - Keypoints: ``Keypoints.to_colmap`` and ``from_colmap`` add and remove the half pixel; COLMAP's scale is half of
      our size.
    - Descriptors: COLMAP 4 stores bytes of any type: float32 unchanged, under the type UNDEFINED, which its own
      matchers refuse to mix with SIFT. COLMAP 3 stores 8 bits per value: round(128 + 256 d), clipped to 0 ... 255.
      Reconstruction does not read descriptors. COLMAP's own matching of the 8-bit ones would be incorrect: it takes
      them for SIFT, which has no negative values.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from logpolar.distributed import show_progress
from logpolar.images import read_gray
from logpolar.keypoints import Keypoints
from logpolar.matching.pairs import Pair
from logpolar.sfm.cameras import Calibration, CameraOptions, reader_options
from logpolar.sfm.database_files import connect
from logpolar.sfm.pycolmap_compat import (
    camera_mode,
    colmap_errors,
    import_pycolmap,
    open_database,
    quiet,
    verification_options,
)
from logpolar.sfm.refinement import RefinementReport, refine_keypoints
from logpolar.types import FloatArray

_MAX_IMAGES = 2147483647
"""The id of a pair is this times the smaller image id, plus the larger one."""

_COLMAP_ERROR = "database_sqlite.cc"
"""What errors of COLMAP begin with: the place in its source."""

_KEPT_IMAGES = 256
"""Images whose keypoints are cached during verification."""


@dataclass(frozen=True)
class DatabaseImage:
    number: int
    camera: int
    size: tuple[int, int]  # width and height of its camera


class Database:
    """An open database. ``path`` is modified: pass a copy (``copy_database``) of a database that is not yours.

    ``origin`` is the database it is a copy of, for errors.
    """

    def __init__(self, path: Path, origin: Path | None = None) -> None:
        self._pycolmap = import_pycolmap("COLMAP databases")
        self.path, self._name = path, origin or path
        reason = f"pycolmap {self._pycolmap.__version__} cannot open this database; it may be of a newer COLMAP"
        with quiet(), colmap_errors(f"{self._name}: {reason}"):
            self._file = open_database(path)
            self.images = self._read_images()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if isinstance(error, RuntimeError | ValueError) and _COLMAP_ERROR in str(error):
            with colmap_errors(f"{self._name}: COLMAP could not read or write it"):
                raise error

    def _read_images(self) -> dict[str, DatabaseImage]:
        cameras = {camera.camera_id: camera for camera in self._file.read_all_cameras()}
        found = {}
        for image in sorted(self._file.read_all_images(), key=lambda image: str(image.name)):
            camera = cameras[image.camera_id]
            found[image.name] = DatabaseImage(image.image_id, image.camera_id, (camera.width, camera.height))
        return found

    def add_photos(
        self, folder: Path, names: Sequence[str], options: CameraOptions, calibration: Calibration | None = None
    ) -> None:
        """Add photos and their cameras: of the calibration, or as COLMAP guesses them from EXIF."""
        mode, reader = camera_mode(options.camera_mode), reader_options(self._pycolmap, options, calibration)
        with quiet():
            self._pycolmap.import_images(str(self.path), str(folder), mode, list(names), reader)
        self.images = self._read_images()

    def set_cameras(self, cameras: Mapping[str, Any]) -> None:
        """Replace the cameras of images by pycolmap's, by name; images that share a camera must get the same one."""
        for name, camera in cameras.items():
            if name in self.images:
                known = copy.deepcopy(camera)
                known.camera_id, known.has_prior_focal_length = self.images[name].camera, True
                self._file.update_camera(known)
        self.images = self._read_images()

    def has_keypoints(self, name: str) -> bool:
        """Whether keypoints were detected, even if none was found."""
        return bool(self._file.exists_keypoints(self.images[name].number))

    def stored_keypoints(self, name: str) -> FloatArray:
        """COLMAP's own rows, with 2, 4 or 6 columns."""
        rows = np.asarray(self._file.read_keypoints(self.images[name].number), np.float32)
        return rows if len(rows) else np.zeros((0, 4), np.float32)

    def pairs(self) -> list[Pair]:
        """Pairs of images that were matched, even without success, sorted by name."""
        names = {image.number: name for name, image in self.images.items()}
        with connect(self.path) as tables:
            numbers = tables.execute("SELECT pair_id FROM matches UNION SELECT pair_id FROM two_view_geometries")
            found = [divmod(number, _MAX_IMAGES) for (number,) in numbers]
        return sorted((names[first], names[second]) for first, second in found if {first, second} <= names.keys())

    def clear(self, keypoints: bool = False) -> None:
        """Remove descriptors, matches, geometries and, if asked, keypoints; keep cameras, images and rigs."""
        self._file.clear_descriptors()
        self._file.clear_matches()
        self._file.clear_two_view_geometries()
        if keypoints:
            self._file.clear_keypoints()

    def write_keypoints(self, name: str, keypoints: Keypoints, with_shape: bool = True) -> None:
        """Without ``with_shape`` only the positions."""
        rows = keypoints.to_colmap()
        self._file.write_keypoints(self.images[name].number, rows if with_shape else rows[:, :2].copy())

    def write_descriptors(self, name: str, descriptors: FloatArray) -> None:
        stored: Any = quantise(descriptors)
        if hasattr(self._pycolmap, "FeatureDescriptors"):  # new in COLMAP 4
            data = np.ascontiguousarray(descriptors, np.float32).view(np.uint8)
            undefined = self._pycolmap.FeatureExtractorType.UNDEFINED
            stored = self._pycolmap.FeatureDescriptors(type=undefined, data=data)
        self._file.write_descriptors(self.images[name].number, stored)

    def write_matches(self, first: str, second: str, indices: NDArray[np.integer]) -> None:
        """Matches (K, 2) of keypoints, not yet verified."""
        numbers = self.images[first].number, self.images[second].number
        self._file.write_matches(*numbers, np.asarray(indices, np.uint32).reshape(-1, 2))

    def verify(self, pairs: Iterable[Pair], seed: int = 0, progress: bool = False) -> None:
        """Verify matches by two-view geometry, as COLMAP does.

        A pair with too few inliers gets an empty geometry, which tells COLMAP that it was tried.
        """
        options, pairs = verification_options(seed), list(pairs)
        positions = lru_cache(_KEPT_IMAGES)(lambda name: self.stored_keypoints(name)[:, :2].astype(np.float64))
        cameras = {camera.camera_id: camera for camera in self._file.read_all_cameras()}
        threads = os.cpu_count() or 1
        bar = show_progress(len(pairs), "verification", "pair", progress)
        with bar, quiet(), ThreadPoolExecutor(threads) as pool:
            for start in range(0, len(pairs), 8 * threads):
                some = pairs[start : start + 8 * threads]
                tasks = [self._task(pair, cameras, positions) for pair in some]
                made = pool.map(lambda task: self._pycolmap.estimate_two_view_geometry(*task, options), tasks)
                for (first, second), geometry in zip(some, made, strict=True):
                    if len(geometry.inlier_matches) < options.min_num_inliers:
                        geometry = self._pycolmap.TwoViewGeometry()
                    numbers = self.images[first].number, self.images[second].number
                    self._file.write_two_view_geometry(*numbers, geometry)
                    bar.update()

    def set_positions(self, positions: Mapping[str, Sequence[float]]) -> None:
        """Replace position priors by these: latitude, longitude and altitude by name; COLMAP's own are not checked."""
        if not hasattr(self._pycolmap, "PosePriorCoordinateSystem"):
            return
        self._file.clear_pose_priors()
        images = {image.name: image for image in self._file.read_all_images()}
        for name, place in positions.items():
            prior = self._pycolmap.PosePrior(position=np.array(place, np.float64))
            prior.coordinate_system = self._pycolmap.PosePriorCoordinateSystem.WGS84
            if hasattr(prior, "corr_data_id"):
                prior.corr_data_id = images[name].data_id
                self._file.write_pose_prior(prior)
            else:
                self._file.write_pose_prior(images[name].image_id, prior)

    def refine(self, photos: Path, progress: bool = False) -> RefinementReport:
        """Move verified keypoints to sub-pixel precision and drop matches of neighbours, see ``refine_keypoints``."""
        names = {image.number: name for name, image in self.images.items()}
        geometries = {}
        for number, geometry in zip(*self._file.read_two_view_geometries(), strict=True):
            first, second = divmod(number, _MAX_IMAGES)
            if len(geometry.inlier_matches):
                geometries[names[first], names[second]] = geometry
        matches = {pair: np.asarray(geometry.inlier_matches) for pair, geometry in geometries.items()}
        stored = {name: self.stored_keypoints(name) for name in self.images}
        keypoints = {name: Keypoints.from_colmap(rows) for name, rows in stored.items()}
        found = refine_keypoints(keypoints, matches, lambda name: read_gray(photos / name), progress)
        for name, rows in stored.items():
            rows[:, :2] = found.positions[name] + np.float32(0.5)
            self._file.update_keypoints(self.images[name].number, rows)
        for pair, kept in found.kept.items():
            if not kept.all():
                geometries[pair].inlier_matches = matches[pair][kept]
                numbers = (self.images[name].number for name in pair)
                self._file.update_two_view_geometry(*numbers, geometries[pair])
        return found.report

    def _task(self, pair: Pair, cameras: dict[int, Any], positions: Any) -> tuple[Any, ...]:
        first, second = (self.images[name] for name in pair)
        matches = np.asarray(self._file.read_matches(first.number, second.number), np.uint32).reshape(-1, 2)
        return cameras[first.camera], positions(pair[0]), cameras[second.camera], positions(pair[1]), matches


def quantise(descriptors: FloatArray) -> NDArray[np.uint8]:
    """8 bits per value: 128 + 256 d. Values of unit vectors beyond +-1/2 are rare, and are clipped."""
    return np.clip(np.rint(128 + 256 * descriptors), 0, 255).astype(np.uint8)
