"""Structure from motion on photos whose cameras are known: `logpolar sfm` with any method, or COLMAP alone.

Cameras are compared after a similarity, see ``alignment``. The true ones were mostly found by COLMAP and SIFT, in the
photos at full size: scenes lack what SIFT cannot register at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from logpolar.errors import LogpolarError, StorageError
from logpolar.evaluation.alignment import AGREE_DEGREES, AGREE_FRACTION, PoseErrors, Poses, align, pose_errors
from logpolar.evaluation.cache import cache_name
from logpolar.evaluation.descriptors.extraction import MethodExtractor
from logpolar.evaluation.descriptors.keypoint_sources import open_source
from logpolar.evaluation.descriptors.registry import Method
from logpolar.evaluation.options import RunOptions, SfmTestOptions, recorded
from logpolar.evaluation.posed_scenes import PosedScene, read_scene
from logpolar.evaluation.protocol import Protocol, Results, bar, check_scene_names, decimal, make_folder
from logpolar.features.extractor import Extractor
from logpolar.geometry.cameras import Camera, Matrix
from logpolar.images import downscale, to_bytes, to_gray
from logpolar.keypoints.detection import SiftDetector
from logpolar.matching.options import MatchingOptions
from logpolar.settings import DEFAULT_MAX_KEYPOINTS, DetectionOptions
from logpolar.sfm import pipeline
from logpolar.sfm.colmap_sift import SiftOptions, reconstruct_with_sift
from logpolar.sfm.database_files import read_content
from logpolar.sfm.mapper import DATABASE, MODELS, NoModelError, SfmReport
from logpolar.sfm.pycolmap_compat import import_pycolmap, import_pycolmap_4
from logpolar.sfm.workspace import read_model
from logpolar.storage.atomic_io import made_within, write_whole
from logpolar.storage.documents import rounded

COLMAP_SIFT = "colmap-sift"
"""The spec of COLMAP's own features and matcher."""

Reconstruct = Callable[[Path, Path], SfmReport]
"""A folder of photos into a folder with database, models and report."""


class StructureFromMotion(Protocol):
    """Registered images and errors of cameras."""

    name = "sfm"
    columns = (
        *("scene", "registered", "downscaled", "correct", "points", "track length", "reprojection, px"),
        *("rotation, °", "position", "pairs verified", "keypoints", "ratio"),
    )

    def __init__(
        self, run: RunOptions, scenes: Sequence[Path], options: SfmTestOptions, jobs: int = 1, detector: str = "sift"
    ) -> None:
        super().__init__(run)
        import_pycolmap("structure from motion")
        self._paths, self._test, self._jobs, self._detector = scenes, options, jobs, detector
        self.options, self.max_keypoints = recorded(options), options.keypoints
        if detector != "sift":  # results with SIFT stay comparable with earlier ones
            source = open_source(detector, options.keypoints, SiftDetector.contrast_threshold)
            self.options = {**self.options, "detector": source.identity}

    def open(self, spec: str) -> Method:
        return Method(spec, "COLMAP SIFT", _colmap_identity()) if spec == COLMAP_SIFT else super().open(spec)

    def prepare(self) -> None:
        self._photos = [choose_photos(_read(path), self._test) for path in self._paths]
        check_scene_names([photos.scene.name for photos in self._photos], "all")
        self.data = {photos.scene.name: photos.counts() for photos in self._photos}

    def score(self, method: Method) -> tuple[float, dict[str, dict[str, Any]]]:
        """The ratio, and scores by scene."""
        identity = method.identity or {}
        if method.spec == COLMAP_SIFT:
            ratio, way = identity["max_ratio"], by_colmap(self._test)
        else:
            ratio = self._test.sift_ratio if _is_sift(identity) else self._test.ratio
            way = by_method(method.spec, ratio, self._test, self.run.engine, self._jobs, self._detector)
        settings = {"identity": identity, "ratio": ratio, **self.options}
        del settings["repeats"]  # more of them continue in the same folder
        model, scores = Path(cache_name("model", method.name, settings)).stem, {}
        with self._place() as place:
            for photos in bar(method.name, "scene")(self._photos):
                folder = place / Path(cache_name("sfm", photos.scene.name, photos.identity())).stem
                make_folder(folder)
                write_photos(photos, folder / "photos")
                repeats = measure_structure(photos, folder / "photos", folder / model, way, self._test)
                scores[photos.scene.name] = mean_of_repeats(repeats)
        return ratio, scores

    @contextlib.contextmanager
    def _place(self) -> Iterator[Path]:
        """The folder of photos and models: the cache, or a temporary one."""
        if self.run.cache is not None:
            make_folder(self.run.cache)
            yield self.run.cache
        else:
            with tempfile.TemporaryDirectory(prefix="logpolar-sfm-") as folder:
                yield Path(folder)

    def report(self, results: Results, scores: Mapping[str, tuple[float, dict[str, dict[str, Any]]]]) -> None:
        for name, (ratio, scenes) in scores.items():
            together = sum_up(scenes.values())
            results.results[name] = {"ratio": ratio, "all": together, "scenes": scenes}
            for scene, values in ({**scenes, "all": together} if len(scenes) > 1 else scenes).items():
                flat = {key: value for key, value in values.items() if key != "repeats"}
                start = {"descriptor": name, "scene": scene, "seed": self._test.seed, "ratio": ratio}
                results.records[""].append({**start, **flat})
                results.add(name, [scene, *scene_cells(values), f"{ratio:g}"])
        results.notes.append(
            f"Registered: images in the largest model. Correct: those within {AGREE_DEGREES:g} degrees and "
            f"{AGREE_FRACTION:g} of the extent. Rotation, in degrees, and position, in extents, are medians of "
            "registered images after alignment to the true cameras; the extent is the median distance of the true "
            "cameras to their middle."
        )
        if self._test.repeats > 1:
            results.notes.append(
                f"Means of {self._test.repeats} models from the same matches, COLMAP's mapper started with different "
                "seeds; in brackets the fewest and the most registered images."
            )
        if self._test.downscale > 1:
            results.notes.append(f"Every second image, by name, is downscaled {self._test.downscale:g} times.")
        if len(self.data) > 1:
            results.notes.append("All: counts are sums over scenes, other figures means of them.")


