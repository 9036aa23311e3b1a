from __future__ import annotations

import cv2
import numpy as np
import pytest

from logpolar.keypoints import Keypoints
from logpolar.keypoints.detection import FeatureDetector, SiftDetector, select_keypoints


def blob(x: float, y: float, deviation: float = 6.0, side: int = 257) -> np.ndarray:
    rows, columns = np.mgrid[:side, :side]
    return np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / (2 * deviation**2)).astype(np.float32)


@pytest.mark.parametrize("place", [(128.0, 128.0), (100.25, 140.5)])
def test_a_blob_is_found_where_it_is(place):
    keypoints = SiftDetector()(blob(*place))
    nearest = np.linalg.norm(keypoints.xy - place, axis=1).min()
    assert nearest < 0.05  # without precise upscaling it would be 0.33


def test_size_follows_the_blob():
    sizes = [SiftDetector(max_keypoints=1)(blob(128, 128, deviation)).size[0] for deviation in (5, 10)]
    assert sizes[1] / sizes[0] == pytest.approx(2, rel=0.05)


def test_angles_grow_clockwise_with_the_image(gray):
    before = SiftDetector(max_keypoints=300)(gray)
    after = SiftDetector(max_keypoints=None)(np.ascontiguousarray(np.rot90(gray, -1)))  # a quarter turn clockwise
    moved = np.stack([511 - before.xy[:, 1], before.xy[:, 0]], axis=1)
    distance = np.linalg.norm(moved[:, None] - after.xy[None], axis=2)
    here, there = np.nonzero(distance < 0.3)
    turn = (after.angle[there] - before.angle[here]) % 360
    assert len(here) > 250
    assert np.median(turn) == pytest.approx(90, abs=1)


def test_max_keypoints_keeps_the_strongest(gray):
    everything, few = SiftDetector(max_keypoints=None)(gray), SiftDetector(max_keypoints=100, spread=0)(gray)
    assert len(few) == 100 < len(everything)
    assert few.response.min() >= np.sort(everything.response)[-100]


def test_any_opencv_detector(gray):
    keypoints = FeatureDetector(cv2.ORB.create(nfeatures=300), max_keypoints=200)(gray)
    assert len(keypoints) == 200
    assert (keypoints.size >= 31).all()


def test_detector_without_angles_gives_upright_keypoints(gray):
    keypoints = FeatureDetector(cv2.GFTTDetector.create())(gray)
    assert len(keypoints) > 100
    assert (keypoints.angle == 0).all()


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (64, 64)])
def test_blank_and_tiny_images_have_no_keypoints(shape):
    assert len(SiftDetector()(np.full(shape, 0.5, np.float32))) == 0


class TestSpread:
    @staticmethod
    def made():
        """Keypoints of four sizes; small ones are more, and stronger."""
        size = np.repeat([2.0, 4.0, 8.0, 16.0], [800, 200, 50, 12])
        response = np.random.default_rng(0).uniform(0, 1, len(size)) / size
        return Keypoints.from_points(np.zeros((len(size), 2)), size, None, response)

    def test_none_keeps_the_strongest(self, gray):
        every = SiftDetector(None)(gray)
        np.testing.assert_array_equal(SiftDetector(50, spread=0)(gray).table, every.strongest(50).table)

    def test_more_of_it_keeps_larger_keypoints(self):
        points = self.made()
        means = [np.mean(np.log2(select_keypoints(points, 60, spread).size)) for spread in (0, 1, 2)]
        assert (np.diff(means) > 0.1).all()

    def test_weighted_response(self):
        points = self.made()
        chosen = select_keypoints(points, 60, 0.5)
        best = sorted(points.response * np.sqrt(points.size), reverse=True)[:60]
        np.testing.assert_allclose(chosen.response * np.sqrt(chosen.size), best, rtol=1e-6)

    def test_the_same_keypoints_at_another_scale_are_the_same_choice(self):
        """Unlike limits in pixels, a power does not depend on the image's size."""
        points = self.made()
        larger = Keypoints(points.xy, 3 * points.size, points.angle, points.response)
        np.testing.assert_array_equal(
            select_keypoints(points, 60, 0.5).response, select_keypoints(larger, 60, 0.5).response
        )

    @pytest.mark.parametrize("count", [0, 1, 5])
    def test_few(self, count):
        assert len(select_keypoints(self.made()[:count], 4, 1.0)) == min(count, 4)

    def test_out_of_range(self):
        with pytest.raises(ValueError, match="spread must lie between 0 and 4, not -1"):
            SiftDetector(spread=-1)
