"""A folder of photos into one file, and the file read again: here two parts of the shipped photo."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import cv2

from logpolar import Extractor, FeatureFile, SiftDetector, match_descriptors
from logpolar.features.batch import extract_images
from logpolar.images import find_images
from logpolar.viewing.demo import demo_pair

photo = demo_pair().first

with tempfile.TemporaryDirectory() as folder:
    photos, features = Path(folder) / "photos", Path(folder) / "features.h5"
    photos.mkdir()
    cv2.imwrite(str(photos / "left.png"), photo[:300, :300])
    cv2.imwrite(str(photos / "right.png"), photo[:300, 100:400])

    # The extractor is opened in each process, so it is given as a function. A second call continues what was stopped.
    report = extract_images(find_images([photos]), features, partial(Extractor, "logpolar-96", SiftDetector(200)))
    print(f"{report.done} photos described, {len(report.failed)} could not be read")

    with FeatureFile(features) as file:
        left, right = (file.read(name) for name in ("left.png", "right.png"))

matches = match_descriptors(left.descriptors, right.descriptors)
moved = left.keypoints.xy[matches.indices[:, 0]] - right.keypoints.xy[matches.indices[:, 1]]
right_ones = int((abs(moved - (100, 0)).max(axis=1) < 2).sum())
print(f"{right_ones} of {len(matches)} matches are 100 px apart, as the two parts are")
