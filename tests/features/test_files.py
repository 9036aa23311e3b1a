from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from logpolar.errors import StorageError
from logpolar.features import files as storage
from logpolar.features.features import Features
from logpolar.features.files import FeatureFile, FeatureWriter
from logpolar.keypoints import Keypoints
from logpolar.models import load_model
from logpolar.storage import hdf5, hdf5_output

SETTINGS = {"model": "logpolar-96", "model_hash": "abc", "max_size": 1600}
FIRST_DEFAULT = "30d0093e7f9f29df6c3d5211f541af3b363247f554fcd8fdbbfe88d6b4a1a116"  # in feature files of 0.1


def some_features(count: int = 5, seed: int = 0) -> Features:
    random = np.random.default_rng(seed)
    keypoints = Keypoints.from_points(
        random.uniform(0, 4000, (count, 2)),
        random.uniform(1, 9, count),
        random.uniform(0, 360, count),
        random.random(count),
    )
    return Features(keypoints, random.normal(size=(count, 128)).astype(np.float32), (4000, 3000), 0.4)


def assert_same(first: Features, second: Features) -> None:
    for name in ("xy", "size", "angle", "response"):
        np.testing.assert_array_equal(getattr(first.keypoints, name), getattr(second.keypoints, name))
    np.testing.assert_array_equal(first.descriptors, second.descriptors)
    assert (first.image_size, first.scale) == (second.image_size, second.scale)


def write(path: Path, names: list[str], settings=SETTINGS) -> None:
    with FeatureWriter(path, settings) as writer:
        for seed, name in enumerate(names):
            writer.add(name, some_features(seed=seed))


@pytest.mark.parametrize("count", [0, 1, 300])
def test_round_trip_is_exact(tmp_path, count):
    features = some_features(count)
    with FeatureWriter(tmp_path / "f.h5", SETTINGS) as writer:
        writer.add("folder/a.jpg", features)
    with FeatureFile(tmp_path / "f.h5") as file:
        assert file.names() == ["folder/a.jpg"]
        assert file.settings == SETTINGS
        assert_same(file.read("folder/a.jpg"), features)


def test_nothing_but_the_file_is_left_behind(tmp_path):
    write(tmp_path / "f.h5", ["a.jpg", "b.jpg", "c.jpg"])
    assert [path.name for path in tmp_path.iterdir()] == ["f.h5"]


def test_layout_that_hloc_reads(tmp_path):
    """Keys, shapes and types as hloc's own readers use them: fd[name]['descriptors'] (D, N), image_size (w, h), ..."""
    write(tmp_path / "f.h5", ["db/1.jpg"])
    with h5py.File(tmp_path / "f.h5", "r") as file:
        group = file["db/1.jpg"]
        assert group["keypoints"].shape == (5, 2)
        assert group["keypoints"].dtype == np.float32
        assert "uncertainty" in group["keypoints"].attrs
        assert group["descriptors"].shape == (128, 5)
        assert group["scores"].shape == (5,)
        assert group["image_size"][()].tolist() == [4000, 3000]
        assert group["sizes"].shape == group["angles"].shape == (5,)
        assert json.loads(file.attrs["settings"])["model_hash"] == "abc"


def test_a_second_run_continues(tmp_path):
    write(tmp_path / "f.h5", ["a.jpg", "b.jpg"])
    with FeatureWriter(tmp_path / "f.h5", SETTINGS) as writer:
        assert writer.finished == {"a.jpg", "b.jpg"}
        writer.add("c.jpg", some_features(seed=2))
    with FeatureFile(tmp_path / "f.h5") as file:
        assert file.names() == ["a.jpg", "b.jpg", "c.jpg"]
        assert_same(file.read("b.jpg"), some_features(seed=1))


def test_a_folder_may_be_called_keypoints(tmp_path):
    write(tmp_path / "f.h5", ["sub/keypoints/1.jpg"])
    with FeatureFile(tmp_path / "f.h5") as file:
        assert file.names() == ["sub/keypoints/1.jpg"]


def test_an_image_added_twice_is_replaced(tmp_path):
    write(tmp_path / "f.h5", ["a.jpg"])
    with FeatureWriter(tmp_path / "f.h5", SETTINGS) as writer:
        writer.add("a.jpg", some_features(9, seed=5))
    with FeatureFile(tmp_path / "f.h5") as file:
        assert_same(file.read("a.jpg"), some_features(9, seed=5))


def test_overwrite_starts_anew(tmp_path):
    write(tmp_path / "f.h5", ["a.jpg"])
    with FeatureWriter(tmp_path / "f.h5", {"model": "other"}, overwrite=True) as writer:
        assert writer.finished == set()
    with FeatureFile(tmp_path / "f.h5") as file:
        assert file.names() == []


