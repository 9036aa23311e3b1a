from __future__ import annotations

import shutil
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from dataset_commands import COMMANDS, IMAGES, PHOTOS, SCENE, names_in, run
from helpers import assert_one_error, assert_same_content
from logpolar.datasets import scenes
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.options import (
    KeypointRules,
    PairRules,
    PhotoOptions,
    SceneOptions,
    SplitRules,
    ViewOptions,
)
from logpolar.datasets.scenes import build_scene
from logpolar.datasets.writing import CorrespondenceWriter
from logpolar.errors import StorageError
from logpolar.features.features import Features
from logpolar.features.files import FeatureWriter
from logpolar.keypoints import Keypoints


class TestColmap:
    def test_one_workspace_to_a_file(self, places, scene_file, tmp_path):
        result = run("colmap", places / "one", "-o", tmp_path / "out.h5", *SCENE)
        assert (result.exit_code, result.stderr) == (0, "")
        with CorrespondenceFile(tmp_path / "out.h5") as file:
            counts = file.counts()
            assert file.complete
            assert file.settings["scene"] == "one"
            assert [entry.name for entry in file.images] == IMAGES
        assert counts["pairs"] == 6
        assert counts["correspondences"] > 20
        said = f"{tmp_path / 'out.h5'}: 4 images, 6 pairs, {counts['correspondences']} correspondences, "
        assert result.stdout.startswith(said)
        rejects = [line.split(":")[0].strip() for line in result.stdout.splitlines()[2:]]
        assert {"image pairs", "keypoints"} >= set(rejects) >= {"keypoints"}
        assert [path.name for path in tmp_path.iterdir()] == ["out.h5"]

    def test_the_file_is_that_of_the_library(self, places, scene_file, tmp_path):
        options = SceneOptions(
            pairs=PairRules(min_overlap=0.1), keypoints=KeypointRules(300), split=SplitRules(validation=0.0)
        )
        build_scene(places / "one", tmp_path / "out.h5", options)
        assert_same_content(tmp_path / "out.h5", scene_file)
        with CorrespondenceFile(tmp_path / "out.h5") as file, CorrespondenceFile(scene_file) as other:
            assert file.settings == other.settings

    def test_second_images_can_be_altered(self, places, tmp_path):
        result = run("colmap", places / "one", "-o", tmp_path / "out.h5", *SCENE, "--downscale", 1.5, "--rotate", -90)
        assert (result.exit_code, result.stderr) == (0, "")
        with CorrespondenceFile(tmp_path / "out.h5") as file:
            assert file.settings["second"] == {"shrink": 1.5, "turn": -90.0}
            seconds = {file.images[image].name.partition("@")[2] for image in file.pair_images[:, 1]}
        assert seconds == {"shrunk-1.5-turned--90"}

    @pytest.mark.parametrize(("option", "value"), [("--downscale", 0.9), ("--rotate", 181), ("--rotate", -181)])
    def test_alterations_out_of_range(self, places, tmp_path, option, value):
        result = run("colmap", places / "one", "-o", tmp_path / "out.h5", *SCENE, option, value)
        assert result.exit_code == 2
        assert option in result.stderr

    def test_jobs_are_passed_on(self, places, tmp_path, monkeypatch):
        """That they do not matter is tested with the builders."""
        monkeypatch.setattr("logpolar.distributed.cores", lambda: 2)  # fewer would be pointed out
        given = []

        def note(workspace, output, options, jobs, *rest, **more):
            given.append(jobs)
            raise StorageError("enough")

        monkeypatch.setattr(scenes, "build_scene", note)
        assert_one_error(run("colmap", places / "one", "-o", tmp_path / "out.h5", *SCENE, "--jobs", 2), "enough")
        assert given == [2]

    @pytest.mark.parametrize("exists", [False, True])
    def test_to_a_folder_the_file_is_named_by_the_workspace(self, places, tmp_path, exists):
        folder = tmp_path / "deep" / "out"
        if exists:
            folder.mkdir(parents=True)
        assert run("colmap", places / "one", "-o", folder, *SCENE).exit_code == 0
        assert names_in(tmp_path) == ["deep/out/one.h5"]

    def test_several_to_a_folder(self, places, tmp_path):
        result = run("colmap", places / "one", places / "two", "-o", tmp_path, *SCENE)
        assert result.exit_code == 0
        assert names_in(tmp_path) == ["one.h5", "two.h5"]
        said = [line.split(":")[0] for line in result.stdout.splitlines()]
        assert [line for line in said if line.endswith(".h5")] == [str(tmp_path / n) for n in ("one.h5", "two.h5")]

    def test_several_with_one_name(self, places, tmp_path):
        assert run("colmap", places / "one", places / "two", "-o", tmp_path / "all.h5", *SCENE).exit_code == 0
        assert names_in(tmp_path) == ["all-one.h5", "all-two.h5"]
        with CorrespondenceFile(tmp_path / "all-two.h5") as file:
            assert file.settings["scene"] == "two"

    def test_several_of_one_name_are_refused(self, places, workspace, tmp_path):
        other = Path(shutil.copytree(workspace, tmp_path / "inputs" / "deep" / "scene"))
        assert_one_error(run("colmap", workspace, other, "-o", tmp_path / "out", *SCENE), "same name")
        assert names_in(tmp_path) == []

    def test_one_that_cannot_be_used_does_not_stop_the_others(self, places, tmp_path):
        result = run("colmap", places / "none", places / "two", "-o", tmp_path, *SCENE)
        assert_one_error(result, "none", "no such folder")
        assert names_in(tmp_path) == ["two.h5"]

    def test_a_second_run_has_nothing_to_do(self, places, scene_file, monkeypatch):
        before = scene_file.read_bytes()
        monkeypatch.setattr(scenes, "prepare_view", None)
        monkeypatch.setattr(scenes, "link_views", None)
        assert run("colmap", places / "one", "-o", scene_file, *SCENE).exit_code == 0
        assert scene_file.read_bytes() == before

    def test_other_settings_are_refused_but_may_overwrite(self, places, scene_file, tmp_path):
        output = Path(shutil.copy(scene_file, tmp_path / "out.h5"))
        other = [*SCENE, "--max-count", 4]
        result = run("colmap", places / "one", "-o", output, *other)
        assert_one_error(result, "out.h5", "rules.max_count = 1000, not 4")
        assert output.read_bytes() == scene_file.read_bytes()
        assert run("colmap", places / "one", "-o", output, *other, "--overwrite").exit_code == 0
        with CorrespondenceFile(output) as file:
            assert max(len(file.read_correspondences(pair)) for pair in file.pairs()) == 4

    def test_images_that_cannot_be_used_are_listed(self, workspace, tmp_path):
        (workspace / "images" / IMAGES[1]).write_text("no image")
        (workspace / "stereo" / "depth_maps" / f"{IMAGES[2]}.photometric.bin").unlink()
        for _ in range(2):  # the file is complete when it is asked for again
            result = run("colmap", workspace, "-o", tmp_path / "out.h5", *SCENE)
            assert result.exit_code == 1
            lines = sorted(result.stderr.splitlines())
            assert len(lines) == 2
            assert all(line.startswith("logpolar: left out: ") for line in lines)
            assert IMAGES[1] in lines[0]
            assert IMAGES[2] in lines[1]
            assert "2 images, 1 pairs" in result.stdout

    def test_images_may_stay_where_they_are(self, places, scene_file, tmp_path):
        assert run("colmap", places / "one", "-o", tmp_path / "out.h5", *SCENE, "--no-embed").exit_code == 0
        with CorrespondenceFile(tmp_path / "out.h5") as file, CorrespondenceFile(scene_file) as other:
            for number in range(4):
                np.testing.assert_array_equal(file.read_image(number), other.read_image(number))

    def test_without_pycolmap_the_extra_is_named(self, places, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "pycolmap", None)
        assert_one_error(run("colmap", places / "one", "-o", tmp_path / "out.h5"), "logpolar[sfm]")
        assert names_in(tmp_path) == []


