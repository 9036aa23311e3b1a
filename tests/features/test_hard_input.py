from __future__ import annotations

import numpy as np
import pytest

from logpolar.errors import KeypointError
from logpolar.features.extractor import Extractor
from logpolar.keypoints import Keypoints


@pytest.fixture(scope="module")
def extractor():
    return Extractor()


@pytest.fixture
def small(photo):
    return np.ascontiguousarray(photo[:90, 100:260])


class TestExtractionOfHardInput:
    @pytest.mark.parametrize("shape", [(1, 1), (1, 50), (60, 60)])
    def test_image_without_keypoints_gives_empty_features(self, extractor, shape):
        features = extractor.extract(np.full(shape, 77, np.uint8))
        assert len(features) == 0
        assert features.descriptors.shape == (0, 128)
        assert features.image_size == shape[::-1]

    def test_keypoints_outside_the_image_are_described(self, extractor, small):
        keypoints = Keypoints.from_points([[-40, -40], [1e4, 5], [1e9, -1e9]])
        descriptors = extractor.extract(small, keypoints).descriptors
        np.testing.assert_allclose(np.linalg.norm(descriptors, axis=1), 1, atol=1e-4)

    def test_any_positive_size_is_described(self, extractor, small):
        keypoints = Keypoints.from_points([[40, 40]] * 3, size=[1e-6, 1, 1e6])
        descriptors = extractor.extract(small, keypoints).descriptors
        np.testing.assert_allclose(np.linalg.norm(descriptors, axis=1), 1, atol=1e-4)

    def test_given_keypoints_keep_their_order_and_position(self, extractor, small):
        keypoints = Keypoints.from_points([[50, 40], [20, 30]], size=[3, 5], angle=[10, 20])
        forth, back = extractor.extract(small, keypoints), extractor.extract(small, keypoints[::-1])
        np.testing.assert_allclose(forth.descriptors, back.descriptors[::-1], atol=1e-5)
        np.testing.assert_array_equal(forth.keypoints.xy, keypoints.xy)

    @pytest.mark.parametrize("size", [0, -1, np.nan, np.inf])
    def test_sizes_that_are_no_sizes_are_refused(self, extractor, small, size):
        with pytest.raises(KeypointError, match=r"1 of 2 keypoints .*size.* number 1"):
            extractor.extract(small, Keypoints.from_points([[5, 5], [6, 6]], size=[3, size]))

    def test_position_that_is_not_finite_is_refused(self, extractor, small):
        with pytest.raises(KeypointError, match="position"):
            extractor.extract(small, Keypoints.from_points([[np.nan, 5]]))