class Killed(BaseException):
    """Stands for the process being killed: nothing after it runs, no clean-up either."""


STEPS = ["shutil.copyfile", "h5py.File", "flush", "hardlink_to", "replace", "second replace", "during the HDF5 write"]


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_the_file_is_whole_and_complete(tmp_path, monkeypatch, step):
    """Two images are in the file; the process dies at one step of adding the third."""
    path = tmp_path / "f.h5"
    write(path, ["a.jpg", "b.jpg"])
    writer = FeatureWriter(path, SETTINGS).__enter__()
    if step != "shutil.copyfile":  # a writer in full swing, with its spare copy one image behind
        writer.add("b2.jpg", some_features(seed=7))
    calls, original = 0, Path.replace

    def die(*args, **kwargs):
        raise Killed

    def die_at_second(self, target):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Killed
        return original(self, target)

    with monkeypatch.context() as patch:
        if step == "shutil.copyfile":
            patch.setattr(hdf5.shutil, "copyfile", die)
        elif step == "h5py.File":
            patch.setattr(hdf5_output.h5py, "File", die)
        elif step == "flush":
            patch.setattr(hdf5, "flush", die)
        elif step in ("hardlink_to", "replace"):
            patch.setattr(Path, step, die)
        elif step == "second replace":
            patch.setattr(Path, "replace", die_at_second)
        else:
            patch.setattr(storage, "_write_features", lambda file, *rest: (file.create_group("half"), die()))
        with pytest.raises(Killed):
            writer.add("c.jpg", some_features(seed=2))
    writer._lock._held.close()  # what the system does for a dead process

    before = {"a.jpg", "b.jpg"} if step == "shutil.copyfile" else {"a.jpg", "b.jpg", "b2.jpg"}
    with h5py.File(path, "r") as file:
        assert set(file) - {"c.jpg"} == before
    with FeatureWriter(path, SETTINGS) as again:
        assert again.finished >= before
        again.add("c.jpg", some_features(seed=2))
    with FeatureFile(path) as file:
        assert set(file.names()) == before | {"c.jpg"}
        assert_same(file.read("c.jpg"), some_features(seed=2))
    assert [each.name for each in tmp_path.iterdir()] == ["f.h5"]


def test_without_hard_links_it_copies(tmp_path, monkeypatch):
    def no_links(self, target):
        raise OSError("not supported")

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    write(tmp_path / "f.h5", ["a.jpg", "b.jpg", "c.jpg"])
    with FeatureFile(tmp_path / "f.h5") as file:
        assert file.names() == ["a.jpg", "b.jpg", "c.jpg"]


def test_a_reader_does_not_stop_the_writer(tmp_path):
    write(tmp_path / "f.h5", ["a.jpg"])
    with FeatureWriter(tmp_path / "f.h5", SETTINGS) as writer, FeatureFile(tmp_path / "f.h5") as reader:
        for seed in range(3):
            writer.add(f"{seed}.jpg", some_features(seed=seed))
        assert reader.names() == ["a.jpg"]
    with FeatureFile(tmp_path / "f.h5") as file:
        assert len(file.names()) == 4


def test_two_writers_at_once_are_refused(tmp_path):
    with (
        FeatureWriter(tmp_path / "f.h5", SETTINGS),
        pytest.raises(StorageError, match="another process"),
    ):
        FeatureWriter(tmp_path / "f.h5", SETTINGS)


