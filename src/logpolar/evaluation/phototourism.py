"""Poses from matched descriptors on scenes with known cameras: the paper's Table 5, measured locally.

Stereo: pairs of images, an essential matrix each. Multi-view: COLMAP reconstructs small sets of images ("bags") from
the same kind of matches, with known intrinsics; the relative poses of all pairs in a set are compared with the true
ones. Images that the largest model lacks, and sets without a model, fail with 180 degrees. ``poses`` defines the
scores; those of multi-view are means over the sizes of sets. ``multi_view`` runs COLMAP.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from logpolar.errors import LogpolarError
from logpolar.evaluation.cache import Uncached
from logpolar.evaluation.descriptors.keypoint_sources import FixedSize, KeypointSource, open_source, sift_source
from logpolar.evaluation.descriptors.registry import Method, open_method
from logpolar.evaluation.descriptors.whole_features import WholeFeature
from logpolar.evaluation.multi_view import MultiViewResult, evaluate_multi_view
from logpolar.evaluation.options import PhototourismOptions, RunOptions
from logpolar.evaluation.posed_scenes import Gray, PosedScene, draw_bags, draw_pairs, keep_images, read_scene
from logpolar.evaluation.poses import (
    MEANINGS,
    DescribedImage,
    ExtractRegion,
    PoseScore,
    PreparedScene,
    Progress,
    SecondLook,
    StereoResult,
    evaluate_stereo,
    tune_ratio,
)
from logpolar.evaluation.protocol import MEAN_OF_SCENES, Protocol, Results, bar, check_scene_names, decimal
from logpolar.evaluation.zoomed_scenes import fit_image, zoom_scene
from logpolar.features.regions import extract_region
from logpolar.images import to_bytes, to_gray
from logpolar.keypoints import Keypoints
from logpolar.matching.learned import matching_of_looks
from logpolar.sfm.pycolmap_compat import import_pycolmap
from logpolar.storage.documents import rounded

_DEGREES = tuple(range(1, 16))
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class PhotoTourism(Protocol):
    """Pose accuracy of two views and of several."""

    name = "phototourism"
    columns = ("scene", "views", "mAA 10°", "mAP 15°", "N", "ratio", "matches", "inliers", "registered")

    def __init__(
        self,
        run: RunOptions,
        scenes: Sequence[Path],
        options: PhototourismOptions,
        tune: Sequence[Path] = (),
        multi_view: bool = True,
        jobs: int = 1,
        detector: str = "sift",
        fixed_size: FixedSize = None,
    ) -> None:
        super().__init__(run)
        self._paths, self._tune, self._options = scenes, tune, options
        self._multi_view, self._jobs, self.max_keypoints = multi_view, jobs, options.keypoints
        device = self._device = run.engine["device"]
        self.source = open_source(detector, options.keypoints, options.contrast, fixed_size, device, options.spread)
        self._second: Method | None = None
        if options.second_look not in ("none", "same"):
            self._second = open_method(options.second_look, options.keypoints, **run.engine)
        if options.zoom > 1 and options.true_zoom > 1:
            raise LogpolarError("--zoom and --true-zoom exclude each other")
        names = [path.resolve() for path in scenes]
        if len(set(names)) < len(names):
            raise LogpolarError("a scene is given twice")
        if both := set(names) & {path.resolve() for path in tune}:
            raise LogpolarError(f"{min(both)}: tune the ratio on scenes that are not evaluated")

    def prepare(self) -> None:
        measured, tuning = self._read(self._paths), self._read(self._tune, "validation")
        self._scenes = [self._prepared(scene, self._multi_view) for scene in measured]
        self._tuning = [self._prepared(scene, False) for scene in tuning]
        self.data = {each.scene.name: each.counts() for each in self._scenes}
        more: dict[str, Any] = {"multi_view": self._multi_view, "tune": [scene.name for scene in tuning]}
        if self._second is not None:
            more["second_look"] = self._second.identity
        assert self.source is not None
        self.options = {**asdict(self._options), **more, **self.source.settings}

    def _read(self, paths: Sequence[Path], split: str | None = None) -> list[PosedScene]:
        scenes = [read_views(path, self._options, split) for path in paths]
        check_scene_names([scene.name for scene in scenes], "mean")
        return scenes

    def _prepared(self, scene: PosedScene, multi_view: bool) -> PreparedScene:
        return prepare_scene(scene, self._options, multi_view, self.source, bar(f"{scene.name}, keypoints"))

    def score(self, method: Method) -> PoseResults:
        options, tuned, jobs, device = self._options, dict[float, float](), self._jobs, self._device
        looks = [method, *([self._second or method] if options.second_look != "none" else [])]
        settings = [{"model": each.name, "descriptor": each.identity} for each in looks]
        options, *again = matching_of_looks(options, settings)
        with _one_thread_each(jobs):
            if self._tuning:
                described = [(scene, self._describe(method, scene)) for scene in self._tuning]
                ratio, tuned = tune_ratio(described, options, jobs=jobs, device=device)
                options = replace(options, ratio=ratio)
            found = PoseResults(options.ratio or 1.0, tuned)
            for scene in self._scenes:
                name, images = scene.scene.name, self._describe(method, scene)
                progress = bar(f"{name}, {method.name}, matching", "pair")
                second = SecondLook(self._look_again(method, scene), again[0]) if again else None
                if self._second is not None and self._second.identity == method.identity:
                    options = replace(options, second_look="same")
                found.stereo[name] = evaluate_stereo(scene, images, options, jobs, progress, device, second)
                if self._multi_view:
                    found.multi_view[name] = evaluate_multi_view(scene, images, options, jobs, progress, device)
        return found

    def _describe(self, method: Method, scene: PreparedScene) -> dict[int, DescribedImage]:
        settings = {"opencv": cv2.__version__, **self.source_of(method).settings}
        with self.cache(method, scene.scene.identity(), settings) as views:
            return describe_images(scene, views, method.source, bar(f"{scene.scene.name}, {method.name}"))

    def _look_again(self, method: Method, scene: PreparedScene) -> ExtractRegion:
        """Features of regions, for a second look by the method of the options, or by the measured one."""
        method = self._second or method
        if isinstance(method.describer, WholeFeature):
            raise LogpolarError(f"{method.name}: describes whole images, and no regions for a second look")
        describer, source = method.describer, self.source_of(method)
        assert describer is not None
        return lambda row, region: extract_region(
            to_gray(scene.views[row]), region, lambda gray: source(to_bytes(gray)), describer
        )

    def report(self, results: Results, scores: Mapping[str, PoseResults]) -> None:
        for name, found in scores.items():
            results.results[name] = found.to_dict()
            for record in found.records():
                start = {"descriptor": name, "ratio": found.ratio, "scene": record["scene"], "views": record["views"]}
                results.records[""].append({**start, "seed": self._options.seed, **record})
                if record["views"] in ("two", "several") and (record["scene"] != "mean" or len(found.stereo) > 1):
                    results.add(name, _cells(record, found.ratio))
        results.notes += [
            f"mAA 10°: {MEANINGS['maa10']}; mAP 15°: {MEANINGS['map15']}. Error: {MEANINGS['error']}.",
            "N: image pairs. Matches and inliers are medians of a pair; registered: fraction of images.",
        ]
        if self._options.zoom > 1:
            results.notes.append(f"Second images are downscaled {self._options.zoom:g} times.")
        if self._options.true_zoom > 1:
            most = max(each.scene.enlarged for each in self._scenes)
            kind = "at full resolution" if most == 1 else f"enlarged up to {most:.3g} times for want of pixels"
            results.notes.append(f"Second images are crops, a true zoom of {self._options.true_zoom:g}, {kind}.")
        if len(self.data) > 1:
            results.notes.append(MEAN_OF_SCENES)
        if scores:
            results.figures[""] = lambda: _draw(scores)


def _cells(record: Mapping[str, Any], ratio: float) -> list[str]:
    counts = ["" if record[key] is None else f"{record[key]:g}" for key in ("matches_median", "inliers_median")]
    scores = [decimal(record["maa10"]), decimal(record["map15"]), str(record["pairs"]), f"{ratio:g}"]
    return [record["scene"], record["views"], *scores, *counts, decimal(record["registered"])]


def _draw(scores: Mapping[str, PoseResults]) -> Any:
    from logpolar.evaluation.figures import plot_curves

    curves = {name: (_DEGREES, found.fractions(_DEGREES)) for name, found in scores.items()}
    return plot_curves({"two views": curves}, "pose error, degrees", "fraction of image pairs within it")


@contextlib.contextmanager
def _one_thread_each(jobs: int) -> Iterator[None]:
    """Worker processes have one core each, for matrix products too."""
    changed = [name for name in _THREADS if jobs > 1 and name not in os.environ]
    os.environ.update(dict.fromkeys(changed, "1"))
    try:
        yield
    finally:
        for name in changed:
            del os.environ[name]


def read_views(path: Path, options: PhototourismOptions, split: str | None = None) -> PosedScene:
    """A scene with its images as they will be described: zoomed, then within the limits of size."""
    scene = read_scene(path, options.min_shared, options.min_visibility, split)
    if options.images:
        scene = keep_images(scene, options.images, options.seed)
    scene = zoom_scene(scene, options.zoom, options.true_zoom, options.min_shared)
    images = [fit_image(image, options.max_size or None, options.min_size or None) for image in scene.images]
    return replace(scene, images=images)


def prepare_scene(
    scene: PosedScene,
    options: PhototourismOptions,
    multi_view: bool = False,
    source: KeypointSource | None = None,
    progress: Progress = iter,
) -> PreparedScene:
    """Draw pairs and, with ``multi_view``, bags; read the images in them and detect keypoints, SIFT's by default."""
    if multi_view:
        if scene.transformed:
            raise LogpolarError(f"{scene.name}: has downscaled or rotated copies of images; use --no-multi-view")
        import_pycolmap("multi-view evaluation")
    pairs = draw_pairs(scene, options.pairs, options.seed)
    sizes = options.bags if multi_view else {}
    bags = {size: draw_bags(scene, size, count, options.seed) for size, count in sizes.items()}
    groups: list[tuple[int, ...]] = [*pairs, *(bag for own in bags.values() for bag in own)]
    source = source or sift_source(options.keypoints, options.contrast, spread=options.spread)
    views, keypoints = dict[int, Gray](), dict[int, Keypoints]()
    for row in progress(sorted({row for group in groups for row in group})):
        views[row] = scene.images[row].read()
        keypoints[row] = source(views[row])
    return PreparedScene(scene, pairs, bags, views, keypoints)