def scene_cells(values: Mapping[str, Any], missing: str = "") -> list[str]:
    """Of the columns of ``StructureFromMotion``, but for scene and ratio."""

    def counted(name: str, whole: str) -> str:
        return f"{values[name]:.4g} of {values[whole]}" if values.get(whole) else missing

    numbers = (("mean_track_length", 2), ("mean_reprojection_error", 2), ("rotation_median", 2), ("position_median", 3))
    return [
        f"{counted('registered', 'images')} ({values['registered_least']} - {values['registered_most']})",
        counted("reduced_registered", "reduced"),
        counted("right", "images"),
        f"{values['points']:.0f}",
        *(decimal(values[name], digits) or missing for name, digits in numbers),
        counted("verified", "pairs"),
        decimal(values.get("keypoints_mean"), 0) or missing,
    ]


def _is_sift(identity: Mapping[str, Any]) -> bool:
    """OpenCV's or kornia's SIFT, with its own keypoints or not."""
    return identity.get("kind") in ("sift", "rootsift") or "SIFT" in identity.get("class", "")


def _colmap_identity() -> dict[str, Any]:
    pycolmap = import_pycolmap_4("COLMAP's SIFT")
    matching = {key: getattr(pycolmap.FeatureMatchingOptions().sift, key) for key in ("max_ratio", "cross_check")}
    return {"kind": COLMAP_SIFT, "pycolmap": str(pycolmap.__version__), **matching}


def _read(path: Path) -> PosedScene:
    scene = read_scene(path, min_shared=1, min_visibility=0)
    if scene.transformed:
        raise LogpolarError(f"{path}: has downscaled or rotated copies of images, which share their camera centres")
    return scene


# Photos


@dataclass(frozen=True, eq=False)
class ScenePhotos:
    """Rows of a scene's images that were chosen, sorted by name, and which of them are downscaled."""

    scene: PosedScene
    rows: list[int]
    reduced: list[bool]
    factor: float = 1.0

    @property
    def names(self) -> list[str]:
        """Of the files: PNG whatever the image was, to avoid a second loss."""
        return [f"{self.scene.images[row].name}.png" for row in self.rows]

    @property
    def cameras(self) -> dict[str, Camera]:
        """The true ones, before any downscaling, by names of files."""
        return {name: self.scene.images[row].camera for name, row in zip(self.names, self.rows, strict=True)}

    def identity(self) -> dict[str, Any]:
        content = [self.scene.identity(), self.names, self.reduced, self.factor]
        return {"photos": hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]}

    def counts(self) -> dict[str, Any]:
        counts = {"images": len(self.names), "reduced": sum(self.reduced), "of": len(self.scene.images)}
        return {**self.scene.identity(), **self.identity(), **counts, "left_out": self.scene.left_out}