class TestRefused:
    def test_other_settings(self, tmp_path):
        write(tmp_path / "f.h5", ["a.jpg"])
        for key in SETTINGS.keys() - {"model"}:
            with pytest.raises(StorageError, match=f"made with {key} ="):
                FeatureWriter(tmp_path / "f.h5", {**SETTINGS, key: "different"})
        write(tmp_path / "f.h5", ["b.jpg"])  # and the refusal left no lock behind

    def test_features_of_the_first_default_go_with_it_alone(self, tmp_path):
        """Version 0.1 called another model logpolar-96: the hash decides, not the name."""
        written = {"model": "logpolar-96", "model_hash": FIRST_DEFAULT}
        write(tmp_path / "f.h5", ["a.jpg"], written)
        first, now = (
            {"model": name, "model_hash": load_model(name).digest} for name in ("logpolar-96-v1", "logpolar-96")
        )
        with pytest.raises(StorageError, match="made with the model now called logpolar-96-v1"):
            FeatureWriter(tmp_path / "f.h5", now)
        write(tmp_path / "f.h5", ["b.jpg"], first)
        with FeatureFile(tmp_path / "f.h5") as file:
            assert file.names() == ["a.jpg", "b.jpg"]

    def test_text(self, tmp_path):
        (tmp_path / "f.h5").write_text("hello")
        with pytest.raises(StorageError, match="not an HDF5 file"):
            FeatureWriter(tmp_path / "f.h5", SETTINGS)
        assert (tmp_path / "f.h5").read_text() == "hello"

    def test_truncated(self, tmp_path):
        write(tmp_path / "f.h5", ["a.jpg"])
        data = (tmp_path / "f.h5").read_bytes()
        (tmp_path / "f.h5").write_bytes(data[: len(data) // 2])
        with pytest.raises(StorageError, match="damaged"):
            FeatureFile(tmp_path / "f.h5")

    def test_somebody_elses_hdf5(self, tmp_path):
        with h5py.File(tmp_path / "f.h5", "w") as file:
            file["x"] = 1
        with pytest.raises(StorageError, match="not a logpolar feature file"):
            FeatureWriter(tmp_path / "f.h5", SETTINGS)

    def test_later_version(self, tmp_path):
        write(tmp_path / "f.h5", [])
        with h5py.File(tmp_path / "f.h5", "a") as file:
            file.attrs["version"] = 99
        with pytest.raises(StorageError, match="version 99"):
            FeatureFile(tmp_path / "f.h5")

    @pytest.mark.parametrize("header", [{}, {"version": 1}, {"version": 1, "settings": "{"}, {"format": [1, 2]}])
    def test_odd_headers(self, tmp_path, header):
        with h5py.File(tmp_path / "f.h5", "w") as file:
            file.attrs.update({"format": "logpolar-features", **header})
        with pytest.raises(StorageError, match=r"f\.h5"):
            FeatureWriter(tmp_path / "f.h5", SETTINGS)
        assert [path.name for path in tmp_path.iterdir()] == ["f.h5"]

    def test_overwriting_what_is_no_feature_file(self, tmp_path):
        (tmp_path / "f.h5").write_text("my thesis")
        with pytest.raises(StorageError, match="not an HDF5 file"):
            FeatureWriter(tmp_path / "f.h5", SETTINGS, overwrite=True)
        assert (tmp_path / "f.h5").read_text() == "my thesis"

    def test_only_the_setting_that_differs_is_named(self, tmp_path):
        write(tmp_path / "f.h5", ["a.jpg"], {**SETTINGS, "detector": {"name": "Sift", "max_keypoints": 5}})
        with pytest.raises(StorageError, match=r"detector\.max_keypoints = 5, not 6;"):
            FeatureWriter(tmp_path / "f.h5", {**SETTINGS, "detector": {"name": "Sift", "max_keypoints": 6}})

    def test_missing_folder(self, tmp_path):
        with pytest.raises(StorageError, match="does not exist"):
            FeatureWriter(tmp_path / "nowhere" / "f.h5", SETTINGS)

    def test_a_folder(self, tmp_path):
        with pytest.raises(StorageError, match="is a folder"):
            FeatureWriter(tmp_path, SETTINGS)

    def test_missing_file_and_image(self, tmp_path):
        with pytest.raises(StorageError, match="no such file"):
            FeatureFile(tmp_path / "f.h5")
        write(tmp_path / "f.h5", ["a.jpg"])
        with FeatureFile(tmp_path / "f.h5") as file, pytest.raises(StorageError, match=r"no image 'b\.jpg'"):
            file.read("b.jpg")


class TestFoldersCalledAsImages:
    def test_an_image_that_is_added_again_leaves_those_in_the_folder_of_its_name(self, tmp_path):
        with FeatureWriter(tmp_path / "f.h5", SETTINGS) as writer:
            for name, seed in (("a.jpg", 0), ("a.jpg/b.jpg", 1), ("a.jpg", 2)):
                writer.add(name, some_features(seed=seed))
        with FeatureFile(tmp_path / "f.h5") as file:
            assert_same(file.read("a.jpg"), some_features(seed=2))
            assert_same(file.read("a.jpg/b.jpg"), some_features(seed=1))

    @pytest.mark.parametrize("names", [("a.jpg", "a.jpg/keypoints/b.jpg"), ("a.jpg/keypoints/b.jpg", "a.jpg")])
    def test_folders_called_as_arrays_are_refused_in_one_line(self, tmp_path, names):
        with FeatureWriter(tmp_path / "f.h5", SETTINGS) as writer:
            writer.add(names[0], some_features())
            with pytest.raises(StorageError, match="called as an array"):
                writer.add(names[1], some_features())
        with FeatureFile(tmp_path / "f.h5") as file:
            assert file.names() == [names[0]]
