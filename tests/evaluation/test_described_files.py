"""Scores of whole files against a slow computation, and which pairs are taken."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dataset_files import SETTINGS, SUMMARY, make_image
from function_describer import FunctionDescriber, uncached
from logpolar.datasets.correspondences import Correspondences
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.writing import CorrespondenceWriter, PairRecord
from logpolar.evaluation.pairs import (
    DescribedFile,
    DescribedPair,
    Score,
    mean_score,
    sample_pairs,
    score_described,
    score_file,
)
from logpolar.keypoints import Keypoints

LANDMARKS = 30


def make_view(number: int, part: str = "train"):
    """An image whose keypoints are landmarks, in an order of its own; their response is the landmark's number / 100."""
    random = np.random.default_rng(100 + number)
    xy, order = random.uniform(1, 45, (LANDMARKS, 2)), random.permutation(LANDMARKS)
    sizes = np.exp(random.uniform(0, 2, LANDMARKS))
    keypoints = Keypoints.from_points(xy, sizes, random.uniform(0, 360, LANDMARKS), (order + 1) / 100)
    return replace(make_image(f"{number}.png", 1, part, number), keypoints=keypoints)


def landmarks(keypoints: Keypoints) -> np.ndarray:
    return np.rint(keypoints.response * 100).astype(int) - 1


def join(first, second, count: int, seed: int) -> PairRecord:
    """Some landmarks in common, with made-up warps and scale ratios."""
    random = np.random.default_rng(seed)
    common = random.permutation(LANDMARKS)[:count]
    indices = np.stack([np.argsort(landmarks(each.keypoints))[common] for each in (first, second)], axis=1)
    warp = np.exp(random.normal(-0.5, 0.5, count))[:, None, None] * np.eye(2)
    found = Correspondences(
        first.keypoints[indices[:, 0]],
        second.keypoints[indices[:, 1]],
        indices.astype(np.int32),
        warp.astype(np.float32),
        random.normal(0, 0.6, count).astype(np.float32),
        np.zeros(count, np.float32),
    )
    return PairRecord(first.name, second.name, found, {})


def write_scene(path, images, pairs):
    with CorrespondenceWriter(path, SETTINGS) as writer:
        writer.add(images, pairs)
        writer.finish(SUMMARY)
    return path


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    """Six images, the last two for validation, ten pairs, one of each part without correspondences."""
    images = [make_view(k, "validation" if k > 3 else "train") for k in range(6)]
    order = [(0, 1, 12), (1, 0, 9), (2, 3, 20), (0, 3, 0), (3, 1, 15), (4, 5, 11), (5, 4, 14), (4, 5, 0), (2, 0, 7)]
    pairs = [join(images[a], images[b], count, seed) for seed, (a, b, count) in enumerate(order)]
    return write_scene(tmp_path_factory.mktemp("scene") / "scene.h5", images, pairs)


@pytest.fixture(scope="module")
def file(scene):
    with CorrespondenceFile(scene) as opened:
        yield opened


class Describer:
    """What a landmark looks like, and something of the keypoint and the view; counts how often it is called."""

    def __init__(self, noise: float = 1.0) -> None:
        self.noise, self.calls = noise, []

    def __call__(self, view, keypoints):
        self.calls.append((view.tobytes(), len(keypoints)))
        random = np.random.default_rng(0)
        looks, mixing = random.normal(size=(LANDMARKS, 12)), random.normal(size=(4, 12))
        vectors = looks[landmarks(keypoints)] + self.noise * np.sin(keypoints.table @ mixing + view.mean())
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def score_by_loops(file: CorrespondenceFile, numbers, describe) -> Score:
    """All distances of all pairs in one long list."""
    positive, negative, hits, ratios, zooms = [], [], [], [], []
    for number in numbers:
        pair = file.read(number)
        found = pair.correspondences
        first, second = describe(pair.first, found.first), describe(pair.second, pair.second_keypoints)
        for k, (_, partner) in enumerate(found.indices.tolist()):
            right = np.linalg.norm(first[k] - second[partner])
            wrong = []
            for other in range(len(second)):
                gaps = np.linalg.norm(found.second.xy - pair.second_keypoints.xy[other], axis=1)
                if other != partner and (other in found.indices[:, 1] or gaps.min() >= 7):
                    wrong.append(np.linalg.norm(first[k] - second[other]))
            positive.append(right)
            negative += wrong
            hits.append(right <= min(wrong))
            ratios.append(abs(found.log_scale_ratio[k]))
            zooms.append(math.sqrt(abs(np.linalg.det(found.warp[k]))))
    hit, ratio, zoom = np.array(hits), np.array(ratios), np.array(zooms)
    threshold = sorted(positive)[math.ceil(0.95 * len(positive)) - 1]
    differ, zoomed = ratio > math.log(2), (zoom <= 0.5) & (ratio < math.log(1.25))
    return Score(
        len(list(numbers)),
        len(positive),
        float(np.mean(np.array(negative) < threshold)),
        float(hit.mean()),
        int(differ.sum()),
        float(hit[differ].mean()),
        int(zoomed.sum()),
        float(hit[zoomed].mean()),
    )


