"""Which images views are made of, and which of them are paired."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from logpolar.datasets.aligned import read_pair_list
from logpolar.datasets.files import CorrespondenceFile
from logpolar.errors import LogpolarError
from logpolar.training.matcher_options import MatcherData, ViewsOptions
from logpolar.training.matcher_sources import SourceFile

KINDS = ("scene", "photo", "aligned")
"""Of pairs: two images of a scene, one image, two aligned images."""


@dataclass(frozen=True, eq=False)
class ViewPlan:
    """Source images, how many views each gets, and pairs of images by kind and group (a scene, a photo)."""

    files: list[SourceFile]
    views: list[int]
    pairs: dict[str, dict[str, list[tuple[int, int]]]]  # kind, group: pairs of images

    @property
    def starts(self) -> NDArray[np.int64]:
        """Number of each image's first view."""
        return np.cumsum([0, *self.views])[:-1].astype(np.int64)

    @property
    def owners(self) -> NDArray[np.int64]:
        """The image of each view."""
        return np.repeat(np.arange(len(self.views), dtype=np.int64), self.views)


def make_plan(data: MatcherData, options: ViewsOptions, held_out: bool = False) -> ViewPlan:
    """The plan for training, or for validation: the held-out scenes alone. Raises ``LogpolarError`` if it is empty."""
    plan = ViewPlan([], [], {kind: {} for kind in KINDS})
    for path in _files(data.scenes):
        if (path.stem in data.held_out) == held_out:
            _add_scene(plan, path, options.scene_views)
    for path in [] if held_out else _files(data.photos):
        image = _add(plan, SourceFile(path), options.photo_views)
        plan.pairs["photo"][str(path)] = [(image, image)]
    for path in [] if held_out else _files(data.aligned):
        for pair in read_pair_list(path):
            homography = None if pair.homography is None else tuple(pair.homography.ravel().tolist())
            first = _add(plan, SourceFile(pair.first), options.aligned_views)
            second = _add(plan, SourceFile(pair.second, None, homography), options.aligned_views)
            plan.pairs["aligned"][str(pair.first)] = [(first, second)]
    if not plan.files:
        raise LogpolarError("[data] names no scenes, photos or aligned pairs to make views of")
    return plan


def _add(plan: ViewPlan, file: SourceFile, views: int) -> int:
    plan.files.append(file)
    plan.views.append(views)
    return len(plan.files) - 1


def _add_scene(plan: ViewPlan, path: Path, views: int) -> None:
    with CorrespondenceFile(path) as file:
        usable = [n for n in range(len(file.images)) if file.read_camera(n) is not None]
        rows = {number: _add(plan, SourceFile(path, number), views) for number in usable}
        pairs = [(rows[a], rows[b]) for a, b in file.pair_images.tolist() if a in rows and b in rows]
    if not pairs:
        raise LogpolarError(f"{path}: has no pairs of images with cameras; make it with `logpolar dataset colmap`")
    plan.pairs["scene"][path.stem] = pairs
    plan.pairs["photo"][path.stem] = [(image, image) for image in rows.values()] if views > 1 else []


def _files(patterns: Sequence[str]) -> list[Path]:
    found = []
    for pattern in patterns:
        matches = sorted(glob.glob(pattern))  # noqa: PTH207 # the pattern may start anywhere
        if not matches:
            raise LogpolarError(f"{pattern}: no such file")
        found += [Path(match) for match in matches]
    return list(dict.fromkeys(found))
