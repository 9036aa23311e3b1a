"""FPR95 of scenes with its intervals and classes, against slow computations and values known by hand."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from dataset_files import SETTINGS, SUMMARY, make_image, make_pair
from function_describer import FunctionDescriber
from logpolar.datasets.correspondences import Correspondences
from logpolar.datasets.writing import CorrespondenceWriter
from logpolar.errors import LogpolarError
from logpolar.evaluation.descriptors.registry import Method
from logpolar.evaluation.metrics import threshold95
from logpolar.evaluation.options import PatchesOptions, RunOptions
from logpolar.evaluation.pairs import DescribedPair, count_accepted, gather, score_described
from logpolar.evaluation.patches import (
    ANGLE_EDGES,
    FEWEST,
    MISMATCH_EDGES,
    Patches,
    classes_of,
    mean_result,
    score_scene,
)
from logpolar.keypoints import Keypoints


def fpr95(positive, negative) -> float:
    return float(np.mean(negative < threshold95(positive)))


def unit(vectors) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def make_described(seed: int, count: int, others: int, noise: float = 0.8, ratio=None, residual=None) -> DescribedPair:
    random = np.random.default_rng(seed)
    first = random.normal(size=(count, 8))
    second = np.concatenate([first + noise * random.normal(size=(count, 8)), random.normal(size=(others, 8))])
    empty = Keypoints.from_points(np.zeros((count, 2)))
    found = Correspondences(
        empty,
        empty,
        np.zeros((count, 2), np.int32),
        np.tile(np.eye(2, dtype=np.float32), (count, 1, 1)),
        np.asarray(random.normal(0, 0.6, count) if ratio is None else ratio, np.float32),
        np.asarray(random.uniform(-26, 26, count) if residual is None else residual, np.float32),
    )
    return DescribedPair(unit(first), unit(second), found)


@pytest.fixture(scope="module")
def pairs() -> list[DescribedPair]:
    return [make_described(seed, 300 + 40 * seed, 50 + 30 * seed, 0.6 + 0.1 * seed) for seed in range(6)]


def distances_of(pairs) -> tuple[np.ndarray, np.ndarray]:
    """Of right and of wrong pairs, in two long lists."""
    right, wrong = [], []
    for pair in pairs:
        for k, row in enumerate(pair.distances()):
            right.append(row[k])
            wrong += np.delete(row, k).tolist()
    return np.array(right), np.array(wrong)


class TestScene:
    def test_is_the_score_of_pairs(self, pairs):
        assert score_scene(pairs, 10).score == score_described(pairs)
        assert score_scene(pairs, 10).score.fpr95 == pytest.approx(fpr95(*distances_of(pairs)))

    def test_classes_by_loops(self, pairs):
        result, (right, wrong) = score_scene(pairs, 0), distances_of(pairs)
        ratio = np.concatenate([pair.correspondences.log_scale_ratio for pair in pairs])
        residual = np.concatenate([pair.correspondences.angle_residual for pair in pairs])
        seen = 0
        for row, (low, high) in enumerate(pairwise(ANGLE_EDGES)):
            for column, (small, large) in enumerate(pairwise(MISMATCH_EDGES)):
                within = [
                    low <= abs(angle) < high and small <= math.exp(abs(scale)) < large
                    for angle, scale in zip(residual.tolist(), ratio.tolist(), strict=True)
                ]
                assert result.classes.counts[row, column] == sum(within)
                if sum(within) >= FEWEST:
                    seen += 1
                    expected = fpr95(right[np.array(within)], wrong)
                    assert result.classes.fpr95[row, column] == pytest.approx(expected)
                else:
                    assert math.isnan(result.classes.fpr95[row, column])
        assert 5 < seen < 30

    def test_ties(self):
        """A wrong pair at the threshold itself is not accepted."""
        right = unit(np.array([[1.0, 0]] * 20))
        partners = unit(np.array([[1.0, 0]] * 18 + [[1.0, 1.0]] * 2))
        found = make_described(0, 20, 0).correspondences
        pair = DescribedPair(right, np.concatenate([partners, unit(np.array([[1.0, 1.0], [1.0, 2.0]]))]), found)
        # 18 wrong ones of the first rows at distance 0, as near as the partners; those at 45 degrees are at the
        # threshold: of 20 x 21 wrong pairs, 18 x 17 + 2 x 18 are strictly nearer.
        assert score_scene([pair], 5).score.fpr95 == (18 * 17 + 2 * 18) / (20 * 21)
        assert score_scene([pair], 5).score.rank1 == 18 / 20

    def test_edges(self):
        """The last edge belongs to the last class, what is beyond to none."""
        ratio, residual = np.log([1, 1.2599, 1.26, 2, 3.9, 4.1]), [0, -5, 24.99, 25, 25.01, 0]
        gathered = gather([make_described(0, 6, 1, ratio=ratio, residual=residual)])
        assert classes_of(gathered).tolist() == [0, 6, 4 * 6 + 1, 4 * 6 + 3, -1, -1]

    def test_two_is_an_edge(self):
        assert pytest.approx(2) == MISMATCH_EDGES[3]
        assert (MISMATCH_EDGES[0], MISMATCH_EDGES[-1]) == (1, pytest.approx(4))


class TestThresholds:
    def test_counts(self, pairs):
        thresholds = [0.7, 0.1, 0.0, 0.1, 3.0]
        accepted, totals = count_accepted(pairs, thresholds)
        for pair, counts, total in zip(pairs, accepted, totals, strict=True):
            _, wrong = distances_of([pair])
            assert counts.tolist() == [(wrong < threshold).sum() for threshold in thresholds]
            assert total == len(wrong) == counts[-1]

    def test_no_thresholds(self, pairs):
        assert count_accepted(pairs, [])[0].shape == (6, 0)


class TestBootstrap:
    def test_by_loops(self, pairs):
        """Resamples are the image pairs that the seed draws, all pooled."""
        result = score_scene(pairs, 20, seed=3)
        drawn = np.random.default_rng(3).integers(0, len(pairs), (20, len(pairs)))
        for numbers, share, hits in zip(drawn, result.fpr95_samples, result.rank1_samples, strict=True):
            again = score_described([pairs[number] for number in numbers])
            assert share == pytest.approx(again.fpr95)
            assert hits == pytest.approx(again.rank1)

    def test_interval(self, pairs):
        result = score_scene(pairs, 400)
        for name in ("fpr95", "rank1"):
            low, high = result.interval(name)
            assert low < getattr(result.score, name) < high
            samples = getattr(result, f"{name}_samples")
            assert np.mean(samples < low) == pytest.approx(0.025, abs=0.01)
            assert np.mean(samples > high) == pytest.approx(0.025, abs=0.01)

    def test_equal_pairs_have_none(self, pairs):
        low, high = score_scene([pairs[0]] * 4, 50).interval("fpr95")
        assert low == high

    def test_seed(self, pairs):
        one, same, other = (score_scene(pairs, 30, seed).fpr95_samples for seed in (1, 1, 2))
        np.testing.assert_array_equal(one, same)
        assert (one != other).any()

    def test_no_resamples(self, pairs):
        assert all(math.isnan(value) for value in score_scene(pairs, 0).interval("fpr95"))
        assert score_scene(pairs, 0).to_dict()["fpr95_interval"] == [None, None]


class TestMean:
    def test_scenes_count_the_same(self, pairs):
        results = [score_scene(pairs[:1], 10), score_scene(pairs[1:], 10)]
        mean = mean_result(results)
        assert mean.score.fpr95 == pytest.approx((results[0].score.fpr95 + results[1].score.fpr95) / 2)
        np.testing.assert_allclose(mean.fpr95_samples, (results[0].fpr95_samples + results[1].fpr95_samples) / 2)

    def test_classes_without_enough_do_not_count(self, pairs):
        few, many = score_scene(pairs[:1], 1), score_scene(pairs, 1)
        mean = mean_result([few, many]).classes
        assert np.isnan(few.classes.fpr95).all()
        np.testing.assert_array_equal(mean.fpr95, many.classes.fpr95)
        np.testing.assert_array_equal(mean.counts, few.classes.counts + many.classes.counts)


def write_scene(path, images, pairs) -> None:
    with CorrespondenceWriter(path, SETTINGS) as writer:
        writer.add(images, pairs)
        writer.finish(SUMMARY)


def described(path, describe, **options):
    """The pairs of the one scene in a file."""
    protocol = Patches(RunOptions((), path.parent, path.parent), [path], PatchesOptions(**options))
    protocol.prepare()
    ((_, pairs),) = protocol.described(Method("any", "any", {"kind": "any"}, FunctionDescriber(describe)))
    return pairs


class TestFixedSize:
    def test_scene(self, tmp_path):
        """What is described has the new sizes, and the scale ratio is theirs."""
        images = [make_image(name, 60, "test", seed) for seed, name in enumerate(("a", "b"))]
        write_scene(tmp_path / "scene.h5", images, [make_pair(*images, 25)])
        sizes = []

        def describe(view, keypoints):
            sizes.append(set(keypoints.size.tolist()))
            return unit(np.random.default_rng(0).normal(size=(len(keypoints), 8)))

        (pair,) = described(tmp_path / "scene.h5", describe, fixed_size=0.1)
        described(tmp_path / "scene.h5", describe)  # not from the same cache
        assert sizes[:2] == [{4.0}, {4.0}]
        assert len(sizes) == 4
        zoom = pair.correspondences.zoom
        np.testing.assert_allclose(pair.correspondences.log_scale_ratio, -np.log(zoom), atol=1e-5)

    def test_nothing_there(self, tmp_path):
        write_scene(tmp_path / "scene.h5", [make_image("a"), make_image("b", seed=1)], [])
        with pytest.raises(LogpolarError, match="split test"):
            described(tmp_path / "scene.h5", lambda view, keypoints: unit(np.ones((len(keypoints), 2))), split="test")