def assert_same_score(found: Score, expected: Score) -> None:
    for name, value in expected.to_dict().items():
        assert getattr(found, name) == pytest.approx(value, abs=1e-5), name


class TestScores:
    @pytest.mark.parametrize("noise", [0.8, 1.3])
    @pytest.mark.parametrize(
        ("part", "numbers"), [("train", (0, 1, 2, 4, 8)), ("validation", (5, 6)), (None, (0, 1, 2, 4, 5, 6, 8))]
    )
    def test_by_loops(self, file, part, numbers, noise):
        describe = Describer(noise)
        found, expected = score_file(file, FunctionDescriber(describe), part), score_by_loops(file, numbers, describe)
        assert_same_score(found, expected)
        assert 0 < found.fpr95 < 1
        assert found.scales_differ_2x > 0
        assert found.zoom_2x > 0
        assert 0.2 < found.rank1 < 1

    def test_no_such_part(self, file):
        score = score_file(file, FunctionDescriber(Describer()), "test")
        assert (score.pairs, score.correspondences) == (0, 0)
        assert math.isnan(score.fpr95)

    def test_some_pairs(self, file):
        numbers = sample_pairs(file, "train", 3, 4).tolist()
        found = score_file(file, FunctionDescriber(Describer()), "train", 3, 4)
        assert_same_score(found, score_by_loops(file, numbers, Describer()))

    def test_pooled_not_averaged(self):
        """One pair is easy, the other hard: the threshold of both together accepts wrong pairs of the easy one."""

        def described(angles, wrong):
            def on_circle(degrees):
                return np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1).astype(np.float32)

            count = len(angles)
            warp, zeros = np.tile(np.eye(2), (count, 1, 1)), np.zeros(count)
            found = Correspondences(Keypoints.empty(), Keypoints.empty(), None, warp, zeros, zeros)
            return DescribedPair(on_circle(np.zeros(count)), on_circle(np.array([*angles, *wrong])), found)

        easy, hard = described([1.0], [40.0, 100.0]), described([50.0], [60.0, 170.0])
        assert score_described([easy]).fpr95 == 0
        assert score_described([hard]).fpr95 == 0
        assert score_described([easy, hard]).fpr95 == 0.25


class TestDescribedFile:
    def test_every_image_is_described_once(self, file):
        describe = Describer()
        described = DescribedFile(file, uncached(describe), "train")
        score_described(described)
        assert len(described) == 5
        assert len(describe.calls) == len(set(describe.calls)) == 4
        assert {count for _, count in describe.calls} == {LANDMARKS}

    def test_can_be_gone_through_again(self, file):
        described = DescribedFile(file, uncached(Describer()))
        one, again = ([pair.distances() for pair in described] for _ in range(2))
        assert len(one) == len(again) == len(described) == 7
        for first, second in zip(one, again, strict=True):
            np.testing.assert_array_equal(first, second)

    def test_rows(self, file):
        """Partners first, in the order of the correspondences, then all that are not near to a matched keypoint."""
        describe = Describer()
        for number, pair in zip((5, 6), DescribedFile(file, uncached(describe), "validation"), strict=True):
            read = file.read(number)
            found = read.correspondences
            count = len(found)
            np.testing.assert_allclose(pair.first, describe(read.first, found.first), atol=1e-6)
            np.testing.assert_allclose(pair.second[:count], describe(read.second, found.second), atol=1e-6)
            np.testing.assert_array_equal(pair.correspondences.indices, found.indices)
            others = [
                k
                for k, xy in enumerate(read.second_keypoints.xy)
                if np.linalg.norm(found.second.xy - xy, axis=1).min() >= 7
            ]
            assert 0 < len(others) < LANDMARKS - count
            expected = describe(read.second, read.second_keypoints)[others]
            np.testing.assert_allclose(pair.second[count:], expected, atol=1e-6)


