"""OpenCV: the demo's two views, our features in the place of cv2.SIFT, OpenCV's matcher and homography."""

from __future__ import annotations

import cv2
import numpy as np

from logpolar.integrations.opencv import LogPolarFeature
from logpolar.viewing.demo import demo_pair

views = demo_pair()
feature = LogPolarFeature.create(nfeatures=500)  # was: cv2.SIFT.create(nfeatures=500)
first, first_descriptors = feature.detectAndCompute(views.first, None)
second, second_descriptors = feature.detectAndCompute(views.second, None)

matcher = cv2.BFMatcher(feature.defaultNorm(), crossCheck=True)
matches = matcher.match(first_descriptors, second_descriptors)
start = np.float32([first[match.queryIdx].pt for match in matches])
end = np.float32([second[match.trainIdx].pt for match in matches])
_, inliers = cv2.findHomography(start, end, cv2.USAC_MAGSAC, 3)

truth = cv2.perspectiveTransform(start[:, None], views.homography)[:, 0]
right = int((np.linalg.norm(truth - end, axis=1) <= 3).sum())
print(f"OpenCV: {right} of {len(matches)} matches are right, {int(inliers.sum())} are inliers of a homography")
