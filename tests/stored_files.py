"""A small file of every HDF5 kind, and reading all of it, also in another process."""

from __future__ import annotations

import faulthandler
from pathlib import Path

import numpy as np

import dataset_files
import hloc_readers
from feature_files import NAMES, make_features, write_feature_file
from logpolar.datasets.files import CorrespondenceFile
from logpolar.errors import LogpolarError
from logpolar.evaluation.cache import CacheFile, _CacheWriter
from logpolar.features.collections import open_features
from logpolar.matching.batch import match_pairs
from logpolar.matching.collections import open_matches
from logpolar.matching.pairs import exhaustive_pairs
from logpolar.matching.retrieval import similar_pairs

KINDS = ("features", "hloc-features", "matches", "hloc-matches", "cache", "dataset")


def write(kind: str, path: Path) -> None:
    if kind == "features":
        write_feature_file(path)
    elif kind == "hloc-features":
        for number, name in enumerate(NAMES):
            found = make_features(number)
            hloc_readers.write_features(path, name, found.keypoints.xy, found.descriptors, found.image_size)
    elif kind == "matches":
        match_pairs(write_feature_file(path.with_name("of.h5")), path, exhaustive_pairs(NAMES))
    elif kind == "hloc-matches":
        for first, second in exhaustive_pairs(NAMES):
            hloc_readers.write_matches(path, first, second, np.arange(20) - 1)
    elif kind == "cache":
        with _CacheWriter(path, {"protocol": "tests"}) as writer:
            for name in ("a", "b"):
                writer.add(name, "0" * 32, np.random.default_rng(0).random((20, 128), np.float32))
    else:
        images = [dataset_files.make_image(name, seed=seed) for seed, name in enumerate(dataset_files.NAMES)]
        dataset_files.write(path, images, [dataset_files.make_pair(images[0], images[1])])


def read(kind: str, path: Path) -> None:
    if "features" in kind:
        with open_features(path) as file:
            for name in file.names():
                file.count(name), file.image_size(name)
            similar_pairs(file.names(), lambda name: file.read(name).descriptors, 2)
    elif "matches" in kind:
        with open_matches(path, NAMES) as links:
            for pair in links.pairs():
                links.read(*pair)
    elif kind == "cache":
        with CacheFile(path) as cache:
            for name in cache.names():
                cache.read(name)
    else:
        with CorrespondenceFile(path) as scene:
            scene.counts(), scene.rejects(), scene.groups()
            for number in range(len(scene)):
                scene.read(number)
            for number in range(len(scene.images)):
                scene.read_depths(number), scene.read_camera(number), scene.read_depth_picture(number)


def refusal(kind: str, path: Path) -> str:
    """Read all of a file; why it is refused, if it is. Any other error is raised."""
    try:
        read(kind, path)
    except LogpolarError as error:
        return str(error)
    return ""


def refusal_or_exit(kind: str, path: Path) -> str:
    """The same in a process of its own, which ends where HDF5 loops for ever."""
    faulthandler.dump_traceback_later(20, exit=True)
    try:
        return refusal(kind, path)
    finally:
        faulthandler.cancel_dump_traceback_later()
