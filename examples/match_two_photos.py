"""Two photos: features, matches, geometry, a picture. Here two views of the shipped photo."""

from __future__ import annotations

import tempfile
from pathlib import Path

import cv2

import logpolar
from logpolar.viewing.demo import demo_pair
from logpolar.viewing.drawing import draw_matches, write_picture

views = demo_pair()

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    cv2.imwrite(str(folder / "a.png"), views.first)
    cv2.imwrite(str(folder / "b.png"), views.second)

    extractor = logpolar.Extractor("logpolar-96", logpolar.SiftDetector(max_keypoints=400))
    a, b = extractor.extract(folder / "a.png"), extractor.extract(folder / "b.png")
    matches = logpolar.match_descriptors(a.descriptors, b.descriptors, logpolar.MatchingOptions(ratio=0.9))
    start, end = a.keypoints.xy[matches.indices[:, 0]], b.keypoints.xy[matches.indices[:, 1]]
    geometry = logpolar.estimate_homography(start, end)
    write_picture(folder / "matches.png", draw_matches(views.first, views.second, start, end, geometry.inliers))

truth = cv2.perspectiveTransform(start[:, None], views.homography)[:, 0]
right = int((((truth - end) ** 2).sum(axis=1) <= 9).sum())
print(f"{geometry.inlier_count} of {len(matches)} matches agree on a homography, {right} are right")