def spoil_model(workspace: Path) -> None:
    (workspace / "sparse" / "images.txt").write_text("1 0.5 what\n")


def spoil_images(workspace: Path) -> None:
    for path in (workspace / "images").iterdir():
        path.write_text("no image")


def spoil_depth(workspace: Path) -> None:
    for path in (workspace / "stereo" / "depth_maps").iterdir():
        path.write_bytes(path.read_bytes()[:-5])


class TestBadWorkspaces:
    @pytest.mark.parametrize(
        ("spoil", "words"),
        [
            (shutil.rmtree, ["scene", "no such folder"]),
            (lambda place: (shutil.rmtree(place), place.write_text("")), ["scene", "no such folder"]),
            (lambda place: shutil.rmtree(place / "sparse"), ["scene", "no sparse model"]),
            (spoil_model, ["sparse", "cannot be read as a COLMAP model"]),
            (lambda place: shutil.rmtree(place / "images"), ["scene", "only 0 of the 4 images", IMAGES[0]]),
            (lambda place: shutil.rmtree(place / "stereo"), ["scene", "only 0 of the 4 images", "patch_match_stereo"]),
            (spoil_depth, ["only 0 of the 4 images", "depth_maps", "truncated"]),
            (spoil_images, ["scene", "no two usable images", IMAGES[0]]),
        ],
        ids=["missing", "a file", "no model", "damaged model", "no images", "no depth", "damaged depth", "bad images"],
    )
    def test_are_one_error_that_names_the_place(self, workspace, tmp_path, spoil, words, capfd):
        spoil(workspace)
        (tmp_path / "outputs").mkdir()
        result = run("colmap", workspace, "-o", tmp_path / "outputs" / "out.h5", *SCENE)
        assert_one_error(result, *words)
        assert result.stdout == ""
        assert capfd.readouterr() == ("", ""), "what is written past Python"
        assert list((tmp_path / "outputs").iterdir()) == []

    def test_no_two_images_see_the_same(self, workspace, tmp_path):
        result = run("colmap", workspace, "-o", tmp_path / "out.h5", "--min-shared", 100000)
        assert_one_error(result, "scene", "no two images overlap enough")
        assert names_in(tmp_path) == []

    def test_leave_no_folder_either(self, tmp_path):
        assert_one_error(run("colmap", tmp_path / "none", "-o", tmp_path / "out"), "none")
        assert list(tmp_path.iterdir()) == []