class TestChoice:
    @pytest.fixture(scope="class")
    @classmethod
    def crowd(cls, tmp_path_factory):
        """Ten images, each with all others: 45 pairs."""
        images = [make_view(k) for k in range(10)]
        pairs = [join(images[a], images[b], 3, 0) for a in range(10) for b in range(a + 1, 10)]
        with CorrespondenceFile(write_scene(tmp_path_factory.mktemp("crowd") / "crowd.h5", images, pairs)) as opened:
            yield opened

    def test_all(self, file):
        assert sample_pairs(file, None, 0, 0).tolist() == [0, 1, 2, 4, 5, 6, 8]
        assert sample_pairs(file, "train", 5, 0).tolist() == [0, 1, 2, 4, 8]
        assert sample_pairs(file, "validation", 99, 0).tolist() == [5, 6]
        assert len(sample_pairs(file, "test", 3, 0)) == 0

    @pytest.mark.parametrize(("most", "images"), [(1, 2), (3, 3), (10, 5), (12, 6), (15, 6), (44, 10)])
    def test_as_few_images_as_will_do(self, crowd, most, images):
        """n images have n (n - 1) / 2 pairs."""
        for seed in range(5):
            numbers = sample_pairs(crowd, None, most, seed)
            assert len(set(numbers.tolist())) == len(numbers) == most
            assert (np.diff(numbers) > 0).all()
            assert len(np.unique(crowd.pair_images[numbers])) <= images

    def test_seed_decides(self, crowd):
        one, same, other = (sample_pairs(crowd, None, 6, seed).tolist() for seed in (1, 1, 2))
        assert one == same
        assert one != other
        seen = {number for seed in range(60) for number in sample_pairs(crowd, None, 6, seed).tolist()}
        assert len(seen) == 45


class TestScore:
    ONE = Score(3, 40, 0.1, 0.9, 5, 0.4, 0, math.nan)
    TWO = Score(2, 10, 0.3, 0.5, 0, math.nan, 7, 0.25)

    def test_mean(self):
        """Each counts the same, however many correspondences it has; one that has no share does not count in it."""
        mean = mean_score([self.ONE, self.TWO])
        assert (mean.pairs, mean.correspondences, mean.scales_differ_2x, mean.zoom_2x) == (5, 50, 5, 7)
        assert mean.fpr95 == pytest.approx(0.2)
        assert mean.rank1 == pytest.approx(0.7)
        assert mean.rank1_scales_differ_2x == 0.4
        assert mean.rank1_zoom_2x == 0.25

    def test_mean_of_nothing(self):
        mean = mean_score([])
        assert (mean.pairs, mean.correspondences) == (0, 0)
        assert math.isnan(mean.fpr95)
        assert math.isnan(mean_score([self.ONE, self.ONE]).rank1_zoom_2x)

    def test_there_and_back(self):
        for score in (self.ONE, self.TWO):
            values = score.to_dict()
            back = Score.from_dict(values)
            assert back.to_dict() == values
            assert back.fpr95 == score.fpr95
        assert self.ONE.to_dict()["rank1_zoom_2x"] is None
        assert math.isnan(Score.from_dict(self.ONE.to_dict()).rank1_zoom_2x)

    def test_five_digits(self):
        assert replace(self.ONE, fpr95=0.123456789).to_dict()["fpr95"] == 0.12346
