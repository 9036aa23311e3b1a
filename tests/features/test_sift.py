from __future__ import annotations

import cv2
import numpy as np
import pytest

from logpolar.features.sift import root_sift, sift, sift_octave
from logpolar.images import to_bytes
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector


@pytest.fixture(scope="module")
def found(gray):
    """Keypoints of OpenCV's SIFT with their own descriptors: those that never left OpenCV."""
    pixels = to_bytes(gray)
    points, raw = cv2.SIFT.create(contrastThreshold=0.02, enable_precise_upscale=True).detectAndCompute(pixels, None)
    return pixels, points, raw


def test_octaves_are_those_that_opencv_set(found):
    _, points, _ = found
    size = np.array([point.size for point in points], np.float32)
    np.testing.assert_array_equal(sift_octave(size), [point.octave & 0xFFFF for point in points])
    assert len(np.unique(sift_octave(size))) > 9


@pytest.mark.parametrize("size", [0.01, 1.0, 1000.0])
def test_any_size_has_a_layer_that_exists(size):
    packed = int(sift_octave(np.array([size], np.float32))[0])
    octave, layer = packed & 255, packed >> 8
    assert 1 <= layer <= 3
    assert octave == 255 or octave < 12  # 255 is -1, the first


def test_descriptors_are_those_of_opencv(found):
    pixels, points, raw = found
    described = sift(pixels, Keypoints.from_opencv(points))
    np.testing.assert_allclose(described, raw / np.linalg.norm(raw, axis=1, keepdims=True), atol=0.01)
    root = np.sqrt(raw / raw.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(root_sift(pixels, Keypoints.from_opencv(points)), root, atol=0.01)


def test_root_sift_has_unit_length_and_follows_the_keypoints(photo, gray):
    keypoints = SiftDetector(40)(gray)
    descriptors = root_sift(photo, keypoints)
    assert descriptors.shape == (len(keypoints), 128)
    assert descriptors.min() >= 0
    np.testing.assert_allclose(np.linalg.norm(descriptors, axis=1), 1, atol=1e-4)
    np.testing.assert_allclose(root_sift(photo, keypoints[::-1]), descriptors[::-1], atol=1e-6)
    assert root_sift(photo, Keypoints.empty()).shape == (0, 128)
