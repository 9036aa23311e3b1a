"""The files that the documentation takes for granted, in small: photos, a COLMAP project, scenes, files of others."""

from __future__ import annotations

import shutil
import tarfile
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import cv2
import numpy as np

from colmap_databases import write_database
from hloc_readers import write_features
from logpolar.datasets.options import KeypointRules, PairRules, SceneOptions, SplitRules
from logpolar.datasets.scenes import build_scene
from logpolar.images import to_gray
from logpolar.keypoints.detection import SiftDetector
from synthetic_world import standard_world, write_workspace

SIZE = (160, 120)
BLUR = 1.5
"""Of the photos, in pixels: it leaves 150 keypoints of each, enough for a model and quickly described."""

VIEW = np.array([[0.62, -0.3, 52.0], [0.34, 0.6, -4.0], [2e-4, -1e-4, 1.0]])
"""From a.jpg to b.jpg: smaller, turned and tilted."""


def write_inputs(folder: Path, photo: np.ndarray) -> None:
    """All of it; pages get copies of this folder."""
    write_two_photos(folder, photo)
    world = standard_world(cameras=24, width=SIZE[0], height=SIZE[1])
    world = replace(world, cameras=world.cameras[:4])  # those nearest to each other
    photos = {f"{n}.jpg": cv2.GaussianBlur(image, (0, 0), BLUR) for n, (image, _) in enumerate(world.views)}
    names = list(photos)
    write_workspace(world, folder / "scenes" / "castle", image_names=names)
    for place in (folder / "photos", folder / "scenes" / "castle" / "images"):
        write_photos(place, photos)
    for copy in ("train-scenes", "test-scenes"):
        shutil.copytree(folder / "scenes", folder / copy)
    for copy in ("place", "imw_data/phototourism/reichstag"):
        shutil.copytree(folder / "photos", folder / copy)
    write_project(folder / "database.db", photos)
    build_scene(folder / "scenes" / "castle", folder / "scene.h5", SCENE)
    write_sequence(folder / "hpatches" / "v_astronaut", photo)
    write_hloc_files(folder, names)
    (folder / "shards").mkdir()
    with tarfile.open(folder / "shards" / "0001.tar", "w") as file:
        file.add(folder / "photos", "photos")


SCENE = SceneOptions(
    pairs=PairRules(min_overlap=0.1),
    keypoints=KeypointRules(max_keypoints=300, distractors=20),
    split=SplitRules(validation=0.3),
)


def write_two_photos(folder: Path, photo: np.ndarray) -> None:
    first = photo[30:200, 150:320]
    cv2.imwrite(str(folder / "a.jpg"), first)
    cv2.imwrite(str(folder / "b.jpg"), cv2.warpPerspective(first, VIEW, (170, 160), borderMode=cv2.BORDER_REFLECT))


def write_photos(folder: Path, photos: dict[str, np.ndarray]) -> None:
    folder.mkdir(exist_ok=True)
    for name, image in photos.items():
        cv2.imwrite(str(folder / name), image, [cv2.IMWRITE_JPEG_QUALITY, 98])


def write_project(path: Path, photos: dict[str, np.ndarray]) -> None:
    """A database of COLMAP 3.11 with SIFT keypoints of all photos and matches of all pairs."""
    found = {name: SiftDetector()(to_gray(image)).to_colmap() for name, image in photos.items()}
    write_database(path, "3.11", found, SIZE, list(combinations(range(5, 5 + len(found)), 2)))


def write_sequence(folder: Path, photo: np.ndarray) -> None:
    """Images 1 and 2 of HPatches' layout."""
    folder.mkdir(parents=True)
    first = photo[80:220, 140:300]
    homography = np.array([[0.95, 0.08, 4.0], [-0.05, 1.02, 3.0], [1e-4, -5e-5, 1.0]])
    cv2.imwrite(str(folder / "1.ppm"), first)
    cv2.imwrite(str(folder / "2.ppm"), cv2.warpPerspective(first, homography, (160, 140)))
    np.savetxt(folder / "H_1_2", homography)


def write_hloc_files(folder: Path, names: list[str]) -> None:
    """Features of 256 numbers without scales, and a list of pairs."""
    random = np.random.default_rng(0)
    for name in names:
        rows = random.normal(size=(30, 256))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        write_features(folder / "feats-superpoint.h5", name, random.uniform(0, 120, (30, 2)), rows, SIZE)
    lines = [f"{first} {second}\n" for first, second in combinations(names, 2)]
    (folder / "pairs-netvlad.txt").write_text("".join(lines))
