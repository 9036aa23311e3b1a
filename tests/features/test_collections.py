from __future__ import annotations

import shutil
from functools import partial

import cv2
import numpy as np
import pytest

from feature_files import NAMES, SETTINGS, make_features, write_feature_file
from logpolar.cli.options import open_extractor
from logpolar.distributed import Workers
from logpolar.errors import LogpolarError, StorageError
from logpolar.features.batch import extract_images
from logpolar.features.collections import FeatureCollection, FeatureCollectionWriter, open_features
from logpolar.features.files import FeatureFile, FeatureWriter
from logpolar.images import find_images
from logpolar.storage.collection_files import new_part
from logpolar.storage.collections import MANIFEST, finished_part

open_small = partial(open_extractor, model="logpolar-96-small", max_keypoints=10, max_size=0, runtime="onnxruntime")


@pytest.fixture
def images(tmp_path, photo):
    """Five images, one of them unreadable, in shards of two."""
    place = tmp_path / "photos"
    (place / "deep").mkdir(parents=True)
    for number, name in enumerate(("0.png", "1.png", "3.png", "deep/4.png")):
        cv2.imwrite(str(place / name), photo[40 * number : 40 * number + 120, :160])
    (place / "2.png").write_bytes(b"no image")
    return find_images([place])


def contents(path):
    with open_features(path) as source:
        return {name: source.read(name) for name in source.names()}


def assert_equal(first, second):
    ours, theirs = contents(first), contents(second)
    assert list(ours) == list(theirs)
    for name, features in ours.items():
        assert features.image_size == theirs[name].image_size
        assert np.array_equal(features.descriptors, theirs[name].descriptors)
        for field in ("xy", "size", "angle", "response"):
            assert np.array_equal(getattr(features.keypoints, field), getattr(theirs[name].keypoints, field))


class TestExtraction:
    @pytest.mark.parametrize("jobs", [1, 2])
    def test_into_shards_stores_what_a_file_would(self, images, tmp_path, jobs):
        whole = extract_images(images, tmp_path / "file.h5", open_small)
        report = extract_images(images, tmp_path / "shards", open_small, jobs, shard_size=2)
        assert report == whole
        assert (report.done, list(report.failed)) == (4, ["2.png"])
        assert_equal(tmp_path / "shards", tmp_path / "file.h5")
        with FeatureCollection(tmp_path / "shards") as collection:
            assert [shard.items for shard in collection.shards] == [("0.png", "1.png"), ("3.png",), ("deep/4.png",)]
            assert sum(shard.amount for shard in collection.shards) == report.keypoints
        left = sorted(path.name for path in (tmp_path / "shards").iterdir())
        assert left == sorted([MANIFEST, *(shard.file for shard in collection.shards)])

    def test_resumes_by_shard_and_image(self, images, tmp_path):
        output = tmp_path / "shards"
        first = dict(list(images.items())[:2])
        extract_images(first, output, open_small, shard_size=2)
        part = new_part(output)  # of a worker that was killed after one image of its shard
        part.parent.mkdir()
        with FeatureCollection(output) as collection, FeatureWriter(part, collection.settings) as writer:
            writer.add("3.png", make_features(0))
        report = extract_images(images, output, open_small, shard_size=2)
        assert (report.done, report.skipped) == (1, 3)
        assert np.array_equal(contents(output)["3.png"].descriptors, make_features(0).descriptors)

    def test_refuses_other_settings_and_other_folders(self, images, tmp_path):
        extract_images(images, tmp_path / "shards", open_small, shard_size=3)
        other = partial(open_small, max_keypoints=11)
        with pytest.raises(StorageError, match=r"was made with detector\.max_keypoints = 10, not 11"):
            extract_images(images, tmp_path / "shards", other, shard_size=3)
        with pytest.raises(StorageError, match="a folder with other files, not a collection"):
            extract_images(images, tmp_path / "photos", open_small, shard_size=3)
        extract_images(images, tmp_path / "shards", other, shard_size=3, overwrite=True)
        assert len(contents(tmp_path / "shards")) == 4
        assert len(list((tmp_path / "shards").iterdir())) == 3

    def test_of_nothing_readable_leaves_nothing(self, images, tmp_path):
        report = extract_images({"2.png": images["2.png"]}, tmp_path / "shards", open_small, shard_size=2)
        assert len(report.failed) == 1
        assert not (tmp_path / "shards").exists()

    def test_an_error_before_the_first_shard_leaves_nothing(self, images, tmp_path):
        with pytest.raises(LogpolarError, match="is no executor"):
            extract_images(images, tmp_path / "shards", open_small, Workers(1, "none:x"), shard_size=2)
        assert not (tmp_path / "shards").exists()

    def test_an_error_leaves_a_shard_that_is_begun(self, tmp_path):
        with pytest.raises(KeyboardInterrupt), FeatureCollectionWriter(tmp_path / "c", SETTINGS) as collection:
            with FeatureWriter(new_part(collection.path), SETTINGS) as shard:
                shard.add("a.jpg", make_features(0))
            raise KeyboardInterrupt
        with FeatureCollectionWriter(tmp_path / "c", SETTINGS) as collection:
            assert collection.finished == {"a.jpg"}


