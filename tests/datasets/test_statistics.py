from __future__ import annotations

import numpy as np
import pytest

from logpolar.datasets.correspondences import Correspondences
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.statistics import ANGLE_EDGES, QUANTILES, SCALE_EDGES, Statistics
from logpolar.datasets.writing import CorrespondenceWriter, ImageRecord, PairRecord
from logpolar.images import encode_gray
from logpolar.keypoints import Keypoints


def statistics_of(factors, residuals=None) -> Statistics:
    """Of correspondences whose scales differ by these factors, below 1 for the other way."""
    ratio = np.log(np.asarray(factors, float)).astype(np.float32)
    residual = np.zeros(len(ratio)) if residuals is None else residuals
    return Statistics(ratio, np.asarray(residual, np.float32), {})


NOTHING = statistics_of([])


def test_mismatch_is_the_factor_whichever_way():
    np.testing.assert_allclose(statistics_of([1, 2, 0.5, 0.25, 3]).mismatch, [1, 2, 2, 4, 3], rtol=1e-6)


class TestQuantiles:
    def test_by_hand(self):
        """Of 1, 1.01, ... 2: the share is the place."""
        factors = 1 + np.arange(101) / 100
        factors[::2] = 1 / factors[::2]
        found = statistics_of(factors).quantiles()
        assert tuple(found) == QUANTILES
        np.testing.assert_allclose(list(found.values()), [1.5, 1.9, 1.95, 1.99], rtol=1e-6)

    def test_of_nothing(self):
        assert NOTHING.quantiles() == {}


class TestShare:
    def test_by_hand(self):
        statistics = statistics_of([1, 1.9, 2.1, 0.4, 0.6])
        assert statistics.fraction_above(2) == pytest.approx(0.4)
        assert statistics.fraction_above(1.5) == pytest.approx(0.8)
        assert statistics.fraction_above(5) == 0

    def test_of_nothing(self):
        assert NOTHING.fraction_above(2) == 0


class TestTable:
    def test_by_hand(self):
        """Rows are classes of the angle, columns of the scale; the sign of neither matters."""
        table = statistics_of([1, 1.2, 1 / 1.4, 1.7, 0.3, 9], [0, -4, 7, -24, 12, 1]).table()
        expected = np.zeros((5, 7), int)
        expected[0, 0] = 2
        expected[1, 1] = 1
        expected[4, 2] = 1
        expected[2, 5] = 1
        expected[0, 6] = 1
        assert table.tolist() == expected.tolist()
        assert table.dtype == np.int64

    def test_every_correspondence_is_in_one_class(self):
        random = np.random.default_rng(0)
        statistics = statistics_of(np.exp(random.normal(0, 1, 500)), random.uniform(-25, 25, 500))
        assert statistics.table().shape == (len(ANGLE_EDGES) - 1, len(SCALE_EDGES) - 1)
        assert statistics.table().sum() == 500

    def test_limits_belong_to_it(self):
        assert statistics_of([1, 1], [25, -25]).table()[-1, 0] == 2

    def test_limits_belong_to_it_as_the_file_has_them(self, tmp_path):
        assert of_file(tmp_path, [1, 1, 1], [-24.49, 3.33, 25]).table().sum() == 3

    def test_of_nothing(self):
        assert NOTHING.table().sum() == 0


def of_file(folder, factors, residuals) -> Statistics:
    """Two pairs of two images in a file: the first correspondence is the first pair's, the rest the second's."""
    points = Keypoints.from_points(np.arange(2.0 * len(factors)).reshape(-1, 2))
    data = encode_gray(np.zeros((9, 9), np.uint8), 100)
    images = [ImageRecord(name, "train", (9, 9), points, data, rejects={"no depth": 2}) for name in "ab"]
    rows = np.arange(len(factors), dtype=np.int32)
    pairs = []
    for names, part in (("ab", slice(1)), ("ba", slice(1, None))):
        found = Correspondences(
            points[part],
            points[part],
            np.stack([rows, rows], axis=1)[part],
            np.tile(np.eye(2, dtype=np.float32), (len(rows), 1, 1))[part],
            np.log(np.asarray(factors, np.float32))[part],
            np.asarray(residuals, np.float32)[part],
        )
        pairs.append(PairRecord(*names, found, {"occluded": 3}))
    with CorrespondenceWriter(folder / "f.h5", {}) as writer:
        writer.add(images, pairs)
    with CorrespondenceFile(folder / "f.h5") as file:
        return Statistics.of(file)


def test_all_correspondences_of_a_file_count(tmp_path):
    statistics = of_file(tmp_path, [1.5, 0.5, 4], [10, -20, 3])
    np.testing.assert_allclose(np.exp(statistics.log_scale_ratio), [1.5, 0.5, 4], rtol=1e-3)
    np.testing.assert_allclose(statistics.angle_residual, [10, -20, 3], atol=0.01)
    assert {cause: count for cause, count in statistics.rejects.items() if count} == {"no depth": 4, "occluded": 6}
