"""Structure from motion on photos whose cameras are known: by `logpolar sfm` with any descriptor, or by COLMAP alone.

Cameras are compared after a similarity, see ``alignment``. The true ones were mostly found by COLMAP and SIFT, in the
photos at their full size: what SIFT cannot register at all is not in the scenes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from logpolar.errors import StorageError
from logpolar.evaluation.sfm.alignment import AGREE_DEGREES, AGREE_SHARE, PoseErrors, Poses, align, pose_errors
from logpolar.evaluation.sfm.extractors import open_descriptor_extractor
from logpolar.evaluation.sfm.options import StructureTest
from logpolar.evaluation.sfm.photos import ScenePhotos
from logpolar.geometry.cameras import Camera
from logpolar.matching.nearest import MatchingOptions
from logpolar.sfm import pipeline
from logpolar.sfm.colmap_sift import SiftOptions, reconstruct_with_sift
from logpolar.sfm.database_files import read_content
from logpolar.sfm.mapper import DATABASE, MODELS, NoModelError, SfmReport
from logpolar.sfm.pipeline import REPEATS, SfmOptions, map_again
from logpolar.sfm.workspace import read_model
from logpolar.storage.documents import rounded

Reconstruct = Callable[[Path, Path], SfmReport]
"""A folder of photos into a folder with database, models and report."""

MEANINGS = {
    "registered": "images in the largest model",
    "rotation_median": "degrees, of registered images after the model was aligned to the true cameras",
    "position_median": "of the same images, in units of the extent, the median distance of true cameras to the middle",
    "right": f"registered images within {AGREE_DEGREES:g} degrees and {AGREE_SHARE:g} of the extent",
}
"""For result files."""


def by_descriptor(spec: str, ratio: float, test: StructureTest, device: str = "cpu", jobs: int = 1) -> Reconstruct:
    """`logpolar sfm` with the descriptor of a spec; see ``open_descriptor``."""
    opener = partial(open_descriptor_extractor, spec, test.keypoints, test.max_size or None, device)
    options, matching = SfmOptions(seed=test.seed), MatchingOptions(ratio if ratio < 1 else None)

    def reconstruct(photos: Path, output: Path) -> SfmReport:
        return pipeline.reconstruct(photos, output, opener, options, matching, jobs=jobs, progress=True)

    return reconstruct


def by_colmap(test: StructureTest) -> Reconstruct:
    """COLMAP's own SIFT and matcher."""
    options = SiftOptions(test.keypoints, test.max_size, seed=test.seed)
    return lambda photos, output: reconstruct_with_sift(photos, output, options, progress=True)


@dataclass(frozen=True, eq=False)
class StructureScore:
    """Of one model of a scene. Without a model all counts of it are 0, and the rest NaN."""

    images: int
    reduced: int  # of the images
    keypoints: float  # mean of an image
    pairs: int
    verified: int  # pairs
    models: int
    registered: list[str]
    reduced_registered: int
    points: int
    mean_track_length: float
    mean_reprojection_error: float
    errors: PoseErrors  # of the registered images; infinite where the model could not be aligned

    @property
    def right(self) -> int:
        return int(self.errors.agree.sum())

    def to_dict(self) -> dict[str, Any]:
        """Plain values; None, unlike NaN and infinity, is JSON."""
        rows = zip(self.registered, self.errors.degrees.tolist(), self.errors.shares.tolist(), strict=True)
        return {
            "images": self.images,
            "reduced": self.reduced,
            "keypoints_mean": rounded(self.keypoints),
            "pairs": self.pairs,
            "verified": self.verified,
            "models": self.models,
            "registered": len(self.registered),
            "reduced_registered": self.reduced_registered,
            "right": self.right,
            "points": self.points,
            "mean_track_length": rounded(self.mean_track_length),
            "mean_reprojection_error": rounded(self.mean_reprojection_error),
            "rotation_median": _median(self.errors.degrees),
            "position_median": _median(self.errors.shares),
            "columns": ["image", "rotation_error", "position_error"],
            "rows": [[name, rounded(degrees), rounded(share)] for name, degrees, share in rows],
        }


_COUNTS = ("registered", "reduced_registered", "right", "points")
_FIGURES = ("mean_track_length", "mean_reprojection_error", "rotation_median", "position_median")
_SAME = ("images", "reduced", "keypoints_mean", "pairs", "verified")


