"""Photos, COLMAP workspaces, correspondence files and aligned pairs read as data to train a detector on."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from logpolar.datasets.aligned import read_pair_list
from logpolar.datasets.building import split_images
from logpolar.datasets.depth import invert
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.homographies import make_photo_pair
from logpolar.datasets.options import PairRules, SplitRules, ViewOptions
from logpolar.datasets.surfaces import read_stored_surface
from logpolar.datasets.visibility import select_pairs, shared_points
from logpolar.distributed import cores
from logpolar.errors import LogpolarError
from logpolar.geometry.cameras import Camera, Matrix
from logpolar.images import downscale, find_images, read_gray, resize_matrix, to_bytes
from logpolar.sfm.depth_maps import read_depth
from logpolar.sfm.workspace import Scene, View, read_workspace
from logpolar.training.detector_options import DetectorSource
from logpolar.training.detector_sources import Bytes, SourceImages, from_cameras, from_homographies, join, reduce_depth
from logpolar.training.detector_votes import find_votes
from logpolar.types import FloatArray

_MAX_SIZE = 1024
_VIEWS = 3  # pairs of views of a photo


def load_source(source: DetectorSource, split: str, seed: int = 0, votes: bool = False) -> SourceImages:
    """The images of a split, train or validation, of a source; raises ``LogpolarError`` if there are no pairs.

    ``votes``: also find what detectors agree on, in photos, which takes longer than reading them.
    """
    if source.kind == "photos":
        read = _read_photos(source.files, split, seed, votes)
    else:
        read = {"scenes": _read_scenes, "aligned": _read_aligned}[source.kind](source.files, split, seed)
    if not len(read) and split == "train":
        raise LogpolarError(f"{', '.join(source.files)}: no image pairs to train a detector on")
    return read


def _in_split(names: Sequence[str], split: str, seed: int) -> list[int]:
    splits = split_images(list(names), SplitRules(seed=seed))
    return [number for number, name in enumerate(names) if splits[name] == split]


def _read_photos(files: Sequence[str], split: str, seed: int, votes: bool) -> SourceImages:
    found = find_images(files)
    names, paths = list(found), list(found.values())
    chosen = _in_split(names, split, seed)
    tasks = [(number, view) for number in chosen for view in range(_VIEWS)]

    def make(task: tuple[int, int]) -> tuple[Bytes, Bytes, Matrix, int, Sequence[FloatArray]]:
        pair = make_photo_pair(paths, seed, ViewOptions(max_size=_MAX_SIZE), task)
        found = find_votes(pair.first, pair.second, pair.homography) if votes else ()
        return pair.first, pair.second, pair.homography, task[0], found

    with ThreadPoolExecutor(cores()) as threads:  # OpenCV releases the lock
        made = list(threads.map(make, tasks))
    return from_homographies([each[:4] for each in made], [found for each in made for found in each[4]])


def _read_aligned(files: Sequence[str], split: str, seed: int) -> SourceImages:
    pairs = [pair for file in files for pair in read_pair_list(file)]
    names = [f"{number} {pair.first}" for number, pair in enumerate(pairs)]
    made = []
    for number in _in_split(names, split, seed):
        pair = pairs[number]
        read = [read_gray(path) for path in (pair.first, pair.second)]
        small = [to_bytes(downscale(gray, _MAX_SIZE)) for gray in read]
        to_small = [resize_matrix(old.shape[::-1], new.shape[::-1]) for old, new in zip(read, small, strict=True)]
        given = np.eye(3) if pair.homography is None else pair.homography
        made.append((small[0], small[1], to_small[1] @ given @ np.linalg.inv(to_small[0]), number))
    return from_homographies(made)


def _read_scenes(files: Sequence[str], split: str, seed: int) -> SourceImages:
    parts = []
    for path in map(Path, files):
        parts.append(_read_file(path, split) if path.is_file() else _read_scene(path, split, seed))
    return join(parts, has_depth=True)


def _read_file(path: Path, split: str) -> SourceImages:
    """A scene that `dataset colmap` stored, with the split that it chose."""
    with CorrespondenceFile(path) as file:
        pairs = file.pair_images[file.pairs(split)].reshape(-1, 2)
        used, rows = np.unique(pairs, return_inverse=True)
        cameras = [file.read_camera(number) for number in used.tolist()]
        known = [camera for camera in cameras if camera is not None]
        if len(known) < len(cameras):
            raise LogpolarError(f"{path}: has no cameras; make it with `logpolar dataset colmap`")
        images = [file.read_image(number) for number in used.tolist()]
        depths = [invert(read_stored_surface(file, number)) for number in used.tolist()]
    return from_cameras(images, depths, known, rows.reshape(-1, 2).astype(np.int64), [0] * len(pairs))


def _read_scene(folder: Path, split: str, seed: int) -> SourceImages:
    scene = read_workspace(folder)
    splits = split_images([view.name for view in scene.views], SplitRules(seed=seed))
    names = [splits[view.name] for view in scene.views]
    rules = PairRules(min_overlap=0.1)
    pairs, _ = select_pairs(scene, shared_points(scene), names, rules, np.random.default_rng(seed), _MAX_SIZE)
    return _load_views(scene, [pair.views for pair in pairs if names[pair.first] == split])


def _load_views(scene: Scene, pairs: Sequence[tuple[int, int]]) -> SourceImages:
    used = sorted({number for pair in pairs for number in pair})
    with ThreadPoolExecutor(cores()) as threads:
        read = list(threads.map(_load_view, [scene.views[number] for number in used]))
    row = {number: place for place, number in enumerate(used)}
    table = np.array([(row[first], row[second]) for first, second in pairs], np.int64).reshape(-1, 2)
    images, depths, cameras = [each[0] for each in read], [each[1] for each in read], [each[2] for each in read]
    return from_cameras(images, depths, cameras, table, [0] * len(pairs))


def _load_view(view: View) -> tuple[Bytes, FloatArray, Camera]:
    image = to_bytes(downscale(read_gray(view.image), _MAX_SIZE))
    return image, reduce_depth(read_depth(view.depth)), view.camera.resized(image.shape[1], image.shape[0])