def describe_images(
    prepared: PreparedScene, views: Uncached, source: KeypointSource | None = None, progress: Progress = iter
) -> dict[int, DescribedImage]:
    """All images of pairs or bags, each described once; at the keypoints of ``source`` if there is one."""
    described = {}
    for row in progress(list(prepared.views)):
        image, view = prepared.scene.images[row], prepared.views[row]
        keypoints = prepared.keypoints[row] if source is None else source(view)
        descriptors = views.describe(image.name, view, keypoints)
        if len(descriptors) != len(keypoints) or not np.isfinite(descriptors).all():
            raise ValueError(f"{len(keypoints)} keypoints need as many finite descriptors")
        described[row] = DescribedImage(image.camera, keypoints, descriptors)
    return described


@dataclass(frozen=True, eq=False)
class PoseResults:
    """Results by scene, the ratio that was used and, if it was tuned, mAA by candidate."""

    ratio: float
    tuned: dict[float, float]
    stereo: dict[str, StereoResult] = field(default_factory=dict)
    multi_view: dict[str, MultiViewResult] = field(default_factory=dict)

    def means(self) -> dict[str, PoseScore]:
        """Unweighted means of scenes by views, two or several."""
        kinds = {"two": [result.score for result in self.stereo.values()]}
        if self.multi_view:
            kinds["several"] = [result.score for result in self.multi_view.values()]
        return {views: PoseScore.mean(scores) for views, scores in kinds.items()}

    def fractions(self, degrees: Sequence[float]) -> list[float]:
        """Of two views: unweighted means over scenes of the fractions of pairs within each of the degrees."""
        fractions = (result.fractions(degrees) for result in self.stereo.values())
        return [float(np.mean(each)) for each in zip(*fractions, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "ratio": self.ratio,
            "maa10_by_tuned_ratio": {f"{ratio:g}": rounded(maa) for ratio, maa in self.tuned.items()},
            "mean": {views: score.to_dict() for views, score in self.means().items()},
            "stereo": {scene: result.to_dict() for scene, result in self.stereo.items()},
            "multi_view": {scene: result.to_dict() for scene, result in self.multi_view.items()},
        }

    def records(self) -> Iterator[dict[str, Any]]:
        """A line for each scene and kind of views, then the means; None for missing values."""
        nothing = dict.fromkeys(("matches_median", "inliers_median", "registered"))
        for scene, stereo in self.stereo.items():
            medians = {f"{name}_median": rounded(stereo.median(name)) for name in ("matches", "inliers")}
            yield {"scene": scene, "views": "two", **stereo.score.to_dict(), **nothing, **medians}
        for scene, several in self.multi_view.items():
            for size, score in several.scores.items():
                yield {"scene": scene, "views": f"bags of {size}", **score.to_dict(), **nothing}
            registered = {"registered": rounded(several.registered)}
            yield {"scene": scene, "views": "several", **several.score.to_dict(), **nothing, **registered}
        for views, score in self.means().items():
            yield {"scene": "mean", "views": views, **score.to_dict(), **nothing}
