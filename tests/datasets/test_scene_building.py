"""How a scene becomes a file: what is counted, split, stored, and what a stopped run leaves."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers import assert_same_content, content_of
from logpolar.datasets.building import split_images
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.options import (
    DepthRules,
    KeypointRules,
    SceneOptions,
    SplitRules,
)
from logpolar.datasets.scenes import build_scene
from logpolar.errors import StorageError
from scene_truth import (
    NAMES,
    OPTIONS,
    SMALL,
    UNSPACED,
    stop_after,
)
from synthetic_world import World, write_workspace


class TestCounts:
    def test_unconfirmed_depth_counts_if_asked_for(self, built, trusting):
        with CorrespondenceFile(built) as confirmed, CorrespondenceFile(trusting) as every:
            for image in range(len(NAMES)):
                assert np.isfinite(every.read_depths(image)).sum() > np.isfinite(confirmed.read_depths(image)).sum()
            assert every.rejects()["other views disagree"] == 0 < confirmed.rejects()["other views disagree"]

    @pytest.mark.parametrize("name", ["built", "unspaced", "trusting"])
    def test_rejects_of_a_pair_and_its_correspondences_are_all_keypoints_of_known_depth(self, name, request):
        with CorrespondenceFile(request.getfixturevalue(name)) as file:
            rejects = file.column("pairs", "rejects")
            assert (rejects >= 0).all()
            for number, (first, _) in enumerate(file.pair_images.tolist()):
                known = np.isfinite(file.read_depths(first)).sum()
                assert rejects[number].sum() + len(file.read_correspondences(number)) == known

    def test_every_cause_occurs(self, built):
        with CorrespondenceFile(built) as file:
            rejects = file.rejects()
        never = {cause for cause, count in rejects.items() if count == 0}
        assert never <= {"over the limit per pair", "scale differs", "cycle does not close"}

    def test_rejects_of_an_image_and_its_known_depths_are_all_keypoints(self, unspaced):
        with CorrespondenceFile(unspaced) as file:
            rejects = file.column("images", "rejects")
            for image in range(len(NAMES)):
                depth = file.read_depths(image)
                assert rejects[image].sum() + np.isfinite(depth).sum() == len(depth)

    def test_keypoints_in_the_sky_have_no_depth(self, world, unspaced):
        with CorrespondenceFile(unspaced) as file:
            causes = file._file["images/rejects"].attrs["causes"].tolist()
            no_depth = file.column("images", "rejects")[:, causes.index("no depth")]
            for image, camera in enumerate(world.cameras):
                sky = np.isnan(world.cast(camera, np.rint(file.read_keypoints(image).xy))[0])
                assert no_depth[image] == sky.sum()
            assert no_depth.sum() > 10

    def test_known_depths_are_right(self, world, built):
        """Of all keypoints, with a partner or without; one in 200 at an edge may have the depth of its neighbour."""
        with CorrespondenceFile(built) as file:
            for image, camera in enumerate(world.cameras):
                depth = file.read_depths(image)
                known = np.isfinite(depth)
                error = np.abs(depth / world.cast(camera, file.read_keypoints(image).xy)[0] - 1)[known]
                assert (error < 0.01).mean() > 0.995

    def test_distractors_are_the_strongest_without_depth(self, workspace, unspaced, tmp_path):
        options = replace(UNSPACED, keypoints=KeypointRules(distractors=20))
        build_scene(workspace, tmp_path / "few.h5", options)
        with CorrespondenceFile(tmp_path / "few.h5") as few, CorrespondenceFile(unspaced) as every:
            for image in range(len(NAMES)):
                here, there = few.read_depths(image), every.read_depths(image)
                assert np.isfinite(here).sum() == np.isfinite(there).sum()
                assert np.isnan(here).sum() == 20
                weakest = few.read_keypoints(image).response[np.isnan(here)].min()
                assert (every.read_keypoints(image).response[np.isnan(there)] > weakest).sum() < 20
            for number in range(len(every)):
                one, other = (file.read_correspondences(number) for file in (few, every))
                np.testing.assert_array_equal(one.first.xy, other.first.xy)
                np.testing.assert_array_equal(one.second.xy, other.second.xy)

    def test_report(self, workspace, built):
        report = build_scene(workspace, built, OPTIONS)  # it is complete: this only reads
        with CorrespondenceFile(built) as file:
            assert report.counts == file.counts()
            assert report.counts["images"] == 6
            assert report.counts["correspondences"] == len(file.column("correspondences", "angle_residual"))
            assert sum(file.summary["image_pairs_rejected"].values()) == 15 - len(file)
        assert report.left_out == {}


class TestSplit:
    @pytest.mark.parametrize(
        ("count", "share", "held_out"), [(10, 0.3, 3), (6, 0.3, 2), (7, 0.5, 4), (5, 0, 0), (5, 1, 5)]
    )
    def test_exact_share(self, count, share, held_out):
        parts = split_images([f"image{k}" for k in range(count)], SplitRules(validation=share))
        assert list(parts.values()).count("validation") == held_out
        assert list(parts.values()).count("train") == count - held_out

    def test_in_the_file(self, workspace, tmp_path):
        build_scene(workspace, tmp_path / "split.h5", SceneOptions(split=SplitRules(validation=0.5)))
        with CorrespondenceFile(tmp_path / "split.h5") as file:
            parts = [image.split for image in file.images]
            assert sorted(parts) == ["train"] * 3 + ["validation"] * 3
            assert all(parts[first] == parts[second] for first, second in file.pair_images.tolist())
            assert sorted(file.pairs("train") + file.pairs("validation")) == list(range(len(file)))
            assert len(file) > 0
            assert file.summary["image_pairs_rejected"]["across the split"] > 0

    def test_test_data(self, small, tmp_path):
        options = replace(SMALL, split=SplitRules(validation=0.5, test=True))
        build_scene(small, tmp_path / "test.h5", options)
        with CorrespondenceFile(tmp_path / "test.h5") as file:
            assert {image.split for image in file.images} == {"test"}
            assert file.pairs("test") == list(range(len(file)))
            assert file.pairs("train") == file.pairs("validation") == []


def leftovers(path: Path) -> list[str]:
    """Whatever lies beside a file and begins with its name."""
    return sorted(each.name for each in path.parent.glob(path.name + "*") if each != path)


class TestDeterminism:
    def test_the_small_scene_is_worth_the_comparison(self, small_built):
        with CorrespondenceFile(small_built) as file:
            assert len(file) == 6
            assert file.counts()["correspondences"] > 200

    def test_again(self, small, small_built, tmp_path):
        build_scene(small, tmp_path / "again.h5", SMALL)
        assert_same_content(tmp_path / "again.h5", small_built)

    def test_in_two_processes(self, small, small_built, tmp_path):
        build_scene(small, tmp_path / "two.h5", SMALL, jobs=2)
        assert_same_content(tmp_path / "two.h5", small_built)

    def test_the_seed_decides(self, small, small_built, tmp_path):
        """Which of several close correspondences stays."""
        build_scene(small, tmp_path / "other.h5", replace(SMALL, split=SplitRules(validation=0, seed=1)))
        rows = [content_of(path)["correspondences/keypoints"].tolist() for path in (tmp_path / "other.h5", small_built)]
        assert rows[0] != rows[1]


class TestResuming:
    @pytest.mark.parametrize("count", [0, 1, 4])
    def test_stopped_between_pairs(self, small, small_built, tmp_path, monkeypatch, count):
        path = tmp_path / "scene.h5"
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_after(patch, "link_views", count)
            build_scene(small, path, SMALL)
        with CorrespondenceFile(path) as partial, CorrespondenceFile(small_built) as whole:
            assert not partial.complete
            assert whole.complete
            assert partial.images == whole.images
            assert partial.pair_images.tolist() == whole.pair_images[:count].tolist()
            for number in range(count):
                one, other = (file.read_correspondences(number) for file in (partial, whole))
                np.testing.assert_array_equal(one.indices, other.indices)
                np.testing.assert_array_equal(one.warp, other.warp)
        assert leftovers(path) == ["scene.h5.scratch"]
        self.continue_it(small, path, small_built)

    def test_stopped_before_the_first_image(self, small, small_built, tmp_path, monkeypatch):
        """There is no empty file, which would refuse other settings."""
        path = tmp_path / "scene.h5"
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_after(patch, "prepare_view", 0)
            build_scene(small, path, SMALL)
        assert not path.exists()
        self.continue_it(small, path, small_built)

    @pytest.mark.parametrize("count", [1, 3])
    def test_stopped_between_images(self, small, small_built, tmp_path, monkeypatch, count):
        path = tmp_path / "scene.h5"
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_after(patch, "prepare_view", count)
            build_scene(small, path, SMALL)
        with CorrespondenceFile(path) as partial:
            assert not partial.complete
            assert [image.name for image in partial.images] == NAMES[:count]
            assert len(partial) == 0
        self.continue_it(small, path, small_built)

    def continue_it(self, small, path, small_built):
        report = build_scene(small, path, SMALL)
        assert report.counts["pairs"] == 6
        assert_same_content(path, small_built)
        assert leftovers(path) == []

    def test_finished_work_is_not_done_again(self, small, tmp_path, monkeypatch):
        path = tmp_path / "scene.h5"
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_after(patch, "link_views", 4)
            build_scene(small, path, SMALL)
        stop_after(monkeypatch, "prepare_view", 0, AssertionError)
        stop_after(monkeypatch, "link_views", 2, AssertionError)
        assert build_scene(small, path, SMALL).counts["pairs"] == 6

    def test_stopped_twice(self, small, small_built, tmp_path, monkeypatch):
        path = tmp_path / "scene.h5"
        for name, count in (("prepare_view", 2), ("prepare_view", 1), ("link_views", 2), ("link_views", 1)):
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                stop_after(patch, name, count)
                build_scene(small, path, SMALL)
        self.continue_it(small, path, small_built)

    def test_scratch_was_deleted(self, small, small_built, tmp_path, monkeypatch):
        path = tmp_path / "scene.h5"
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_after(patch, "link_views", 3)
            build_scene(small, path, SMALL)
        shutil.rmtree(tmp_path / "scene.h5.scratch")
        self.continue_it(small, path, small_built)

    @pytest.mark.parametrize("name", ["prepare_view", "link_views"])
    def test_the_file_was_deleted(self, small, small_built, tmp_path, monkeypatch, name):
        """Its scratch folder was not: all is made again."""
        path = tmp_path / "scene.h5"
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_after(patch, name, 2)
            build_scene(small, path, SMALL)
        path.unlink()
        self.continue_it(small, path, small_built)

    def test_scratch_of_other_settings_is_not_used(self, small, small_built, tmp_path, monkeypatch):
        """The file of a stopped run was deleted, its scratch folder was not."""
        path = tmp_path / "scene.h5"
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_after(patch, "link_views", 0)
            build_scene(small, path, replace(SMALL, keypoints=KeypointRules(max_keypoints=50)))
        path.unlink()
        self.continue_it(small, path, small_built)

    def test_complete_file_is_left_as_it_is(self, small, small_built, tmp_path, monkeypatch):
        path = Path(shutil.copy(small_built, tmp_path / "scene.h5"))
        stop_after(monkeypatch, "prepare_view", 0, AssertionError)
        build_scene(small, path, SMALL)
        assert path.read_bytes() == small_built.read_bytes()
        assert leftovers(path) == []

    def test_killed_before_the_scratch_folder_was_deleted(self, small, small_built, tmp_path):
        """The file is complete; what is left of the run goes with the next one."""
        path = Path(shutil.copy(small_built, tmp_path / "scene.h5"))
        (tmp_path / "scene.h5.scratch").mkdir()
        (tmp_path / "scene.h5.scratch" / "0.view.npz").touch()
        build_scene(small, path, SMALL)
        assert leftovers(path) == []

    @pytest.mark.parametrize("complete", [True, False])
    def test_other_settings_are_refused(self, small, small_built, tmp_path, monkeypatch, complete):
        path = tmp_path / "scene.h5"
        if complete:
            shutil.copy(small_built, path)
        else:
            with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
                stop_after(patch, "link_views", 2)
                build_scene(small, path, SMALL)
        before = path.read_bytes()
        with pytest.raises(StorageError, match=r"max_drift = 1\.5, not 9\.0") as error:
            build_scene(small, path, replace(SMALL, depth=DepthRules(min_views=1, max_drift=9.0)))
        assert str(path) in str(error.value)
        assert path.read_bytes() == before

    def test_another_scene_is_refused(self, small, small_built, tmp_path):
        path = Path(shutil.copy(small_built, tmp_path / "scene.h5"))
        other = shutil.copytree(small, tmp_path / "other")
        with pytest.raises(StorageError, match="scene = scene, not other"):
            build_scene(other, path, SMALL)

    def test_overwrite(self, small, small_built, tmp_path):
        path = Path(shutil.copy(small_built, tmp_path / "scene.h5"))
        options = replace(SMALL, split=SplitRules(validation=0, seed=5))
        build_scene(small, path, options, overwrite=True)
        build_scene(small, tmp_path / "fresh.h5", options)
        assert_same_content(path, tmp_path / "fresh.h5")
        assert content_of(path)["@settings"] != content_of(small_built)["@settings"]
        assert leftovers(path) == []

    def test_overwrite_a_file_that_was_stopped(self, small, small_built, tmp_path, monkeypatch):
        path = tmp_path / "scene.h5"
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_after(patch, "link_views", 2)
            build_scene(small, path, replace(SMALL, split=SplitRules(validation=0, seed=5)))
        build_scene(small, path, SMALL, overwrite=True)
        assert_same_content(path, small_built)
        assert leftovers(path) == []

    def test_overwrite_in_the_same_process_with_other_keypoints(self, small_world, tmp_path):
        """Two images, so that the two views that stay in memory are those of the file before."""
        two = World(small_world.quads, small_world.cameras[:2])
        two.__dict__["views"] = small_world.views[:2]
        write_workspace(two, tmp_path / "scene")
        options = replace(SMALL, keypoints=KeypointRules(max_keypoints=200))
        build_scene(tmp_path / "scene", tmp_path / "scene.h5", SMALL)
        build_scene(tmp_path / "scene", tmp_path / "scene.h5", options, overwrite=True)
        build_scene(tmp_path / "scene", tmp_path / "fresh.h5", options)
        assert_same_content(tmp_path / "scene.h5", tmp_path / "fresh.h5")

    @pytest.mark.parametrize("change", ["comes back", "goes away"])
    def test_an_image_comes_or_goes_before_the_run_continues(self, small, tmp_path, monkeypatch, change):
        """By a depth map that was missing, or is now: all views after it would have other numbers."""
        folder, path = Path(shutil.copytree(small, tmp_path / "scene")), tmp_path / "scene.h5"
        depth, away = folder / "stereo" / "depth_maps" / "view0.png.photometric.bin", tmp_path / "away"
        first, then = (away, depth) if change == "comes back" else (depth, away)
        depth.rename(first)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_after(patch, "link_views", 1)
            build_scene(folder, path, SMALL)
        first.rename(then)
        with pytest.raises(StorageError, match="was made from other images") as error:
            build_scene(folder, path, SMALL)
        assert str(path) in str(error.value)
        with CorrespondenceFile(path) as file:
            assert not file.complete


def test_settings_are_in_the_file(built, workspace):
    with CorrespondenceFile(built) as file:
        assert file.settings["source"] == "colmap"
        assert file.settings["scene"] == workspace.name
        assert file.settings["rules"]["max_count"] == 1000
        assert file.settings["depth"]["min_views"] == 2
        assert json.loads(json.dumps(file.settings)) == file.settings


def test_software_is_in_the_file_whatever_package_brought_pycolmap(small_built):
    """It may be installed as pycolmap-cuda12: the module knows its version, the name of the package need not fit."""
    import pycolmap

    with CorrespondenceFile(small_built) as file:
        assert file.summary["versions"]["pycolmap"] == pycolmap.__version__
        assert set(file.summary["versions"]) == {"logpolar", "python", "numpy", "opencv", "h5py", "pycolmap"}