class TestHomographies:
    def test_folder(self, places, photo_file, tmp_path):
        result = run("homographies", places / "photos", "-o", tmp_path / "out.h5", *PHOTOS)
        assert (result.exit_code, result.stderr) == (0, "")
        with CorrespondenceFile(tmp_path / "out.h5") as file:
            assert file.complete
            count = file.counts()["correspondences"]
            assert {entry.name.partition("#")[0] for entry in file.images} == {"a.png", "b.jpg", "deep/c.png"}
        assert result.stdout.startswith(f"{tmp_path / 'out.h5'}: 12 images, 6 pairs, {count} correspondences, ")
        assert [path.name for path in tmp_path.iterdir()] == ["out.h5"]
        assert_same_content(tmp_path / "out.h5", photo_file)

    def test_options_reach_the_file(self, photo_file):
        options = PhotoOptions(
            views=2, view=ViewOptions(min_side=90, keypoints=KeypointRules(200)), split=SplitRules(validation=0.4)
        )
        with CorrespondenceFile(photo_file) as file:
            assert file.settings["views"] == options.views
            assert file.settings["view"]["min_side"] == 90
            assert file.settings["view"]["keypoints"]["max_keypoints"] == 200
            assert max(len(file.read_keypoints(number)) for number in range(12)) <= 200
            assert len(file.pairs("validation")) == 2

    def test_all_of_it_for_testing(self, places, tmp_path):
        run("homographies", places / "photos" / "a.png", "-o", tmp_path / "out.h5", *PHOTOS, "--test")
        with CorrespondenceFile(tmp_path / "out.h5") as file:
            assert file.pairs("test") == [0, 1]

    def test_photos_that_cannot_be_read_are_listed(self, places, tmp_path):
        (tmp_path / "bad.jpg").write_text("no photo")
        for _ in range(2):
            result = run("homographies", places / "photos", tmp_path / "bad.jpg", "-o", tmp_path / "out.h5", *PHOTOS)
            assert result.exit_code == 1
            lines = result.stderr.splitlines()
            assert lines
            assert all(line.startswith(f"logpolar: left out: {tmp_path / 'bad.jpg'}: ") for line in lines)

    def test_none_can_be_read(self, tmp_path):
        (tmp_path / "bad.jpg").write_text("no photo")
        assert_one_error(run("homographies", tmp_path, "-o", tmp_path / "out.h5"), "bad.jpg", "not an image")
        assert names_in(tmp_path) == []

    @pytest.mark.parametrize(
        ("path", "words"),
        [
            ("none.jpg", ["none.jpg", "no such file"]),
            ("*.tif", ["*.tif", "no image"]),
            ("one/sparse", ["one/sparse", "no images"]),
        ],
    )
    def test_nothing_there(self, places, tmp_path, path, words):
        assert_one_error(run("homographies", places / path, "-o", tmp_path / "out.h5"), *words)
        assert names_in(tmp_path) == []

    def test_a_name_that_is_not_utf8_is_left_out(self, places, tmp_path):
        (tmp_path / "photos").mkdir()
        for name in ("good.png", "latin\udce9.png"):
            shutil.copy(places / "photos" / "a.png", tmp_path / "photos" / name)
        result = run("homographies", tmp_path / "photos", "-o", tmp_path / "out.h5", *PHOTOS)
        assert result.exit_code == 1
        assert "4 images, 2 pairs" in result.stdout