def choose_photos(scene: PosedScene, test: SfmTestOptions) -> ScenePhotos:
    """Images drawn by the test's seed; every second one in the order of names is downscaled."""
    order = sorted(range(len(scene.images)), key=lambda row: scene.images[row].name)
    if test.images and test.images < len(order):
        drawn = np.random.default_rng(test.seed).permutation(len(order))[: test.images]
        order = [order[place] for place in sorted(drawn.tolist())]
    if len(order) < 2:
        raise StorageError(f"{scene.name}: a reconstruction needs at least two images")
    reduced = [test.downscale > 1 and place % 2 == 1 for place in range(len(order))]
    return ScenePhotos(scene, order, reduced, test.downscale)


def write_photos(photos: ScenePhotos, folder: Path) -> None:
    """Write gray PNG files that are not in the folder yet."""
    for name, row, reduced in zip(photos.names, photos.rows, photos.reduced, strict=True):
        path = made_within(folder, name)
        if path.exists():
            continue
        pixels = photos.scene.images[row].read()
        if reduced:
            pixels = to_bytes(downscale(to_gray(pixels), max(round(max(pixels.shape) / photos.factor), 1)))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, cv2.imencode(".png", pixels)[1].tobytes())


# Reconstruction


def by_method(
    spec: str,
    ratio: float,
    test: SfmTestOptions,
    engine: Mapping[str, Any] | None = None,
    jobs: int = 1,
    detector: str = "sift",
) -> Reconstruct:
    """`logpolar sfm` with the method of a spec."""
    detection = DetectionOptions(test.spread, test.min_size, test.max_size)
    opener = partial(MethodExtractor, spec, test.keypoints, detection, engine or {}, detector)
    options = pipeline.SfmOptions(seed=test.seed, second_look=test.second_look, look_at="all")
    again = None
    if test.second_look != "none":
        again = partial(Extractor, test.second_look, max_keypoints=DEFAULT_MAX_KEYPOINTS, **(engine or {}))
    matching = MatchingOptions(ratio if ratio < 1 else None, matcher=test.matcher)

    more: dict[str, Any] = {"options": options, "matching": matching, "jobs": jobs, "progress": True}
    return partial(pipeline.reconstruct, open_extractor=opener, open_second=again, **more)


def by_colmap(test: SfmTestOptions) -> Reconstruct:
    """COLMAP's own SIFT and matcher."""
    options = SiftOptions(test.keypoints, test.max_size, seed=test.seed)
    return partial(reconstruct_with_sift, options=options, progress=True)


def measure_structure(
    photos: ScenePhotos, folder: Path, output: Path, reconstruct: Reconstruct, test: SfmTestOptions
) -> list[StructureScore]:
    """Reconstruct the photos in ``folder`` into ``output``, with each seed of the test, and compare cameras."""
    ways: list[tuple[Path, Callable[[], SfmReport]]] = [(output, partial(reconstruct, folder, output))]
    for seed in range(test.seed + 1, test.seed + test.repeats):
        ways.append((output / pipeline.REPEATS / str(seed), partial(pipeline.map_again, folder, output, seed)))
    scores = []
    for place, way in ways:
        report = None
        with contextlib.suppress(NoModelError):
            report = way()
        scores.append(score_structure(photos, output / DATABASE, place, report))
    return scores


# Scores


_COUNTS = ("registered", "reduced_registered", "right", "points")
_FIGURES = ("mean_track_length", "mean_reprojection_error", "rotation_median", "position_median")
_SAME = ("images", "reduced", "keypoints_mean", "pairs", "verified")


