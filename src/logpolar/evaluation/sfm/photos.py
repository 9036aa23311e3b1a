"""The photos of a scene as a structure from motion is given them: images only, some of them reduced."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from logpolar.errors import StorageError
from logpolar.evaluation.poses.scenes import PosedScene
from logpolar.evaluation.sfm.options import StructureTest
from logpolar.geometry.cameras import Camera
from logpolar.images import downscale, to_bytes, to_gray
from logpolar.storage.atomic_io import write_whole


@dataclass(frozen=True, eq=False)
class ScenePhotos:
    """Rows of a scene's images that were chosen, sorted by name, and which of them are reduced."""

    scene: PosedScene
    rows: list[int]
    reduced: list[bool]

    @property
    def names(self) -> list[str]:
        """Of the files: PNG whatever the image was, so that nothing is lost twice."""
        return [f"{self.scene.images[row].name}.png" for row in self.rows]

    @property
    def cameras(self) -> dict[str, Camera]:
        """The true ones by names of files; poses are those of the images before they were reduced."""
        return {name: self.scene.images[row].camera for name, row in zip(self.names, self.rows, strict=True)}

    def identity(self, factor: float) -> dict[str, Any]:
        """What tells these photos from others."""
        content = [self.scene.identity(), self.names, self.reduced, factor]
        return {"photos": hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]}


def choose_photos(scene: PosedScene, test: StructureTest) -> ScenePhotos:
    """As many images as the test asks for, drawn by its seed; every second one in the order of names is reduced."""
    order = sorted(range(len(scene.images)), key=lambda row: scene.images[row].name)
    if test.images and test.images < len(order):
        drawn = np.random.default_rng(test.seed).permutation(len(order))[: test.images]
        order = [order[place] for place in sorted(drawn.tolist())]
    if len(order) < 2:
        raise StorageError(f"{scene.name}: a model needs two images or more")
    return ScenePhotos(scene, order, [test.shrink > 1 and place % 2 == 1 for place in range(len(order))])


def write_photos(photos: ScenePhotos, folder: Path, factor: float) -> None:
    """Gray PNG files into a folder; those that are there already stay."""
    for name, row, reduced in zip(photos.names, photos.rows, photos.reduced, strict=True):
        path = folder / name
        if path.exists():
            continue
        pixels = photos.scene.images[row].read()
        if reduced:
            pixels = to_bytes(downscale(to_gray(pixels), max(round(max(pixels.shape) / factor), 1)))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, cv2.imencode(".png", pixels)[1].tobytes())
