from __future__ import annotations

import cv2
import numpy as np
import pytest

from function_describer import score_pairs, uncached
from logpolar.errors import ImageError, LogpolarError
from logpolar.evaluation.hpatches import THRESHOLDS, HPatchesTally, matching_accuracy
from logpolar.evaluation.hpatches_sequences import SKIPPED, Sequences
from logpolar.evaluation.options import HPatchesOptions
from logpolar.features.sift import root_sift

SIZE = (240, 200)  # width, height
TILT = np.array([[0.95, 0.08, 4.0], [-0.05, 1.02, 3.0], [1e-4, -5e-5, 1.0]])


def homography(number: int) -> np.ndarray:
    """Shifts that grow with the number, on top of a tilt."""
    return np.array([[1, 0, 1.5 * number], [0, 1, -number], [0, 0, 1]]) @ TILT


def write_sequence(folder, photo, numbers=range(1, 7), suffix=".ppm", ending="\n", name="H_1_{}", corner=(100, 60)):
    """A sequence cut out of the photo, its other images warped by known homographies."""
    folder.mkdir(parents=True)
    (x, y), (width, height) = corner, SIZE
    for number in numbers:
        place = np.array([[1.0, 0, -x], [0, 1, -y], [0, 0, 1]])
        if number > 1:
            place = homography(number) @ place
            rows = [" ".join(f"{value:.17g}" for value in row) for row in homography(number)]
            (folder / name.format(number)).write_bytes((ending.join(rows) + ending).encode())
        image = cv2.warpPerspective(photo, place, (width, height), flags=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / f"{number}{suffix}"), image)


@pytest.fixture(scope="module")
def folder(photo, tmp_path_factory):
    path = tmp_path_factory.mktemp("hpatches")
    write_sequence(path / "v_one", photo)
    write_sequence(path / "v_two", photo, corner=(220, 200))
    write_sequence(path / "i_one", photo, suffix=".png", ending="\r\n", name="H_1_{}.txt")
    (path / "notes").mkdir()
    return path


@pytest.fixture(scope="module")
def many(photo, tmp_path_factory):
    path = tmp_path_factory.mktemp("many")
    for name in ("v_a", "v_b", "v_c", "i_a", "i_b", "v_artisans", "i_dc"):
        write_sequence(path / name, photo, (1, 2))
    return path


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


def pairs_of(folder, **options):
    options = HPatchesOptions(**options)
    return list(Sequences(folder, options).pairs()), options


def score_hpatches(pairs, views, options, thresholds=THRESHOLDS):
    tally = HPatchesTally(views, options, thresholds)
    for named in pairs:
        tally.add(named)
    return tally.score()


