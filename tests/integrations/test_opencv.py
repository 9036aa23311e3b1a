from __future__ import annotations

import cv2
import numpy as np
import pytest

from logpolar.errors import ImageError, KeypointError
from logpolar.features.extractor import Extractor
from logpolar.integrations.opencv import LogPolarFeature
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector


@pytest.fixture(scope="module")
def feature():
    return LogPolarFeature.create(nfeatures=150)


@pytest.fixture(scope="module")
def sift():
    return cv2.SIFT.create()


def fields(keypoints):
    return [(k.pt, k.size, k.angle, k.response, k.octave, k.class_id) for k in keypoints]


def places(keypoints):
    return {k.pt for k in keypoints}


class TestLikeSift:
    """Asked the same, both answer in the same form."""

    def test_constants(self, feature, sift):
        for name in ("descriptorSize", "descriptorType", "defaultNorm", "empty"):
            assert getattr(feature, name)() == getattr(sift, name)(), name
        assert feature.getDefaultName().startswith("Feature2D.")

    def test_detect_and_compute(self, feature, sift, photo):
        for each in (feature, sift):
            keypoints, descriptors = each.detectAndCompute(photo, None)
            assert type(keypoints) is tuple
            assert all(type(keypoint) is cv2.KeyPoint for keypoint in keypoints)
            assert descriptors.shape == (len(keypoints), 128)
            assert descriptors.dtype == np.float32

    def test_compute(self, feature, sift, photo):
        for each in (feature, sift):
            keypoints, descriptors = each.compute(photo, list(each.detect(photo))[:5])
            assert type(keypoints) is tuple
            assert descriptors.shape == (5, 128)

    def test_without_keypoints(self, feature, sift, photo):
        blank = np.zeros((64, 64), np.uint8)
        for each in (feature, sift):
            assert each.detect(blank, None) == ()
            assert each.detectAndCompute(blank, None) == ((), None)
            assert each.compute(photo, []) == each.compute(photo, ()) == ((), None)

    def test_the_default_finds_what_precise_sift_finds(self, photo):
        found = LogPolarFeature.create().detect(photo)
        assert fields(found) == fields(SiftDetector().feature().detect(cv2.cvtColor(photo, cv2.COLOR_BGR2GRAY)))


class TestDetect:
    def test_the_strongest_of_all(self, feature, photo):
        found, everything = feature.detect(photo), LogPolarFeature.create().detect(photo)
        strongest = sorted((k.response for k in everything), reverse=True)[:150]
        assert [k.response for k in found] == strongest

    def test_mask(self, feature, photo):
        mask = np.zeros(photo.shape[:2], np.uint8)
        mask[100:300, 250:] = 1
        allowed = feature.detect(photo, mask)
        expected = [k for k in LogPolarFeature.create().detect(photo) if mask[int(k.pt[1] + 0.5), int(k.pt[0] + 0.5)]]
        assert len(allowed) == 150  # the strongest inside the mask, not those of the strongest that are inside
        assert places(allowed) <= places(expected)
        assert places(feature.detectAndCompute(photo, mask)[0]) == places(allowed)
        assert feature.detect(photo, mask * 0) == ()

    @pytest.mark.parametrize("mask", [np.ones((9, 9), np.uint8), np.ones((512, 512), bool)], ids=["shape", "type"])
    def test_a_mask_that_does_not_fit(self, feature, photo, mask):
        with pytest.raises(ImageError, match="mask"):
            feature.detect(photo, mask)

    def test_another_detector(self, photo):
        detector = cv2.ORB.create(60)
        feature = LogPolarFeature.create(20, detector=detector)
        keypoints, descriptors = feature.detectAndCompute(photo)
        assert places(keypoints) <= places(detector.detect(cv2.cvtColor(photo, cv2.COLOR_BGR2GRAY)))
        assert descriptors.shape == (20, 128)

    def test_a_negative_count(self):
        with pytest.raises(ValueError, match="nfeatures"):
            LogPolarFeature.create(-1)


class TestCompute:
    def test_the_library_s_descriptors(self, feature, photo):
        keypoints, descriptors = feature.detectAndCompute(photo, None)
        expected = Extractor(max_size=None).extract(photo, Keypoints.from_opencv(keypoints)).descriptors
        np.testing.assert_allclose(descriptors, expected, atol=1e-6)
        np.testing.assert_allclose(feature.compute(photo, keypoints)[1], descriptors, atol=1e-6)

    def test_nothing_is_dropped_or_changed(self, feature, photo):
        given = [
            cv2.KeyPoint(-50, 700, 6, 20, 0.5, 3, 7),
            cv2.KeyPoint(100, 100, 0, -1),
            cv2.KeyPoint(100, 100, 4, 0),
            cv2.KeyPoint(0, 0, 300, 359),
        ]
        before = fields(given)
        keypoints, descriptors = feature.compute(photo, given)
        assert fields(keypoints) == before
        np.testing.assert_allclose(descriptors[1], descriptors[2], atol=1e-6)  # no size: 4 px, no angle: upright

    def test_a_keypoint_that_cannot_be_described(self, feature, photo):
        with pytest.raises(KeypointError, match="1 of 2 keypoints"):
            feature.compute(photo, [cv2.KeyPoint(5, 5, 4), cv2.KeyPoint(float("nan"), 5, 4)])

    @pytest.mark.parametrize(
        "convert", [lambda p: cv2.cvtColor(p, cv2.COLOR_BGR2BGRA), lambda p: p.astype(np.uint16) * 257]
    )
    def test_other_kinds_of_images(self, feature, photo, convert):
        keypoints, expected = feature.detectAndCompute(photo)
        found = feature.compute(convert(photo), keypoints)[1]
        assert (found * expected).sum(axis=1).min() > 0.99

    def test_what_is_no_image(self, feature):
        with pytest.raises(ImageError):
            feature.detect(None)


@pytest.mark.parametrize("model", ["logpolar-96", "paper-cartesian-12"])
def test_brute_force_matcher(photo, model):
    feature = LogPolarFeature.create(200, model)
    turned = cv2.rotate(photo, cv2.ROTATE_90_CLOCKWISE)
    first, ours = feature.detectAndCompute(photo, None)
    second, theirs = feature.detectAndCompute(turned, None)
    matches = cv2.BFMatcher(feature.defaultNorm(), crossCheck=True).match(ours, theirs)
    right = 0
    for match in matches:
        (x, y), found = first[match.queryIdx].pt, second[match.trainIdx].pt
        right += np.hypot(511 - y - found[0], x - found[1]) < 2
    assert right > 150
    pairs = cv2.BFMatcher(feature.defaultNorm()).knnMatch(ours, theirs, k=2)
    assert all(len(pair) == 2 for pair in pairs)