@dataclass(frozen=True, eq=False)
class StructureScore:
    """Of one model of a scene. Without a model its counts are 0, other figures NaN."""

    images: int
    reduced: int  # downscaled ones of the images
    keypoints_mean: float  # of an image
    pairs: int
    verified: int  # pairs
    models: int
    registered: list[str]
    reduced_registered: int
    points: int
    mean_track_length: float
    mean_reprojection_error: float
    errors: PoseErrors  # of the registered images; infinite if the model could not be aligned

    @property
    def right(self) -> int:
        """Registered images with correct poses; the name is that of the key in result files."""
        return int(self.errors.agree.sum())

    def to_dict(self) -> dict[str, Any]:
        degrees, fractions = self.errors.degrees.tolist(), self.errors.fractions.tolist()
        rows = zip(self.registered, degrees, fractions, strict=True)
        names = (*_SAME, "models")
        return {
            **{name: rounded(getattr(self, name)) for name in names},
            "registered": len(self.registered),
            **{name: getattr(self, name) for name in ("reduced_registered", "right", "points")},
            "mean_track_length": rounded(self.mean_track_length),
            "mean_reprojection_error": rounded(self.mean_reprojection_error),
            "rotation_median": rounded(_median(degrees)),
            "position_median": rounded(_median(fractions)),
            "columns": ["image", "rotation_error", "position_error"],
            "rows": [[name, rounded(rotation), rounded(position)] for name, rotation, position in rows],
        }


def mean_of_repeats(repeats: Sequence[StructureScore]) -> dict[str, Any]:
    """A scene mapped several times: means over repeats that have the figure; extremes of the registered images."""
    each = [score.to_dict() for score in repeats]
    registered = [one["registered"] for one in each]
    return {
        **{name: each[0][name] for name in _SAME},
        **{name: _mean([one[name] for one in each]) for name in (*_COUNTS, *_FIGURES)},
        "registered_least": min(registered),
        "registered_most": max(registered),
        "repeats": each,
    }


def sum_up(scenes: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """All scenes together: sums of counts, and means of other figures over scenes that have them."""
    counts = ("images", "reduced", *_COUNTS, "registered_least", "registered_most")
    return {
        **{name: round(sum(one[name] for one in scenes), 5) for name in counts},
        **{name: _mean([one[name] for one in scenes]) for name in _FIGURES},
    }


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else math.nan


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return rounded(float(np.mean(known))) if known else None


def score_structure(photos: ScenePhotos, database: Path, place: Path, report: SfmReport | None) -> StructureScore:
    """The score of models below a folder; the report is None if there are none."""
    images, content = len(photos.names), read_content(database)
    start = images, sum(photos.reduced), content.keypoints / images, images * (images - 1) // 2, content.verified
    if report is None:
        return StructureScore(*start, 0, [], 0, 0, math.nan, math.nan, PoseErrors(np.zeros(0), np.zeros(0)))
    found = read_poses(place / MODELS / str(report.model))
    small = {name for name, reduced in zip(photos.names, photos.reduced, strict=True) if reduced}
    means = report.mean_track_length, report.mean_reprojection_error
    errors = camera_errors(found, photos.cameras)
    counts = report.models, list(found), len(small & found.keys()), report.points
    return StructureScore(*start, *counts, *means, errors)


def read_poses(model: Path) -> dict[str, tuple[Matrix, Matrix]]:
    """Rotations and centres of a COLMAP model's cameras by names of images, sorted."""
    found = read_model(model)
    poses = {}
    for number in found.reg_image_ids():
        image = found.images[number]
        rotation = np.array(image.cam_from_world().rotation.matrix(), np.float64)
        poses[str(image.name)] = rotation, np.array(image.projection_center(), np.float64)
    return dict(sorted(poses.items()))


def camera_errors(found: Mapping[str, tuple[Matrix, Matrix]], truth: Mapping[str, Camera]) -> PoseErrors:
    """Errors of cameras after the best similarity; ``truth`` has those of all images, which define the extent."""
    everything = Poses.of([(camera.rotation, camera.centre) for camera in truth.values()])
    if everything.extent == 0:
        raise StorageError("the true cameras are all at the same place: positions cannot be compared")
    known = Poses.of([(truth[name].rotation, truth[name].centre) for name in found])
    own = Poses.of(list(found.values()))
    similarity = align(own, known, everything.extent)
    if similarity is None:
        return PoseErrors(np.full(len(own), np.inf), np.full(len(own), np.inf))
    return pose_errors(similarity.of(own), known, everything.extent)