class TestPairs:
    def test_paper(self, folder):
        pairs, _ = pairs_of(folder)
        assert [(named.sequence, named.split, named.number) for named in pairs] == [
            ("i_one", "illumination", 2),
            ("v_one", "viewpoint", 2),
            ("v_two", "viewpoint", 2),
        ]
        for named in pairs:
            np.testing.assert_allclose(named.homography, homography(2), rtol=1e-12)
            assert named.pair.first.shape == SIZE[::-1]
            assert len(named.pair.correspondences) > 30

    def test_full(self, folder):
        pairs, _ = pairs_of(folder, mode="full")
        assert [(named.sequence, named.number) for named in pairs] == [
            (name, number) for name in ("i_one", "v_one", "v_two") for number in range(2, 7)
        ]
        assert len({id(named.pair.first) for named in pairs}) == 3

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"rotation": 90.0},
            {"rotation": 33.0},
            {"zoom": 0.5},
            {"zoom": 2.0, "rotation": -140.0},
            {"max_size": 160},
            {"max_size": 160, "zoom": 2.0},
        ],
        ids=str,
    )
    def test_keypoints_lie_where_the_homography_sends_them(self, folder, options):
        """Not only within 1.5 px, as they must: without bias, and turned and scaled as the pixels are."""
        pairs, _ = pairs_of(folder, **options)
        found, named = [each.pair.correspondences for each in pairs], pairs[1]
        first, second = named.pair.correspondences.first, named.pair.correspondences.second
        sent = cv2.perspectiveTransform(first.xy[:, None].astype(np.float64), named.homography)[:, 0]
        assert sum(map(len, found)) > 60
        assert np.abs(np.median(second.xy - sent, axis=0)).max() < 0.12
        everything = np.concatenate([each.log_scale_ratio for each in found])
        assert abs(np.median(everything)) < 0.1
        assert abs(np.median(np.concatenate([each.angle_residual for each in found]))) < 2

    def test_altered_size(self, folder):
        named = pairs_of(folder, zoom=0.5, rotation=90.0)[0][0]
        assert named.pair.first.shape == (200, 240)
        assert named.pair.second.shape == (120, 100)
        assert pairs_of(folder, zoom=4.0, max_size=120)[0][0].pair.second.shape == (400, 480)

    def test_angle_filter(self, folder):
        strict, free = (pairs_of(folder, max_angle=angle)[0] for angle in (5.0, 180.0))
        assert max(np.abs(named.pair.correspondences.angle_residual).max() for named in strict) <= 5
        assert max(np.abs(named.pair.correspondences.angle_residual).max() for named in free) > 25

    def test_most_keypoints(self, folder):
        assert all(len(named.pair.second_keypoints) == 50 for named in pairs_of(folder, keypoints=50)[0])

    def test_repeatable(self, folder):
        one, other = (pairs_of(folder, mode="full", max_size=160)[0] for _ in range(2))
        for left, right in zip(one, other, strict=True):
            np.testing.assert_array_equal(left.pair.correspondences.indices, right.pair.correspondences.indices)

    @pytest.mark.parametrize(
        "wrong",
        [{"mode": "half"}, {"zoom": 5.0}, {"zoom": float("nan")}, {"rotation": 181.0}, {"keypoints": 0}],
        ids=str,
    )
    def test_impossible_options(self, wrong):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be"):
            HPatchesOptions(**wrong)


class TestPaperMode:
    def names(self, folder, **options):
        return [named.sequence for named in pairs_of(folder, **options)[0]]

    def test_skipped(self, many):
        assert len(SKIPPED) == 12
        assert self.names(many) == ["i_a", "i_b", "v_a", "v_b", "v_c"]

    def test_limit(self, many):
        """The sequence that brings a split above the limit is the last; the other split goes on."""
        count = len(pairs_of(many)[0][0].pair.correspondences)
        assert self.names(many, pool_limit=count - 1) == ["i_a", "v_a"]
        assert self.names(many, pool_limit=count) == ["i_a", "i_b", "v_a", "v_b"]
        assert self.names(many, pool_limit=0) == ["i_a", "v_a"]

    def test_nothing_but_skipped(self, photo, tmp_path):
        write_sequence(tmp_path / "v_there", photo, (1, 2))
        with pytest.raises(LogpolarError, match="leaves out"):
            Sequences(tmp_path, HPatchesOptions())

    def test_full_needs_all_images(self, many):
        with pytest.raises(LogpolarError, match=r"i_a: no image 3 \(3.ppm, 3.png, 3.jpg\)"):
            Sequences(many, HPatchesOptions(mode="full"))


