from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from logpolar.datasets import pictures
from logpolar.datasets.correspondences import Correspondences
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.pictures import draw_depths, draw_pairs, draw_patches, plot_statistics, sample_pairs
from logpolar.datasets.statistics import Statistics
from logpolar.datasets.writing import CorrespondenceWriter, ImageRecord, PairRecord
from logpolar.images import encode_gray
from logpolar.keypoints import Keypoints
from logpolar.sampling import Cartesian, LogPolar

WIDTH, HEIGHT = 396, 60  # two of them and the gap are as wide as a pair on the page: nothing is scaled
CAPTION, GAP = 36, 8
GREEN, RED = [80, 200, 60], [0, 0, 200]
PATTERNS = LogPolar(inner_radius=0.5), Cartesian()


def make_image(name: str, value: int, points=((1, 1),), split="train", depth=None) -> ImageRecord:
    """Of one gray value, so that one can tell it in a picture."""
    pixels = np.full((HEIGHT, WIDTH), value, np.uint8)
    picture = b"" if depth is None else encode_gray(np.array(depth, np.uint8), 100)
    size = pixels.shape[::-1]
    return ImageRecord(
        name, split, size, Keypoints.from_points(points), encode_gray(pixels, 100), depth_picture=picture
    )


def make_pair(first: ImageRecord, second: ImageRecord, factors) -> PairRecord:
    """Keypoint k with keypoint k; their scales differ by a factor."""
    rows = np.arange(len(factors), dtype=np.int32)
    found = Correspondences(
        first.keypoints[rows],
        second.keypoints[rows],
        np.stack([rows, rows], axis=1),
        np.tile(np.eye(2, dtype=np.float32), (len(rows), 1, 1)),
        np.log(np.asarray(factors, np.float32)),
        np.zeros(len(rows), np.float32),
    )
    return PairRecord(first.name, second.name, found, {})


@pytest.fixture
def open_file(tmp_path):
    """Makes a file and opens it."""
    opened = []

    def make(images, pairs=()) -> CorrespondenceFile:
        with CorrespondenceWriter(tmp_path / f"{len(opened)}.h5", {}) as writer:
            writer.add(images, pairs)
        opened.append(CorrespondenceFile(writer.path))
        return opened[-1]

    yield make
    for file in opened:
        file.close()


class TestChoice:
    @pytest.fixture
    def file(self, open_file):
        """Twelve pairs: every third is empty, the last six are for validation."""
        images = [make_image(f"{n}", 90, split="train" if n < 2 else "validation") for n in range(4)]
        ends = [images[:2]] * 6 + [images[2:]] * 6
        return open_file(images, [make_pair(*ends[n], [1] * (n % 3 > 0)) for n in range(12)])

    def test_is_of_pairs_that_have_something_to_show_each_once(self, file):
        assert sorted(sample_pairs(file, 100, np.random.default_rng(0))) == [1, 2, 4, 5, 7, 8, 10, 11]

    def test_is_of_one_split_if_told(self, file):
        assert sorted(sample_pairs(file, 100, np.random.default_rng(0), "validation")) == [7, 8, 10, 11]
        assert sample_pairs(file, 100, np.random.default_rng(0), "test") == []

    def test_is_left_to_chance(self, file):
        one, same, other = (sample_pairs(file, 3, np.random.default_rng(seed)) for seed in (0, 0, 1))
        assert len(one) == 3
        assert one == same != other