class TestAligned:
    @pytest.fixture
    def views(self, photo, tmp_path):
        """A view, the same in less light, one that moved, and a list of both pairs."""
        folder = tmp_path / "views"
        folder.mkdir()
        images = {"day": photo[40:240, 60:300], "dusk": photo[40:240, 60:300] // 2, "moved": photo[52:252, 60:300]}
        for name, pixels in images.items():
            cv2.imwrite(str(folder / f"{name}.png"), pixels)
        (folder / "good.txt").write_text("day.png dusk.png\n")
        (folder / "both.txt").write_text("day.png dusk.png\nday.png moved.png\n")
        return folder

    def test_list(self, views, tmp_path):
        result = run("aligned", views / "good.txt", "-o", tmp_path / "out.h5", "--test", "--jobs", 1)
        assert (result.exit_code, result.stderr) == (0, "")
        with CorrespondenceFile(tmp_path / "out.h5") as file:
            assert file.complete
            assert file.settings["source"] == "aligned"
            assert file.pairs("test") == [0]

    def test_pairs_that_moved_are_listed(self, views, tmp_path):
        result = run("aligned", views / "both.txt", "-o", tmp_path / "out.h5", "--jobs", 1)
        assert result.exit_code == 1
        [line] = result.stderr.splitlines()
        assert line.startswith("logpolar: left out: ")
        assert "moved.png: moved by 1" in line

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", ["pairs.txt", "no pairs"]),
            ("day.png\n", ["pairs.txt", "line 1", "not two images"]),
            ("day.png dusk.png good.txt\n", ["good.txt", "not a homography"]),
            ("day.png none.png\n", ["none.png"]),
        ],
    )
    def test_bad_lists(self, views, tmp_path, text, words):
        (views / "pairs.txt").write_text(text)
        assert_one_error(run("aligned", views / "pairs.txt", "-o", tmp_path / "out.h5", "--jobs", 1), *words)
        assert not (tmp_path / "out.h5").exists()


@pytest.mark.parametrize("command", COMMANDS)
class TestBadOutput:
    def run(self, places, command, output, *options):
        path, settings = COMMANDS[command]
        return run(command, places / path, "-o", output, *settings, *options)

    def test_folder_that_does_not_exist(self, places, command, tmp_path):
        assert_one_error(self.run(places, command, tmp_path / "none" / "out.h5"), "none/out.h5", "does not exist")
        assert list(tmp_path.iterdir()) == []

    def test_below_a_file(self, places, command, tmp_path):
        (tmp_path / "file").write_text("")
        assert_one_error(self.run(places, command, tmp_path / "file" / "out.h5"), "file/out.h5", "is not a folder")

    @pytest.mark.parametrize("options", [(), ("--overwrite",)])
    @pytest.mark.parametrize("content", [b"", b"these are words, not HDF5"])
    def test_what_is_no_hdf5_is_left_alone(self, places, command, tmp_path, content, options):
        (tmp_path / "out.h5").write_bytes(content)
        result = self.run(places, command, tmp_path / "out.h5", *options)
        assert_one_error(result, "out.h5", "not an HDF5 file")
        assert (tmp_path / "out.h5").read_bytes() == content
        assert names_in(tmp_path) == ["out.h5"]

    @pytest.mark.parametrize("options", [(), ("--overwrite",)])
    def test_a_feature_file_is_left_alone(self, places, command, tmp_path, options):
        with FeatureWriter(tmp_path / "out.h5", {}) as writer:
            writer.add("a", Features(Keypoints.empty(), np.zeros((0, 128), np.float32), (4, 3)))
        before = (tmp_path / "out.h5").read_bytes()
        result = self.run(places, command, tmp_path / "out.h5", *options)
        assert_one_error(result, "out.h5", "not a logpolar correspondence file")
        assert (tmp_path / "out.h5").read_bytes() == before
        assert names_in(tmp_path) == ["out.h5"]

    def test_a_truncated_file(self, places, command, tmp_path, scene_file):
        data = scene_file.read_bytes()
        (tmp_path / "out.h5").write_bytes(data[: len(data) // 2])
        assert_one_error(self.run(places, command, tmp_path / "out.h5"), "out.h5", "damaged")

    def test_somebody_else_is_writing(self, places, command, tmp_path):
        with CorrespondenceWriter(tmp_path / "out.h5", {}):
            result = self.run(places, command, tmp_path / "out.h5")
            assert_one_error(result, "out.h5", "another process is writing")

    @pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder where nobody may write")
    def test_where_nobody_may_write(self, places, command):
        assert_one_error(self.run(places, command, "/proc/out.h5"), "/proc/out.h5", "cannot be written")


def test_a_folder_is_no_output_of_photos(places, tmp_path):
    assert_one_error(run("homographies", places / "photos", "-o", tmp_path), str(tmp_path), "end in .h5")


def test_an_input_is_never_overwritten(places):
    photo = places / "photos" / "a.png"
    before = photo.read_bytes()
    assert_one_error(run("homographies", photo, "-o", photo, "--overwrite"), "a.png")
    assert photo.read_bytes() == before
