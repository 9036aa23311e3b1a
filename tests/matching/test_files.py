from __future__ import annotations

import h5py
import numpy as np
import pytest

import hloc_readers
from feature_files import NAMES, make_features, true_matches, write_feature_file
from helpers import assert_same_content
from logpolar.errors import StorageError
from logpolar.features.files import FeatureFile
from logpolar.matching import many
from logpolar.matching.batch import match_pairs
from logpolar.matching.collections import open_matches
from logpolar.matching.files import HlocMatchFile, MatchFile, MatchWriter, PairWriter, check_matches
from logpolar.matching.nearest import Matches
from logpolar.matching.options import MatchingOptions
from logpolar.matching.pairs import exhaustive_pairs

PAIRS = exhaustive_pairs(NAMES)


@pytest.fixture
def features(tmp_path):
    return write_feature_file(tmp_path / "features.h5")


class TestMatching:
    @pytest.mark.parametrize("jobs", [1, 2])
    def test_all_pairs(self, features, tmp_path, jobs):
        report = match_pairs(features, tmp_path / "m.h5", PAIRS, workers=jobs)
        assert (report.done, report.skipped, report.matches) == (3, 0, 60)
        with MatchFile(tmp_path / "m.h5") as file:
            assert file.pairs() == sorted(PAIRS)
            assert file.read("a.jpg", "deep/b.jpg").indices.tolist() == true_matches(0, 1)
            assert file.read("deep/b.jpg", "a.jpg").indices.tolist() == true_matches(1, 0)

    def test_distances_come_back(self, features, tmp_path):
        match_pairs(features, tmp_path / "m.h5", PAIRS)
        first, second = make_features(0), make_features(2)
        with MatchFile(tmp_path / "m.h5") as file:
            matches = file.read("a.jpg", "c.jpg")
        for (i, j), distance in zip(matches.indices, matches.distances, strict=True):
            expected = np.linalg.norm(first.descriptors[i] - second.descriptors[j])
            assert distance == pytest.approx(expected, abs=1e-4)

    def test_resumes(self, features, tmp_path):
        match_pairs(features, tmp_path / "whole.h5", PAIRS)
        match_pairs(features, tmp_path / "m.h5", PAIRS[:1])
        report = match_pairs(features, tmp_path / "m.h5", PAIRS)
        assert (report.done, report.skipped) == (2, 1)
        assert_same_content(tmp_path / "m.h5", tmp_path / "whole.h5")

    def test_what_was_matched_before_an_interruption_is_kept(self, features, tmp_path, monkeypatch):
        calls = []

        def stop_at_the_second(*arguments, **options):
            calls.append(arguments)
            if len(calls) == 2:
                raise KeyboardInterrupt
            return Matches(np.zeros((0, 2), np.int32), np.zeros(0, np.float32))

        monkeypatch.setattr(many, "match_features", stop_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            match_pairs(features, tmp_path / "m.h5", PAIRS)
        with MatchFile(tmp_path / "m.h5") as file:
            assert file.pairs() == PAIRS[:1]

    def test_other_settings_are_refused(self, features, tmp_path):
        match_pairs(features, tmp_path / "m.h5", PAIRS)
        with pytest.raises(StorageError, match=r"ratio = 0\.9, not 0\.5"):
            match_pairs(features, tmp_path / "m.h5", PAIRS, MatchingOptions(0.5))
        report = match_pairs(features, tmp_path / "m.h5", PAIRS[:1], MatchingOptions(0.5), overwrite=True)
        assert (report.done, report.skipped) == (1, 0)

    def test_names_that_hloc_would_mix_up(self, tmp_path):
        features = write_feature_file(tmp_path / "f.h5", ("x/1.jpg", "x-1.jpg", "y.jpg"))
        with pytest.raises(StorageError, match=r"cannot tell 'x-1.jpg' and 'x/1.jpg' apart"):
            match_pairs(features, tmp_path / "m.h5", [("x/1.jpg", "y.jpg"), ("x-1.jpg", "y.jpg")])

    def test_missing_image(self, features, tmp_path):
        with pytest.raises(StorageError, match=r"no image 'none.jpg'"):
            match_pairs(features, tmp_path / "m.h5", [("a.jpg", "none.jpg")])


class TestFeaturesAndMatchesInOneFile:
    @pytest.fixture
    def both(self, tmp_path):
        matches = Matches(np.array([[0, 7], [3, 2]], np.int32), np.array([0.5, 1.2], np.float32))
        with PairWriter(tmp_path / "both.h5", {"model": "x"}) as writer:
            for number, name in enumerate(("a.jpg", "deep/b.jpg")):
                writer.add(name, make_features(number))
            writer.add_matches("a.jpg", "deep/b.jpg", 20, matches)
        return tmp_path / "both.h5"

    def test_as_a_feature_file(self, both, tmp_path):
        with FeatureFile(both) as file:
            assert file.names() == ["a.jpg", "deep/b.jpg"]
        assert match_pairs(both, tmp_path / "m.h5", [("a.jpg", "deep/b.jpg")]).matches == 20

    def test_as_a_match_file(self, both):
        with open_matches(both, NAMES) as file:
            assert file.pairs() == [("a.jpg", "deep/b.jpg")]
            found = file.read("a.jpg", "deep/b.jpg")
            assert found.indices.tolist() == [[0, 7], [3, 2]]
            np.testing.assert_allclose(found.distances, [0.5, 1.2], atol=1e-6)
            assert file.settings == {"model": "x"}

    def test_as_hloc_reads_it(self, both):
        rows, scores = hloc_readers.matches_of(both, "a.jpg", "deep/b.jpg")
        assert rows.tolist() == [[0, 7], [3, 2]]
        np.testing.assert_allclose(scores, [0.75, 0.4])

    def test_as_version_0_1_wrote_it_without_names(self, both):
        with h5py.File(both, "a") as file:
            for key in ("name0", "name1"):
                del file["a.jpg/deep-b.jpg"].attrs[key]
        with MatchFile(both) as file:
            assert file.pairs() == [("a.jpg", "deep/b.jpg")]
            assert len(file.read("deep/b.jpg", "a.jpg")) == 2

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_is_never_replaced_by_matches_alone(self, features, both, overwrite):
        with pytest.raises(StorageError, match="not a logpolar match file"):
            match_pairs(features, both, PAIRS, overwrite=overwrite)
        with FeatureFile(both) as file:
            assert len(file.names()) == 2


class TestOfHloc:
    def test_true_names_come_from_the_features(self, tmp_path):
        hloc_readers.write_matches(tmp_path / "m.h5", "deep/b.jpg", "a.jpg", [2, -1, 0])
        with open_matches(tmp_path / "m.h5", NAMES) as file:
            assert isinstance(file, HlocMatchFile)
            assert file.pairs() == [("deep/b.jpg", "a.jpg")]
            assert file.read("deep/b.jpg", "a.jpg").indices.tolist() == [[0, 2], [2, 0]]
            assert file.read("a.jpg", "deep/b.jpg").indices.tolist() == [[0, 2], [2, 0]]

    def test_unknown_image(self, tmp_path):
        hloc_readers.write_matches(tmp_path / "m.h5", "z.jpg", "a.jpg", [0])
        with open_matches(tmp_path / "m.h5", NAMES) as file, pytest.raises(StorageError, match=r"'z\.jpg'"):
            file.pairs()

    def test_features_are_no_matches(self, features, tmp_path):
        hloc_readers.write_features(tmp_path / "f.h5", "1.jpg", [[1, 2]], np.eye(1, 128), (9, 8))
        with pytest.raises(StorageError, match="no matches0"):
            open_matches(tmp_path / "f.h5", NAMES)
        with pytest.raises(StorageError, match="not a logpolar match file"):
            open_matches(features, NAMES)


def test_a_missing_pair_is_named(features, tmp_path):
    match_pairs(features, tmp_path / "m.h5", PAIRS[:1])
    with MatchFile(tmp_path / "m.h5") as file, pytest.raises(StorageError, match=r"'c\.jpg' and 'a\.jpg'"):
        file.read("c.jpg", "a.jpg")


def test_matches_of_other_features_are_refused():
    good, bad = (Matches(np.array([[0, row]], np.int32), np.zeros(1, np.float32)) for row in (19, 20))
    check_matches(good, 20, 20, "m.h5")
    with pytest.raises(StorageError, match="another file"):
        check_matches(bad, 20, 20, "m.h5")


def test_beyond_the_range_of_int16(tmp_path):
    far = Matches(np.array([[0, 40_000]], np.int32), np.zeros(1, np.float32))
    with MatchWriter(tmp_path / "m.h5", {}) as writer:
        writer.add({("a", "b"): (1, far)})
    with h5py.File(tmp_path / "m.h5") as file:
        assert file["a/b/matches0"][()].tolist() == [40_000]


def test_a_pair_counts_once_in_either_order(features, tmp_path):
    match_pairs(features, tmp_path / "m.h5", [("a.jpg", "c.jpg"), ("c.jpg", "a.jpg")])
    report = match_pairs(features, tmp_path / "m.h5", [("c.jpg", "a.jpg")])
    assert (report.done, report.skipped) == (0, 1)
    with MatchFile(tmp_path / "m.h5") as file:
        assert file.pairs() == [("a.jpg", "c.jpg")]
