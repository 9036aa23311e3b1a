"""A descriptor of your own beside a shipped model, on correspondences made of photos: here of the shipped one."""

from __future__ import annotations

import tempfile
from pathlib import Path

import cv2
import numpy as np

from logpolar import Cartesian, Keypoints, sample_patches
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.homographies import build_photos
from logpolar.datasets.options import KeypointRules, PhotoOptions, SplitRules, ViewOptions
from logpolar.evaluation.pairs import score_file
from logpolar.models.describers import Describer, open_describer
from logpolar.types import FloatArray
from logpolar.viewing.demo import demo_pair


class RawPixels(Describer):
    """The pixels of a square patch around each keypoint, as vectors of unit length."""

    def describe(self, gray: FloatArray, keypoints: Keypoints) -> FloatArray:
        patches = sample_patches(gray, keypoints, Cartesian(lambda_=12, rows=8, columns=8))
        rows = patches.reshape(len(patches), 64)
        rows -= rows.mean(axis=1, keepdims=True)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)


describers = {"raw pixels": RawPixels(), "logpolar-96": open_describer("logpolar-96")}

with tempfile.TemporaryDirectory() as folder:
    photo, scene = Path(folder) / "photo.png", Path(folder) / "photo.h5"
    cv2.imwrite(str(photo), demo_pair().first[:360, 100:460])
    view = ViewOptions(keypoints=KeypointRules(max_keypoints=200, distractors=50))
    build_photos({photo.name: photo}, scene, PhotoOptions(views=2, view=view, split=SplitRules(test=True)))
    with CorrespondenceFile(scene) as file:
        for name, describer in describers.items():
            print(f"{name}: {score_file(file, describer).in_words()}")