@dataclass(frozen=True, eq=False)
class SceneScore:
    """Of one scene that was mapped several times from the same matches."""

    repeats: list[StructureScore]

    def to_dict(self) -> dict[str, Any]:
        """Means over repeats, errors over those that have them; the least and the most that were registered."""
        each = [score.to_dict() for score in self.repeats]
        registered = [one["registered"] for one in each]
        return {
            **{name: each[0][name] for name in _SAME},
            **{name: _mean([one[name] for one in each]) for name in (*_COUNTS, *_FIGURES)},
            "registered_least": min(registered),
            "registered_most": max(registered),
            "repeats": each,
        }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return rounded(float(np.mean(known))) if known else None


def _median(values: np.ndarray[Any, np.dtype[np.float64]]) -> float | None:
    return rounded(float(np.median(values))) if len(values) else None


def measure_structure(
    photos: ScenePhotos, folder: Path, output: Path, reconstruct: Reconstruct, test: StructureTest
) -> SceneScore:
    """Reconstruct the photos, which are in ``folder``, into ``output``, as often as the test says; compare cameras."""
    ways: list[tuple[Path, Callable[[], SfmReport]]] = [(output, partial(reconstruct, folder, output))]
    for seed in range(test.seed + 1, test.seed + test.repeats):
        ways.append((output / REPEATS / str(seed), partial(map_again, folder, output, seed)))
    return SceneScore([score_structure(photos, output / DATABASE, place, _unless_none(way)) for place, way in ways])


def _unless_none(way: Callable[[], SfmReport]) -> SfmReport | None:
    try:
        return way()
    except NoModelError:
        return None


def score_structure(photos: ScenePhotos, database: Path, place: Path, report: SfmReport | None) -> StructureScore:
    """The score of models below a folder; the report is None if there are none."""
    content = read_content(database)
    keypoints, verified = content.keypoints, content.verified
    images, reduced = len(photos.names), sum(photos.reduced)
    pairs = images * (images - 1) // 2
    if report is None:
        errors = PoseErrors(np.zeros(0), np.zeros(0))
        return StructureScore(
            images, reduced, keypoints / images, pairs, verified, 0, [], 0, 0, math.nan, math.nan, errors
        )
    found = read_poses(place / MODELS / str(report.model))
    small = {name for name, is_reduced in zip(photos.names, photos.reduced, strict=True) if is_reduced}
    return StructureScore(
        images=images,
        reduced=reduced,
        keypoints=keypoints / images,
        pairs=pairs,
        verified=verified,
        models=report.models,
        registered=list(found),
        reduced_registered=len(small & found.keys()),
        points=report.points,
        mean_track_length=report.mean_track_length,
        mean_reprojection_error=report.mean_reprojection_error,
        errors=camera_errors(found, photos.cameras),
    )


def read_poses(model: Path) -> dict[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Rotations and centres of a COLMAP model's cameras by names of images, sorted."""
    found = read_model(model)
    poses = {}
    for number in found.reg_image_ids():
        image = found.images[number]
        rotation = np.array(image.cam_from_world().rotation.matrix(), np.float64)
        poses[str(image.name)] = rotation, np.array(image.projection_center(), np.float64)
    return dict(sorted(poses.items()))


def camera_errors(
    found: Mapping[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]], truth: Mapping[str, Camera]
) -> PoseErrors:
    """Errors of the found cameras after the best similarity; ``truth`` has those of all images, and so the extent."""
    everything = Poses.of([(camera.rotation, camera.centre) for camera in truth.values()])
    if everything.extent == 0:
        raise StorageError("the true cameras are all at the same place: positions cannot be compared")
    known = Poses.of([(truth[name].rotation, truth[name].centre) for name in found])
    own = Poses.of(list(found.values()))
    similarity = align(own, known, everything.extent)
    if similarity is None:
        return PoseErrors(np.full(len(own), np.inf), np.full(len(own), np.inf))
    return pose_errors(similarity.of(own), known, everything.extent)


def sum_up(scores: Sequence[SceneScore]) -> dict[str, Any]:
    """All scenes together: counts added up, other figures averaged over scenes that have them."""
    each = [score.to_dict() for score in scores]
    counts = ("images", "reduced", *_COUNTS, "registered_least", "registered_most")
    return {
        **{name: round(sum(one[name] for one in each), 5) for name in counts},
        **{name: _mean([one[name] for one in each]) for name in _FIGURES},
    }
