from __future__ import annotations

import numpy as np
import pytest

from logpolar.keypoints.peaks import NMS_RADIUS, TEMPERATURE, WINDOW, find_peaks


def test_positions_of_smooth_bumps():
    """A parabola's soft-argmax is symmetric about its top, which lies between pixels here."""
    y, x = np.mgrid[:40, :60]
    scores = np.zeros((40, 60), np.float32)
    tops = [(12.3, 8.0), (40.0, 25.4), (30.5, 12.0)]
    for cx, cy in tops:
        scores += 20 * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / 8).astype(np.float32)
    xy, values = find_peaks(scores, 3)
    order = np.argsort(xy[:, 0])
    assert xy[order] == pytest.approx(np.array(sorted(tops)), abs=0.25)
    assert (np.diff(values) <= 0).all()


def test_peaks_against_pixels_one_by_one():
    scores = np.random.default_rng(0).normal(size=(30, 25)).astype(np.float32)
    xy, values = find_peaks(scores, None)
    expected = {}
    for y in range(WINDOW, 30 - WINDOW):
        for x in range(WINDOW, 25 - WINDOW):
            near = scores[max(y - NMS_RADIUS, 0) : y + NMS_RADIUS + 1, max(x - NMS_RADIUS, 0) : x + NMS_RADIUS + 1]
            if scores[y, x] == near.max():
                around = np.exp(scores[y - WINDOW : y + WINDOW + 1, x - WINDOW : x + WINDOW + 1] / TEMPERATURE)
                steps = np.arange(-WINDOW, WINDOW + 1)
                shift = (around.sum(0) @ steps / around.sum(), around.sum(1) @ steps / around.sum())
                expected[float(scores[y, x])] = (x + shift[0], y + shift[1])
    assert values.tolist() == sorted(expected, reverse=True)
    assert xy == pytest.approx(np.array([expected[value] for value in values.tolist()]), abs=1e-4)
    assert np.array_equal(find_peaks(scores, 7)[0], xy[:7])


@pytest.mark.parametrize("shape", [(1, 1), (4, 30), (30, 4), (5, 5)])
def test_maps_too_small_for_a_peak(shape):
    xy, values = find_peaks(np.zeros(shape, np.float32), 10)
    assert xy.shape == (0, 2)
    assert values.shape == (0,)


def test_a_flat_map_has_no_peaks():
    assert len(find_peaks(np.full((50, 50), 2.0, np.float32), None)[0]) == 0
