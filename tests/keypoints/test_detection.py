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
    everything, few = SiftDetector(max_keypoints=None)(gray), SiftDetector(max_keypoints=100)(gray)
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
    def made(counts):
        """Keypoints of four size bands; small ones are stronger."""
        size = np.repeat([2.0, 5.0, 9.0, 20.0], counts)
        response = 100 / size + np.random.default_rng(0).uniform(0, 1, len(size))
        return Keypoints.from_points(np.zeros((len(size), 2)), size, None, response)

    def test_bands_get_their_part(self):
        chosen = select_keypoints(self.made([900, 50, 40, 30]), 80, 1.0)
        assert np.unique(chosen.size, return_counts=True)[1].tolist() == [20, 20, 20, 20]
        assert (np.diff(chosen.response) <= 0).all()

    def test_within_a_band_the_strongest(self):
        points = self.made([900, 50, 40, 30])
        chosen = select_keypoints(points, 80, 1.0)
        for size in np.unique(points.size):
            best = np.sort(points.response[points.size == size])[::-1][:20]
            np.testing.assert_array_equal(chosen.response[chosen.size == size], best)

    def test_what_a_band_lacks_goes_to_the_strongest(self):
        chosen = select_keypoints(self.made([900, 50, 3, 0]), 80, 1.0)
        assert np.unique(chosen.size, return_counts=True)[1].tolist() == [57, 20, 3]

    def test_half(self):
        chosen = select_keypoints(self.made([900, 50, 40, 30]), 80, 0.5)
        assert np.unique(chosen.size, return_counts=True)[1].tolist() == [50, 10, 10, 10]

    def test_none_is_the_strongest(self, gray):
        every = SiftDetector(None)(gray)
        np.testing.assert_array_equal(SiftDetector(50, spread=0)(gray).table, every.strongest(50).table)

    @pytest.mark.parametrize("count", [0, 1, 5])
    def test_few(self, count):
        assert len(select_keypoints(self.made([count, 0, 0, 0]), 4, 1.0)) == min(count, 4)

    def test_out_of_range(self):
        with pytest.raises(ValueError, match="spread must lie between 0 and 1, not 2"):
            SiftDetector(spread=2)
