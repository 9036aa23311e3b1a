from __future__ import annotations

import pytest

from feature_files import NAMES, true_matches, write_feature_file
from logpolar.errors import StorageError
from logpolar.features.collections import FeatureCollectionWriter
from logpolar.features.files import FeatureFile
from logpolar.matching.batch import match_pairs
from logpolar.matching.collections import MatchCollection, open_matches
from logpolar.matching.files import MatchFile
from logpolar.matching.merging import merge_sources
from logpolar.matching.pairs import exhaustive_pairs

PAIRS = exhaustive_pairs(NAMES)


@pytest.fixture
def features(tmp_path):
    write_feature_file(tmp_path / "f.h5")
    merge_sources([tmp_path / "f.h5"], tmp_path / "features")
    return tmp_path / "features"


class TestMatching:
    @pytest.mark.parametrize("jobs", [1, 2])
    def test_into_shards_stores_what_a_file_would(self, features, tmp_path, jobs):
        whole = match_pairs(tmp_path / "f.h5", tmp_path / "m.h5", PAIRS)
        assert match_pairs(features, tmp_path / "m", PAIRS, workers=jobs, shard_size=2) == whole
        with MatchCollection(tmp_path / "m") as ours, MatchFile(tmp_path / "m.h5") as theirs:
            assert [len(shard.items) for shard in ours.shards] == [2, 1]
            assert ours.pairs() == theirs.pairs() == sorted(PAIRS)
            assert ours.settings == theirs.settings
            for pair in PAIRS:
                assert ours.read(*pair).indices.tolist() == theirs.read(*pair).indices.tolist()
                assert ours.read(*pair).distances.tolist() == theirs.read(*pair).distances.tolist()

    def test_resumes_whatever_the_order_of_names(self, features, tmp_path):
        match_pairs(features, tmp_path / "m", [("c.jpg", "a.jpg")], shard_size=9)
        report = match_pairs(features, tmp_path / "m", PAIRS, shard_size=9)
        assert (report.done, report.skipped) == (2, 1)
        with open_matches(tmp_path / "m") as links:
            assert links.read("a.jpg", "c.jpg").indices.tolist() == true_matches(0, 2)

    def test_an_unknown_pair_is_an_error(self, features, tmp_path):
        match_pairs(features, tmp_path / "m", PAIRS[:1], shard_size=9)
        with open_matches(tmp_path / "m") as links, pytest.raises(StorageError, match=r"'a\.jpg' and 'c\.jpg' in this"):
            links.read("a.jpg", "c.jpg")

    def test_features_are_not_matches(self, features, tmp_path):
        with pytest.raises(StorageError, match="not a collection of match files"):
            open_matches(features)
        with pytest.raises(StorageError, match="not a collection of match files"):
            match_pairs(features, features, PAIRS, shard_size=9)
        with FeatureCollectionWriter(features, FeatureFile(tmp_path / "f.h5").settings) as writer:
            assert writer.finished == set(NAMES)
