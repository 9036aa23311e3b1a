from __future__ import annotations

from functools import partial

import cv2
import pytest

from logpolar.cli.options import open_extractor
from logpolar.folders import extract_images
from logpolar.images import find_images
from logpolar.match_files import match_pairs
from logpolar.pairing import exhaustive_pairs
from synthetic_world import standard_world

open_few = partial(open_extractor, model="logpolar-96", max_keypoints=300, max_size=0, runtime="onnxruntime")


@pytest.fixture(scope="session")
def scene(tmp_path_factory):
    """A folder with six photos of an exact world, their features and matches of all pairs; not to be changed."""
    place = tmp_path_factory.mktemp("scene")
    (place / "photos" / "deep").mkdir(parents=True)
    names = [f"deep/{index}.png" if index == 5 else f"{index}.png" for index in range(6)]
    for name, (image, _) in zip(names, standard_world(cameras=6).views, strict=True):
        cv2.imwrite(str(place / "photos" / name), image)
    extract_images(find_images([place / "photos"]), place / "features.h5", open_few)
    match_pairs(place / "features.h5", place / "matches.h5", exhaustive_pairs(names))
    return place
