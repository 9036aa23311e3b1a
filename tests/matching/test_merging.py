from __future__ import annotations

import pytest

from feature_files import NAMES, SETTINGS, make_features, write_feature_file
from helpers import assert_same_content
from logpolar.errors import StorageError
from logpolar.features.collections import open_features
from logpolar.features.files import FeatureWriter
from logpolar.matching.batch import match_pairs
from logpolar.matching.collections import open_matches
from logpolar.matching.merging import check_collection, describe_collection, merge_sources
from logpolar.matching.pairs import exhaustive_pairs

PAIRS = exhaustive_pairs(NAMES)


@pytest.fixture
def files(tmp_path):
    """Two feature files that share an image."""
    write_feature_file(tmp_path / "one.h5", NAMES[:2])
    with FeatureWriter(tmp_path / "two.h5", SETTINGS) as writer:
        for number in (1, 2):
            writer.add(NAMES[number], make_features(number))
    return [tmp_path / "one.h5", tmp_path / "two.h5"]


class TestMerge:
    def test_files_become_a_collection_and_that_a_file(self, files, tmp_path):
        assert merge_sources(files, tmp_path / "all") == (3, 1)
        assert merge_sources([tmp_path / "all"], tmp_path / "all.h5") == (3, 0)
        assert_same_content(tmp_path / "all.h5", write_feature_file(tmp_path / "expected.h5"))

    def test_again_adds_nothing(self, files, tmp_path):
        merge_sources(files, tmp_path / "all")
        assert merge_sources(files, tmp_path / "all") == (0, 4)

    def test_collections_share_shards_and_outlive_each_other(self, files, tmp_path):
        merge_sources(files[:1], tmp_path / "first")
        merge_sources([tmp_path / "first", files[1]], tmp_path / "all")
        for path in (tmp_path / "first").iterdir():
            path.unlink()
        with open_features(tmp_path / "all") as source:
            assert [len(source.read(name)) for name in NAMES] == [20, 20, 20]

    def test_matches_come_as_they_are(self, tmp_path):
        features = write_feature_file(tmp_path / "f.h5")
        match_pairs(features, tmp_path / "m.h5", PAIRS)
        match_pairs(features, tmp_path / "m", PAIRS, shard_size=1)
        assert merge_sources([tmp_path / "m"], tmp_path / "merged.h5") == (3, 0)
        assert_same_content(tmp_path / "merged.h5", tmp_path / "m.h5")

    def test_refuses_what_does_not_belong_together(self, files, tmp_path):
        with FeatureWriter(tmp_path / "other.h5", {**SETTINGS, "model": "x", "model_hash": "1"}) as writer:
            writer.add("x.jpg", make_features(0))
        with pytest.raises(StorageError, match=r"other\.h5: was made with model = x, not none, as .*one\.h5 was"):
            merge_sources([files[0], tmp_path / "other.h5"], tmp_path / "all")
        match_pairs(files[0], tmp_path / "m.h5", PAIRS[:1])
        with pytest.raises(StorageError, match="features and matches cannot be merged"):
            merge_sources([files[0], tmp_path / "m.h5"], tmp_path / "all")
        with pytest.raises(StorageError, match="is one of the sources"):
            merge_sources(files, files[0])
        assert not (tmp_path / "all").exists()


class TestCheck:
    @pytest.fixture
    def collection(self, files, tmp_path):
        merge_sources(files, tmp_path / "all")
        return tmp_path / "all"

    def test_of_a_sound_one(self, collection):
        assert check_collection(collection) == ([], 2)
        found = describe_collection(collection)
        assert (found.items, found.unit, found.amount, found.what, found.shards) == (3, "image", 80, "keypoints", 2)

    def test_bad_shards_are_named_and_dropped(self, collection):
        with open_features(collection) as source:
            first, second = source.shards
        (collection / first.file).unlink()
        content = bytearray((collection / second.file).read_bytes())
        content[len(content) // 2] ^= 1
        (collection / second.file).write_bytes(content)
        faults, kept = check_collection(collection, drop=True)
        reasons = ["missing", "its content has changed: the hash differs"]
        assert (faults, kept) == (list(zip((first, second), reasons, strict=True)), 0)
        assert check_collection(collection) == ([], 0)

    def test_a_damaged_shard_is_not_merged(self, collection, tmp_path):
        with open_features(collection) as source:
            (collection / source.shards[1].file).write_bytes(b"cut off")
        with pytest.raises(StorageError, match=r"has 7 bytes, not .*; see `logpolar collection check"):
            merge_sources([collection], tmp_path / "other")

    def test_of_matches(self, files, tmp_path):
        match_pairs(files[0], tmp_path / "m", PAIRS[:1], shard_size=5)
        assert check_collection(tmp_path / "m") == ([], 1)
        assert describe_collection(tmp_path / "m").what == "matches"
        with open_matches(tmp_path / "m") as links:
            assert links.pairs() == PAIRS[:1]