class TestScores:
    @pytest.mark.parametrize("mode", ["paper", "full"])
    def test_truth(self, folder, mode):
        """Descriptors that are right by construction; keypoints without a partner match at random, or not at all."""
        pairs, options = pairs_of(folder, mode=mode)
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
    def test_chance(self, folder, mode):
        pairs, options = pairs_of(folder, mode=mode)
        for result in score_hpatches(pairs, Truth(pairs, partners=False), options).splits.values():
            assert result.rank1 < 0.03
            assert result.matching_accuracy[2] < 0.05

    def test_pair_by_pair(self, folder):
        """Mode full: the mean of what ``score_pairs`` says of each pair."""
        pairs, options = pairs_of(folder, mode="full", keypoints=200)
        result = score_hpatches(pairs, uncached(root_sift), options).splits["viewpoint"]
        singles = [score_pairs([named.pair], root_sift).rank1 for named in pairs if named.split == "viewpoint"]
        assert result.rank1 == pytest.approx(np.mean(singles), abs=1e-6)
        assert 0.5 < result.rank1 <= 1
        assert np.all(np.diff(result.matching_accuracy) >= 0)

    def test_accuracy_of_the_truth_is_one(self, folder):
        """Partners and nothing else: all within 1.5 px, hence within 2."""
        named = pairs_of(folder)[0][0]
        found = named.pair.correspondences
        pair = type(named.pair)(named.pair.first, named.pair.second, found.first, found.second, found)
        table = np.eye(len(found), dtype=np.float32)
        accuracy, count = matching_accuracy(pair, (table, table), named.homography)
        assert count == len(found)
        assert accuracy[1:].tolist() == [1.0] * 9
        accuracy, _ = matching_accuracy(pair, (table, np.roll(table, 1, axis=0)), named.homography)
        assert accuracy.max() < 0.1

    def test_accuracy_by_hand(self, folder):
        """Matches that are off by 0, 2, 2.5 and 30 px, and one keypoint that is nobody's nearest."""
        named = pairs_of(folder)[0][0]
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

    def test_no_matches(self, folder):
        named = pairs_of(folder, keypoints=20)[0][0]
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

    def test_as_dictionary(self, folder):
        pairs, options = pairs_of(folder, keypoints=100)
        values = score_hpatches(pairs, uncached(root_sift), options, (1, 5)).to_dict()
        assert values["options"]["keypoints"] == 100
        assert values["thresholds"] == [1, 5]
        assert len(values["splits"]["viewpoint"]["matching_accuracy"]) == 2

    @pytest.mark.parametrize("broken", ["not finite", "99 descriptors"])
    def test_descriptors_that_cannot_be(self, folder, broken):
        pairs, options = pairs_of(folder, keypoints=100)
        count = 99 if broken == "99 descriptors" else 100
        with pytest.raises(ValueError, match=broken):
            score_hpatches(pairs, uncached(lambda view, keypoints: np.full((count, 4), np.nan)), options)


class TestBrokenFolders:
    @pytest.fixture
    def sequence(self, photo, tmp_path):
        write_sequence(tmp_path / "v_one", photo, (1, 2))
        return tmp_path / "v_one"

    def assert_refused(self, sequence, match):
        with pytest.raises(LogpolarError, match=match) as caught:
            Sequences(sequence.parent, HPatchesOptions())  # at once, before any pair is asked for
        assert "\n" not in str(caught.value)

    def test_no_sequences(self, tmp_path):
        (tmp_path / "other").mkdir()
        self.assert_refused(tmp_path / "any", "no HPatches sequences")

    def test_no_folder(self, tmp_path):
        self.assert_refused(tmp_path / "missing" / "any", "no such file")

    def test_one_image(self, sequence):
        (sequence / "2.ppm").unlink()
        self.assert_refused(sequence, "v_one: no image 2")

    def test_no_homography(self, sequence):
        (sequence / "H_1_2").unlink()
        self.assert_refused(sequence, "v_one: no homography H_1_2")

    @pytest.mark.parametrize(
        ("text", "match"),
        [
            (b"", "3 x 3"),
            (b"1 0 0\n0 1 0\n", "3 x 3"),
            (b"1 0 0\n0 1\n0 0 1\n", "3 x 3"),
            (b"1 0 0\n0 one 0\n0 0 1\n", "3 x 3"),
            (b"\xff\xfe\x00", "3 x 3"),
            (b"1 0 0\n0 nan 0\n0 0 1\n", "not finite"),
            (b"1 2 3\n4 5 6\n7 8 9\n", "singular"),
            (b"0 0 0\n0 0 0\n0 0 0\n", "singular"),
        ],
    )
    def test_malformed_homography(self, sequence, text, match):
        (sequence / "H_1_2").write_bytes(text)
        self.assert_refused(sequence, f"H_1_2: .*{match}")

    def test_unreadable_image(self, sequence):
        (sequence / "2.ppm").write_bytes(b"P6 nothing")
        with pytest.raises(ImageError, match=r"2\.ppm: not an image"):
            list(Sequences(sequence.parent, HPatchesOptions()).pairs())
