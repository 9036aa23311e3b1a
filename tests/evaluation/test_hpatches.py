from __future__ import annotations

import numpy as np
import pytest

from function_describer import score_pairs, uncached
from hpatches_folders import pairs_of, write_sequence
from logpolar.evaluation.hpatches import THRESHOLDS, HPatchesTally, matching_accuracy
from logpolar.features.sift import root_sift


class Truth:
    """A descriptor by lookup: partners share a random vector, all other keypoints have one of their own."""

    def __init__(self, pairs, partners: bool = True) -> None:
        self.random, self.calls = np.random.default_rng(0), []
        self.first, self.second = {}, {}
        for named in pairs:
            pair, found = named.pair, named.pair.correspondences.indices
            here = self.first.setdefault(id(pair.first), self.draw(len(pair.first_keypoints)))
            there = self.draw(len(pair.second_keypoints))
            if partners:
                there[found[:, 1]] = here[found[:, 0]]
            self.second[id(pair.second)] = there

    def draw(self, count: int) -> np.ndarray:
        vectors = self.random.normal(size=(count, 64))
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    def describe(self, key, view, keypoints):
        self.calls.append(id(view))
        table = (self.first | self.second)[id(view)]
        assert len(table) == len(keypoints)
        return table


def score_hpatches(pairs, views, options, thresholds=THRESHOLDS):
    tally = HPatchesTally(views, options, thresholds)
    for named in pairs:
        tally.add(named)
    return tally.score()


class TestScores:
    @pytest.mark.parametrize("mode", ["paper", "full"])
    def test_truth(self, sequences, mode):
        """Descriptors that are right by construction; keypoints without a partner match at random, or not at all."""
        pairs, options = pairs_of(sequences, mode=mode)
        truth = Truth(pairs)
        score = score_hpatches(pairs, truth, options)
        assert set(score.splits) == {"viewpoint", "illumination"}
        for split, result in score.splits.items():
            mine = [named for named in pairs if named.split == split]
            assert result.rank1 == 1
            assert result.pairs == result.pairs_ranked == len(mine)
            assert result.correspondences == sum(len(named.pair.correspondences) for named in mine)
            assert result.sequences == len({named.sequence for named in mine})
            assert result.matches >= result.correspondences
        assert len(truth.calls) == len(set(truth.calls)) == 3 + len(pairs)

    @pytest.mark.parametrize("mode", ["paper", "full"])
    def test_chance(self, sequences, mode):
        pairs, options = pairs_of(sequences, mode=mode)
        for result in score_hpatches(pairs, Truth(pairs, partners=False), options).splits.values():
            assert result.rank1 < 0.03
            assert result.matching_accuracy[2] < 0.05

    def test_pair_by_pair(self, sequences):
        """Mode full: the mean of what ``score_pairs`` says of each pair."""
        pairs, options = pairs_of(sequences, mode="full", keypoints=200)
        result = score_hpatches(pairs, uncached(root_sift), options).splits["viewpoint"]
        singles = [score_pairs([named.pair], root_sift).rank1 for named in pairs if named.split == "viewpoint"]
        assert result.rank1 == pytest.approx(np.mean(singles), abs=1e-6)
        assert 0.5 < result.rank1 <= 1
        assert np.all(np.diff(result.matching_accuracy) >= 0)

    def test_accuracy_of_the_truth_is_one(self, sequences):
        """Partners and nothing else: all within 1.5 px, hence within 2."""
        named = pairs_of(sequences)[0][0]
        found = named.pair.correspondences
        pair = type(named.pair)(named.pair.first, named.pair.second, found.first, found.second, found)
        table = np.eye(len(found), dtype=np.float32)
        accuracy, count = matching_accuracy(pair, (table, table), named.homography)
        assert count == len(found)
        assert accuracy[1:].tolist() == [1.0] * 9
        accuracy, _ = matching_accuracy(pair, (table, np.roll(table, 1, axis=0)), named.homography)
        assert accuracy.max() < 0.1

    def test_accuracy_by_hand(self, sequences):
        """Matches that are off by 0, 2, 2.5 and 30 px, and one keypoint that is nobody's nearest."""
        named = pairs_of(sequences)[0][0]
        kind = type(named.pair.first_keypoints)
        first = kind.from_points([[10, 10], [50, 10], [90, 10], [130, 10], [170, 10]])
        second = kind.from_points([[15, 10], [55, 12], [97.5, 10], [165, 10]])
        pair = type(named.pair)(named.pair.first, named.pair.second, first, second, named.pair.correspondences)
        table = np.eye(4, dtype=np.float32)
        weaker = np.array([[0, 0, 0.6, 0.8]], np.float32)
        shift = np.array([[1.0, 0, 5], [0, 1, 0], [0, 0, 1]])
        accuracy, count = matching_accuracy(pair, (np.concatenate([table, weaker]), table), shift, (1, 2, 3, 30))
        assert count == 4
        assert accuracy.tolist() == [0.25, 0.5, 0.75, 1]

    def test_no_matches(self, sequences):
        named = pairs_of(sequences, keypoints=20)[0][0]
        empty = type(named.pair.first_keypoints).empty()
        pair = type(named.pair)(named.pair.first, named.pair.second, empty, empty, named.pair.correspondences)
        nothing = np.zeros((0, 4), np.float32)
        accuracy, count = matching_accuracy(pair, (nothing, nothing), named.homography)
        assert (accuracy.tolist(), count) == ([0] * 10, 0)

    def test_blank_images(self, tmp_path):
        """Without keypoints there is nothing to rank, and no figure is made up."""
        write_sequence(tmp_path / "v_blank", np.full((512, 512, 3), 90, np.uint8), (1, 2))
        pairs, options = pairs_of(tmp_path)
        values = score_hpatches(pairs, uncached(root_sift), options).to_dict()["splits"]["viewpoint"]
        assert values == {
            **{"sequences": 1, "pairs": 1, "pairs_ranked": 0, "correspondences": 0, "rank1": None, "matches": 0},
            "matching_accuracy": [0.0] * 10,
        }

    def test_as_dictionary(self, sequences):
        pairs, options = pairs_of(sequences, keypoints=100)
        values = score_hpatches(pairs, uncached(root_sift), options, (1, 5)).to_dict()
        assert values["options"]["keypoints"] == 100
        assert values["thresholds"] == [1, 5]
        assert len(values["splits"]["viewpoint"]["matching_accuracy"]) == 2

    @pytest.mark.parametrize("broken", ["not finite", "99 descriptors"])
    def test_descriptors_that_cannot_be(self, sequences, broken):
        pairs, options = pairs_of(sequences, keypoints=100)
        count = 99 if broken == "99 descriptors" else 100
        with pytest.raises(ValueError, match=broken):
            score_hpatches(pairs, uncached(lambda view, keypoints: np.full((count, 4), np.nan)), options)
