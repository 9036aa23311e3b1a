"""Where keypoints come from, and what is left of them without the detector's sizes."""

from __future__ import annotations

import numpy as np
import pytest

from logpolar.evaluation.descriptors.keypoint_sources import open_source, sift_source, with_fixed_size
from logpolar.images import to_bytes
from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import SiftDetector


class TestFixedSize:
    def test_rules(self):
        keypoints = Keypoints.from_points(np.zeros((3, 2)), [1.0, 5.0, 30.0], [1, 2, 3])
        assert with_fixed_size((100, 400), keypoints, "median").size.tolist() == [5, 5, 5]
        assert with_fixed_size((100, 400), keypoints, 0.02).size.tolist() == [8, 8, 8]
        assert with_fixed_size((100, 400), keypoints, 0.02).angle.tolist() == [1, 2, 3]
        assert len(with_fixed_size((100, 400), keypoints[:0], "median")) == 0
        for rule in ("mean", 0.0, 1.5, -1.0):
            with pytest.raises(ValueError, match="fixed size"):
                with_fixed_size((100, 400), keypoints, rule)

    def test_source(self, gray):
        view = to_bytes(gray)[:200, :300]
        plain, fixed = sift_source(50, 0.04), sift_source(50, 0.04, 0.01)
        expected = SiftDetector(50, 0.04, spread=0)(gray[:200, :300])
        np.testing.assert_array_equal(plain(view).table, expected.table)
        np.testing.assert_array_equal(fixed.detect(view).table, expected.table)
        np.testing.assert_array_equal(fixed(view).xy, expected.xy)
        assert fixed(view).size.tolist() == [3.0] * 50
        assert fixed.settings != plain.settings != sift_source(50, 0.03).settings


def test_places_of_sift_without_sizes_and_angles(photo):
    sift = open_source("sift", 200, 0.0)(photo)
    found = open_source("sift,size=6", 200, 0.0)(photo)
    places = list(dict.fromkeys(map(tuple, sift.xy.tolist())))
    assert len(places) < len(sift)  # some have two angles
    assert list(map(tuple, found.xy.tolist())) == places
    assert set(found.size.tolist()) == {6.0}
    assert not found.angle.any()
    assert open_source("sift,size=6", 200, 0.0).settings != open_source("sift", 200, 0.0).settings
