from __future__ import annotations

import numpy as np
import pytest

from logpolar.evaluation.report.paper_plots import (
    COLOURS,
    SCALES,
    chosen_pairs,
    log_polar_radii,
    plot_pooling,
    sift_cells,
)
from logpolar.geometry.two_view import Points
from logpolar.images import to_bytes, to_gray
from logpolar.sampling import Cartesian
from logpolar.viewing.demo import demo_pair


def sent(homography: np.ndarray, xy: np.ndarray) -> Points:
    points = np.c_[xy, np.ones(len(xy))] @ homography.T
    return points[:, :2] / points[:, 2:]


class TestSiftCells:
    @pytest.mark.parametrize("angle", [0.0, 30.0, 250.0])
    def test_middles_are_those_of_a_cartesian_pattern_of_six_sizes(self, angle):
        cells = sift_cells(np.array([50, 70]), 8.0, angle)
        points = Cartesian(6, 4, 4).locate(np.array([[50.0, 70.0]]), np.array([8.0]), np.array([angle]))
        expected = np.stack([points.x.ravel(), points.y.ravel()], axis=1)
        np.testing.assert_allclose(cells.mean(axis=1), expected, atol=1e-9)

    def test_corners_by_hand(self):
        cells = sift_cells(np.array([100, 200]), 2.0, 90.0)
        assert cells.shape == (16, 4, 2)
        np.testing.assert_allclose(cells[0], [[106, 194], [106, 197], [103, 197], [103, 194]], atol=1e-9)
        sides = np.linalg.norm(np.diff(cells, axis=1), axis=2)
        np.testing.assert_allclose(sides, 3.0)


def test_rings_double():
    radii = log_polar_radii(48.0)
    assert radii[-1] == 48
    np.testing.assert_allclose(radii[1:] / radii[:-1], 2)


def test_pooling_shows_all_scales_on_the_photo():
    figure = plot_pooling(12.0)
    axes = np.array(figure.axes).reshape(len(SCALES), 6)
    gray = to_bytes(to_gray(demo_pair().first))
    reach = []
    for row in axes:
        for axis in (*row[:3], row[4]):
            np.testing.assert_array_equal(axis.get_images()[0].get_array(), gray)
        assert len(row[0].patches) == 16
        samples = row[2].collections[0].get_offsets()
        assert samples.shape == (32 * 32, 2)
        reach.append(np.ptp(samples, axis=0).max())
        assert row[3].get_images()[0].get_array().shape == row[5].get_images()[0].get_array().shape == (32, 32)
    np.testing.assert_allclose(np.array(reach) / reach[0], SCALES, rtol=0.1)
    log_polar, cartesian = ([row[column].get_images()[0].get_array() for row in axes] for column in (3, 5))
    alike = [np.corrcoef(patches[0].ravel(), patches[1].ravel())[0, 1] for patches in (log_polar, cartesian)]
    assert alike[0] > 0.7 > alike[1]


def test_chosen_pairs_show_the_same_place():
    pair = demo_pair(zoom=2.0, rotation=30.0)
    first, second = chosen_pairs(pair, 8.0)
    assert len(first) == len(second) == len(COLOURS)
    assert np.linalg.norm(sent(pair.homography, first.xy) - second.xy, axis=1).max() < 1.5
    ratio = np.abs(np.log2(first.size / second.size / 2))
    assert int(np.argmax(ratio)) == COLOURS.index("red")
    assert ratio[1] > 1
    assert np.delete(ratio, 1).max() < 0.5