@pytest.fixture
def collection(tmp_path):
    """The made-up scene, an image a shard."""
    with FeatureCollectionWriter(tmp_path / "c", SETTINGS) as writer:
        for number, name in enumerate(NAMES):
            part = new_part(tmp_path / "c")
            with FeatureWriter(part, SETTINGS) as shard:
                shard.add(name, make_features(number))
            writer.add(finished_part(part, 20), [name])
    return tmp_path / "c"


class TestReading:
    def test_is_that_of_a_file(self, collection, tmp_path):
        write_feature_file(tmp_path / "f.h5")
        assert_equal(collection, tmp_path / "f.h5")
        with open_features(collection) as ours, FeatureFile(tmp_path / "f.h5") as theirs:
            assert ours.settings == theirs.settings
            assert [ours.count(name) for name in NAMES] == [20, 20, 20]
            assert ours.image_size("c.jpg") == (640, 480)

    def test_keeps_few_shards_open(self, collection, monkeypatch):
        monkeypatch.setattr("logpolar.storage.collection_files._OPEN_SHARDS", 1)
        with FeatureCollection(collection) as source:
            assert [len(source.read(name)) for name in (*NAMES, *NAMES)] == [20] * 6
            assert len(source._open) == 1

    def test_an_unknown_image_is_an_error(self, collection):
        with open_features(collection) as source, pytest.raises(StorageError, match="no image 'none' in this coll"):
            source.read("none")

    def test_a_missing_or_damaged_shard_costs_its_images_only(self, collection):
        with FeatureCollection(collection) as source:
            missing, damaged, sound = (collection / shard.file for shard in source.shards)
        missing.unlink()
        damaged.write_bytes(b"no HDF5")
        with FeatureCollection(collection) as source:
            with pytest.raises(StorageError, match=r"shard is missing; `logpolar collection check .* --drop`"):
                source.read("a.jpg")
            with pytest.raises(StorageError, match=rf"{damaged.name}: this shard is damaged; `.* --drop`"):
                source.read("deep/b.jpg")
            assert len(source.read("c.jpg")) == 20
        assert sound.exists()

    def test_a_folder_that_is_none_is_an_error(self, tmp_path):
        with pytest.raises(StorageError, match="not a collection: it has no manifest"):
            open_features(tmp_path)

    def test_may_be_moved(self, collection, tmp_path):
        shutil.move(collection, tmp_path / "elsewhere")
        assert list(contents(tmp_path / "elsewhere")) == sorted(NAMES)


def test_two_writers_exclude_each_other(collection):
    with (
        FeatureCollectionWriter(collection, SETTINGS),
        pytest.raises(StorageError, match="another process is writing"),
    ):
        FeatureCollectionWriter(collection, SETTINGS)
