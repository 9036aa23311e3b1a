from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from logpolar.datasets.statistics import Statistics
from logpolar.errors import MissingExtraError
from logpolar.keypoints import Keypoints
from logpolar.sampling import Cartesian, ImagePyramid, LogPolar
from logpolar.viewing.plotting import plot_patches, plot_statistics, spread_keypoints


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


@pytest.fixture(scope="module")
def axes():
    """Of five correspondences."""
    ratio = np.log(np.array([1, 1.1, 2.1, 0.26, 7.9], np.float32))
    residual = np.array([0, -24.9, 7.5, 7.6, 24.9], np.float32)
    rejects = {"no depth": 30, "depth edge": 0, "occluded": 4}
    figure = plot_statistics(Statistics(ratio, residual, rejects), "scene.h5")
    assert figure.get_suptitle() == "scene.h5"
    FigureCanvasAgg(figure).draw()
    return figure.axes


class TestStatistics:
    def counts(self, axis) -> dict[float, int]:
        """Bars that are not empty, by their middle."""
        bars = {round(bar.get_x() + bar.get_width() / 2, 2): int(bar.get_height()) for bar in axis.patches}
        return {middle: count for middle, count in bars.items() if count}

    def test_scale_ratios_in_octaves(self, axes):
        assert self.counts(axes[0]) == {0.05: 1, 0.15: 1, 1.05: 1, -1.95: 1, 2.95: 1}

    def test_orientation_residuals_in_degrees(self, axes):
        assert self.counts(axes[1]) == {0.5: 1, -24.5: 1, 7.5: 2, 24.5: 1}

    def test_classes_of_both(self, axes):
        texts = {(int(x), int(y)): int(text.get_text()) for text in axes[2].texts for x, y in [text.get_position()]}
        assert len(texts) == 5 * 7
        assert {place: count for place, count in texts.items() if count} == {
            (0, 0): 1,
            (0, 4): 1,
            (3, 1): 1,
            (5, 1): 1,
            (6, 4): 1,
        }
        assert [label.get_text() for label in axes[2].get_xticklabels()][:2] == ["1-1.25x", "1.25-1.5x"]
        assert axes[2].get_xticklabels()[-1].get_text() == "> 4x"
        assert axes[2].get_yticklabels()[-1].get_text() == "20-25°"

    def test_causes_of_rejection_that_occurred(self, axes):
        bars = [bar.get_width() for bar in axes[3].patches]
        labels = [label.get_text() for label in axes[3].get_yticklabels()]
        assert dict(zip(labels, bars, strict=True)) == {"no depth": 30, "occluded": 4}
        assert labels[-1] == "no depth"  # at the top

    def test_nothing_was_rejected(self, recwarn):
        one = np.zeros(1, np.float32)
        figure = plot_statistics(Statistics(one, one, {"no depth": 0}), "perfect")
        FigureCanvasAgg(figure).draw()
        assert figure.axes[3].patches[:] == []
        assert not recwarn.list


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "logpolar.viewing.plotting")
    with pytest.raises(MissingExtraError, match=r"logpolar\[viz\]"):
        importlib.import_module("logpolar.viewing.plotting")
