"""Ranks among distractors: by hand, by loops, and what is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from logpolar.datasets.correspondences import Correspondences
from logpolar.evaluation.pairs import DescribedImages
from logpolar.evaluation.retrieval import (
    RetrievalOptions,
    RetrievalResult,
    draw_pool,
    mean_fractions,
    retrieve,
    summarise,
)
from logpolar.keypoints import Keypoints


def on_circle(degrees) -> np.ndarray:
    return np.stack([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))], axis=1).astype(np.float32)


def make_images(first, second, xy, indices, number: int = 0) -> DescribedImages:
    """Described keypoints; ``xy`` are those of the second image."""
    here, there = Keypoints.from_points(np.zeros((len(first), 2))), Keypoints.from_points(xy)
    indices = np.array(indices, np.int32)
    count = len(indices)
    zeros = np.zeros(count, np.float32)
    found = Correspondences(
        here[indices[:, 0]], there[indices[:, 1]], indices, np.tile(np.eye(2), (count, 1, 1)), zeros, zeros
    )
    return DescribedImages(number, first, second, there, found)


def make_random(seed: int, count: int, keypoints: int) -> DescribedImages:
    random = np.random.default_rng(seed)
    looks = random.normal(size=(keypoints, 6))
    first, second = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (looks[:count], looks + 0.7))
    order = random.permutation(keypoints)
    indices = np.stack([np.arange(count), np.argsort(order)[:count]], axis=1)
    xy = random.uniform(0, 60, (keypoints, 2))
    return make_images(first.astype(np.float32), second[order].astype(np.float32), xy, indices, seed)


class TestByHand:
    def test_ranks(self):
        """Keypoints of the second image: two partners, one 3 px from a partner, two distractors."""
        xy = [[0, 0], [50, 0], [53, 0], [53.01, 0.5], [100, 0]]
        pair = make_images(on_circle([0, 90]), on_circle([20, 80, 1, 10, -15]), xy, [[0, 0], [1, 1]])
        result = retrieve([pair], RetrievalOptions())
        # At 0 degrees those at 10 and -15 are nearer than 20, the one at 1 is no distractor; at 90 degrees none is.
        assert result.ranks.tolist() == [2, 0]
        assert (result.pairs, result.distractors, result.full_pools) == (1, 2, 0)
        assert result.fractions((1, 2, 3)).tolist() == [0.5, 0.5, 1]

    def test_partners_of_others_are_wrong_answers(self):
        pair = make_images(on_circle([0, 0]), on_circle([30, 10]), [[0, 0], [50, 0]], [[0, 0], [1, 1]])
        assert retrieve([pair], RetrievalOptions()).ranks.tolist() == [1, 0]

    def test_ties(self):
        """As near as the right one is not nearer."""
        pair = make_images(on_circle([0]), on_circle([30, 30, -30]), [[0, 0], [50, 0], [90, 0]], [[0, 0]])
        assert retrieve([pair], RetrievalOptions()).ranks.tolist() == [0]

    def test_shares_are_pooled_within_a_scene_and_averaged_over_scenes(self):
        one = RetrievalResult(2, np.array([0, 0, 0, 5]), 10, 1)
        other = RetrievalResult(1, np.array([1, 1]), 40, 1)
        assert one.fractions((1, 2, 6)).tolist() == [0.75, 0.75, 1]
        assert mean_fractions([one, other], (1, 2, 6)).tolist() == [0.375, 0.875, 1]
        summary = summarise([one, other], (1, 2))
        assert summary == {
            **{"pairs": 3, "correspondences": 6, "distractors": 20, "full_pools": 2},
            "shares": {"1": 0.375, "2": 0.875},
        }


class TestDraws:
    @pytest.mark.parametrize("sizes", [(500, 3000), (10, 3000), (500, 20), (10, 20)])
    def test_by_loops(self, sizes):
        pairs, options = (
            [make_random(seed, 25, 120) for seed in range(4)],
            RetrievalOptions(seed=7, matches=sizes[0], distractors=sizes[1]),
        )
        expected = []
        for pair in pairs:
            rows, distractors = draw_pool(pair, options, np.random.default_rng([7, pair.number]))
            assert len(rows) == min(sizes[0], 25)
            matched = pair.correspondences.indices[:, 1].tolist()
            for distractor in distractors:
                gaps = np.linalg.norm(pair.correspondences.second.xy - pair.second_keypoints.xy[distractor], axis=1)
                assert gaps.min() > 3
            far = [
                k
                for k, xy in enumerate(pair.second_keypoints.xy)
                if np.linalg.norm(pair.second_keypoints.xy[matched] - xy, axis=1).min() > 3
            ]
            assert len(set(distractors.tolist())) == len(distractors) == min(sizes[1], len(far))
            pool = [*(matched[row] for row in rows), *distractors]
            for row in rows:
                here, there = pair.correspondences.indices[row]
                gaps = [np.linalg.norm(pair.first[here] - pair.second[k]) for k in pool]
                expected.append(sum(gap < np.linalg.norm(pair.first[here] - pair.second[there]) for gap in gaps))
        result = retrieve(pairs, options)
        assert result.ranks.tolist() == expected
        assert result.full_pools == (4 if sizes[1] == 20 else 0)
        assert 0 < result.fractions((1,))[0] < 1

    def test_seed(self):
        pairs = [make_random(seed, 25, 120) for seed in range(4)]
        options = (RetrievalOptions(seed=seed, matches=10, distractors=20) for seed in (1, 1, 2))
        one, same, other = (retrieve(pairs, each).ranks.tolist() for each in options)
        assert one == same
        assert one != other

    def test_a_pair_is_drawn_the_same_whatever_else_there_is(self):
        pairs, options = [make_random(seed, 25, 120) for seed in range(3)], RetrievalOptions(matches=10, distractors=20)
        assert retrieve(pairs, options).ranks[10:20].tolist() == retrieve(pairs[1:2], options).ranks.tolist()

    def test_nothing(self):
        result = retrieve([], RetrievalOptions())
        assert (result.pairs, len(result.ranks), result.distractors) == (0, 0, 0)
