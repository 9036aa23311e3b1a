from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from logpolar.errors import MissingExtraError
from logpolar.keypoints import Keypoints
from logpolar.sampling import Cartesian, ImagePyramid, LogPolar
from logpolar.viewing.plotting import plot_patches, spread_keypoints


@pytest.fixture
def keypoints():
    return Keypoints.from_points([[256, 256], [100, 300]], size=[8, 4], angle=[30, 200])


def images_of(axis) -> list[np.ndarray]:
    return [np.asarray(image.get_array()) for image in axis.get_images()]


def test_spread_takes_the_strongest_that_are_apart():
    points = Keypoints.from_points([[0, 0], [1, 0], [50, 0], [100, 0]], response=[3, 9, 2, 1])
    assert spread_keypoints(points, 3, min_gap=10, max_size=100).xy[:, 0].tolist() == [1, 50, 100]


def test_spread_stops_at_the_count():
    points = Keypoints.from_points([[0, 0], [50, 0], [100, 0]], response=[1, 2, 3])
    assert spread_keypoints(points, 2, min_gap=10, max_size=100).xy[:, 0].tolist() == [100, 50]


def test_spread_takes_large_keypoints_last():
    points = Keypoints.from_points([[0, 0], [50, 0], [100, 0]], size=[30, 3, 4], response=[9, 1, 2])
    assert spread_keypoints(points, 3, min_gap=10, max_size=20).xy[:, 0].tolist() == [100, 50, 0]


def test_spread_of_nothing():
    assert len(spread_keypoints(Keypoints.empty(), 4, min_gap=10, max_size=100)) == 0


def test_a_row_of_six_for_each_keypoint_and_an_overview(gray, keypoints):
    figure = plot_patches(gray, keypoints, LogPolar(64), Cartesian(12))
    overview, details = figure.subfigs
    assert (len(overview.axes), len(details.axes)) == (1, 2 * 6)
    titles = [axis.get_title() for axis in details.axes[:6]]
    assert titles[0].endswith("λ = 64")
    assert titles[1].endswith("λ = 12")


def test_the_patches_are_those_the_patterns_see(gray, keypoints):
    patterns = LogPolar(64), Cartesian(12)
    axes = plot_patches(gray, keypoints, *patterns).subfigs[1].axes
    doubled = Keypoints(keypoints.xy, 2 * keypoints.size, keypoints.angle, keypoints.response)
    pyramid = ImagePyramid(gray)
    for column, (points, pattern) in enumerate((p, q) for p in (keypoints, doubled) for q in patterns):
        expected = pyramid.sample(points, pattern)
        for row in range(2):
            np.testing.assert_allclose(images_of(axes[6 * row + 2 + column])[0], expected[row])


def test_sample_positions_are_drawn_where_the_pattern_looks(gray, keypoints):
    pattern = LogPolar(64)
    axis = plot_patches(gray, keypoints, pattern, Cartesian(12)).subfigs[1].axes[6]
    drawn = np.asarray(axis.collections[0].get_offsets())
    points = pattern.locate(keypoints.xy[1:], keypoints.size[1:], keypoints.angle[1:])
    np.testing.assert_allclose(drawn, np.stack([points.x.reshape(-1), points.y.reshape(-1)], axis=1), atol=1e-3)


def test_support_regions_in_the_overview_have_the_patterns_size(gray, keypoints):
    axis = plot_patches(gray, keypoints, LogPolar(64), Cartesian(12)).subfigs[0].axes[0]
    circle, square = axis.patches[:2]
    assert circle.radius == pytest.approx(64 / 2 * 8)
    corners = square.get_xy()[:4]
    np.testing.assert_allclose(np.linalg.norm(np.diff(corners, axis=0), axis=1), 12 * 8, rtol=1e-5)
    np.testing.assert_allclose(corners.mean(axis=0), keypoints.xy[0], atol=1e-3)


def test_each_keypoint_has_its_colour_in_the_pixels(gray, keypoints):
    figure = plot_patches(gray, keypoints, LogPolar(32), Cartesian(12))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[:, :, :3].astype(int)
    for name in ("tab:blue", "tab:orange"):
        colour = np.round(np.array(to_rgb(name)) * 255)
        assert (np.abs(pixels - colour).max(axis=2) < 20).sum() > 50


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "logpolar.viewing.plotting")
    with pytest.raises(MissingExtraError, match=r"logpolar\[viz\]"):
        importlib.import_module("logpolar.viewing.plotting")
