"""A scene that is described and matched once for all tests of COLMAP's databases and models."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import cv2

from logpolar.features.batch import extract_images
from logpolar.features.extractor import Extractor
from logpolar.images import find_images
from logpolar.matching.batch import match_pairs
from logpolar.matching.pairs import exhaustive_pairs
from synthetic_world import standard_world


def open_few(max_keypoints: int = 300, threads: int = 0):
    return Extractor("logpolar-96-small", max_keypoints=max_keypoints, max_size=None, threads=threads)


def make_scene(place: Path) -> Path:
    """Six photos of an exact world in ``photos``, one of them deeper, their features, and matches of all pairs."""
    (place / "photos" / "deep").mkdir(parents=True)
    names = [f"deep/{index}.png" if index == 5 else f"{index}.png" for index in range(6)]
    for name, (image, _) in zip(names, standard_world(cameras=6).views, strict=True):
        cv2.imwrite(str(place / "photos" / name), image)
    extract_images(find_images([place / "photos"]), place / "features.h5", partial(open_few))
    match_pairs(place / "features.h5", place / "matches.h5", exhaustive_pairs(names))
    return place