class TestPairs:
    def test_lines_are_between_what_corresponds(self, open_file):
        first = make_image("a", 100, [(30, 20), (300, 50)])
        second = make_image("b", 180, [(200, 10), (350, 40)])
        page = draw_pairs(open_file([first, second], [make_pair(first, second, [1, 1])]), [0])
        assert page.shape == (CAPTION + HEIGHT + GAP, 2 * WIDTH + GAP, 3)
        panel = page[CAPTION : CAPTION + HEIGHT]
        assert panel[2, 2].tolist() == [100] * 3
        assert panel[2, -2].tolist() == [180] * 3
        ends = [(30, 20), (300, 50), (WIDTH + GAP + 200, 10), (WIDTH + GAP + 350, 40)]
        for x, y in ends:
            assert panel[y, x].tolist() == GREEN
        for (x0, y0), (x1, y1) in ((ends[0], ends[2]), (ends[1], ends[3])):
            middle = panel[(y0 + y1) // 2 - 1 : (y0 + y1) // 2 + 2, (x0 + x1) // 2]
            assert (middle[:, 1] > middle[:, [0, 2]].max(axis=1).astype(int) + 40).any()

    def test_a_page_has_two_columns(self, open_file):
        images = [make_image(f"{n}", 60 * n) for n in range(4)]
        file = open_file(images, [make_pair(images[0], images[n], [1]) for n in (1, 2, 3)])
        page = draw_pairs(file, [2, 0, 1])
        cell, width = CAPTION + HEIGHT + GAP, 2 * WIDTH + GAP
        assert page.shape == (2 * cell, 2 * width + GAP, 3)
        assert page[CAPTION + 30, width - 5].tolist() == [180] * 3
        assert page[CAPTION + 30, -5].tolist() == [60] * 3
        assert page[cell + CAPTION + 30, width - 5].tolist() == [120] * 3
        assert page[cell + CAPTION + 30, -5].tolist() == [255] * 3

    def test_large_images_are_made_to_fit(self, open_file):
        pixels = encode_gray(np.zeros((300, 1600), np.uint8), 100)
        images = [
            ImageRecord(name, "train", (1600, 300), Keypoints.from_points([[1500, 200]]), pixels) for name in "ab"
        ]
        page = draw_pairs(open_file(images, [make_pair(*images, [1])]), [0])
        assert page.shape[1] == 800
        scale = 800 / (2 * 800 + GAP) * 800 / 1600  # the panels' and the page's
        x, y = round(1500 * scale), CAPTION + round(200 * scale)
        assert page[y, x, 1] > 120

    @pytest.mark.parametrize("most", [20, 8])
    def test_no_more_lines_than_asked_for(self, open_file, monkeypatch, most):
        points = [(10 * n + 5, 30) for n in range(11)]
        images = [make_image(name, 90, points) for name in "ab"]
        drawn, original = [], pictures.draw_matches

        def note(first, second, first_xy, *rest):
            drawn.extend(first_xy.tolist())
            return original(first, second, first_xy, *rest)

        monkeypatch.setattr(pictures, "draw_matches", note)
        draw_pairs(open_file(images, [make_pair(*images, [1] * 11)]), [0], most_lines=most)
        assert 0 < len(drawn) <= most


class TestDepths:
    ROW, LEGEND = 200, 36

    def test_images_are_over_their_depth_and_red_is_unknown(self, open_file):
        image = make_image("a", 77, depth=[[0, 255], [128, 1]])
        picture = draw_depths(open_file([image]), [0])
        width = round(self.ROW * WIDTH / HEIGHT)
        assert picture.shape == (2 * self.ROW + GAP + self.LEGEND + GAP, width, 3)
        assert (picture[: self.ROW] == 77).all()
        quarters = picture[self.ROW + 50 : 2 * self.ROW : 100, width // 4 :: width // 2]
        assert quarters.tolist() == [[RED, [255] * 3], [[128] * 3, [1] * 3]]

    def test_the_legend_goes_from_far_to_near_and_names_the_unknown(self, open_file):
        picture = draw_depths(open_file([make_image("a", 77, depth=[[5]])]), [0])
        legend = picture[-self.LEGEND - GAP : -GAP]
        assert (np.diff(legend[18, 50:250, 0].astype(int)) >= 0).all()
        assert legend[18, 50, 0] == 1
        assert legend[18, 249, 0] == 255
        assert (legend == RED).all(axis=2).sum() == 400

    def test_images_without_depth_are_passed_over(self, open_file):
        file = open_file([make_image("a", 77), make_image("b", 99, depth=[[5]])])
        assert draw_depths(file, [0, 1])[5, 5].tolist() == [99] * 3
        assert draw_depths(file, [0]) is None
        assert draw_depths(file, []) is None

    def test_a_row_holds_so_many(self, open_file):
        file = open_file([make_image(f"{n}", 10 * n, depth=[[n + 1]]) for n in range(5)])
        width, height = round(self.ROW * WIDTH / HEIGHT), 2 * self.ROW + GAP
        picture = draw_depths(file, [4, 3, 2, 1, 0], columns=2)
        assert picture.shape == (3 * height + self.LEGEND + GAP, 2 * width + GAP, 3)
        assert picture[5 : 3 * height : height, 5, 0].tolist() == [40, 20, 0]
        assert picture[5, -5, 0] == 30
        assert picture[2 * height + 5, -5, 0] == 255


class TestPatches:
    SIDE = 112

    def rows_of(self, page) -> list[np.ndarray]:
        height = CAPTION + self.SIDE + GAP
        assert (page.shape[0] - CAPTION) % height == 0
        return [page[start + CAPTION : start + CAPTION + self.SIDE] for start in range(CAPTION, page.shape[0], height)]

    def test_both_images_in_both_samplings(self, open_file):
        images = [make_image("a", 50), make_image("b", 200)]
        page = draw_patches(open_file(images, [make_pair(*images, [1.1])]), [0], *PATTERNS)
        (row,) = self.rows_of(page)
        step = self.SIDE + GAP
        for column, value in enumerate((50, 200, 50, 200)):
            assert (row[:, column * step : column * step + self.SIDE] == value).all()
        assert (row[:, self.SIDE : step] == 255).all()

    def test_classes_of_the_mismatch_are_in_order_and_no_pair_fills_one_alone(self, open_file):
        """Of each pair the first of a class: up to 1.25, up to 2, above."""
        points = [(30 * n + 9, 30) for n in range(5)]
        images = [make_image(f"{n}", 40 * n, points) for n in range(4)]
        pairs = [
            make_pair(images[1], images[0], [3, 1.3, 0.2]),
            make_pair(images[2], images[0], [1, 1, 0.6, 1.3, 1]),
            make_pair(images[3], images[0], [1.3, 1.6, 4, 1]),
        ]
        page = draw_patches(open_file(images, pairs), [0, 1, 2], *PATTERNS)
        assert [row[50, 50, 0] // 40 for row in self.rows_of(page)] == [2, 3, 1, 2, 3, 1, 3]

    def test_of_a_pair_the_first_of_a_class_is_shown(self, open_file):
        halves = np.repeat(np.array([[50, 200]], np.uint8), [HEIGHT], axis=0).repeat(WIDTH // 2, axis=1)
        images = [
            replace(make_image(name, 0, [(350, 30), (50, 30), (355, 30)]), data=encode_gray(halves, 100))
            for name in "ab"
        ]
        for factors, value in (([3, 1.1, 1.1], 50), ([1.1, 1.1, 3], 200)):
            row = self.rows_of(draw_patches(open_file(images, [make_pair(*images, factors)]), [0], *PATTERNS))[0]
            assert (row[:, -self.SIDE :] == value).all()

    def test_no_more_than_so_many_of_a_class(self, open_file):
        images = [make_image(f"{n}", 20 * n) for n in range(8)]
        file = open_file(images, [make_pair(images[n], images[0], [1]) for n in range(1, 8)])
        page = draw_patches(file, list(range(7)), *PATTERNS, per_class=4)
        assert [row[50, 50, 0] // 20 for row in self.rows_of(page)] == [1, 2, 3, 4]

    def test_none_of_the_classes(self, open_file):
        images = [make_image("a", 50), make_image("b", 200)]
        page = draw_patches(open_file(images, [make_pair(*images, [1.3])]), [0], *PATTERNS)
        assert page.ndim == 3


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
