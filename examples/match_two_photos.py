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
    found = logpolar.match_and_verify(a, b, "homography", logpolar.MatchingOptions(ratio=0.9))
    start, end, inliers = found.first_xy, found.second_xy, found.geometry.inliers
    write_picture(folder / "matches.png", draw_matches(views.first, views.second, start, end, inliers))

truth = cv2.perspectiveTransform(start[:, None], views.homography)[:, 0]
right = int((((truth - end) ** 2).sum(axis=1) <= 9).sum())
print(f"{inliers.sum()} of {len(inliers)} matches agree on a homography, {right} are right")
