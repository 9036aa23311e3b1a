from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

from helpers import assert_one_error, assert_same_content
from logpolar import plotting
from logpolar.cli import main
from logpolar.datasets import homographies, scenes
from logpolar.datasets.correspondences import Correspondences
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
from logpolar.datasets.writing import CorrespondenceWriter, ImageRecord, PairRecord
from logpolar.extraction import Features
from logpolar.images import encode_gray
from logpolar.keypoints import Keypoints
from logpolar.storage import FeatureWriter
from synthetic_world import standard_world, write_workspace

PATIENCE = 60  # seconds after which a test that waits for another process gives up
IMAGES = [f"view{number}.png" for number in range(4)]
SCENE = ["--min-overlap", 0.1, "--validation", 0, "--max-keypoints", 300]
PHOTOS = ["--views", 2, "--min-side", 90, "--max-keypoints", 200, "--validation", 0.4]
NOTHING_FOUND = "there are no correspondences to show"


@pytest.fixture(scope="module")
def places(tmp_path_factory, photo):
    """A folder with two workspaces of the same scene and three photos; not to be changed."""
    place = tmp_path_factory.mktemp("inputs")
    write_workspace(standard_world(cameras=4, width=96, height=72), place / "one")
    shutil.copytree(place / "one", place / "two")
    (place / "photos" / "deep").mkdir(parents=True)
    for number, name in enumerate(("a.png", "b.jpg", "deep/c.png")):
        cv2.imwrite(str(place / "photos" / name), photo[60 * number : 60 * number + 130, 100:260])
    return place


@pytest.fixture
def workspace(places, tmp_path):
    """A copy of one that may be spoilt."""
    return Path(shutil.copytree(places / "one", tmp_path / "inputs" / "scene"))


@pytest.fixture(scope="module")
def scene_file(places, tmp_path_factory):
    """An undisturbed run; not to be changed."""
    output = tmp_path_factory.mktemp("undisturbed") / "scene.h5"
    assert run("colmap", places / "one", "-o", output, *SCENE).exit_code == 0
    return output


@pytest.fixture(scope="module")
def photo_file(places, tmp_path_factory):
    """An undisturbed run; not to be changed."""
    output = tmp_path_factory.mktemp("undisturbed") / "photos.h5"
    assert run("homographies", places / "photos", "-o", output, *PHOTOS).exit_code == 0
    return output


def run(command: str, *arguments: object):
    """In this process alone, unless told otherwise."""
    jobs = [] if command == "show" or "--jobs" in arguments else ["--jobs", "1"]
    return CliRunner().invoke(main, ["dataset", command, *map(str, arguments), *jobs])


def names_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.h5*"))


def make_empty(path: Path, finish: bool = True) -> Path:
    """A file with two images and a pair that has no correspondences."""
    return make_file(path, [], finish)


def make_file(path: Path, factors: list[float], finish: bool = True) -> Path:
    """A file with a pair of images whose correspondences disagree in scale by these factors."""
    rows = np.arange(len(factors), dtype=np.int32)
    points = Keypoints.from_points(np.stack([20 * rows + 10, 20 * rows + 10], axis=1))
    data = encode_gray(np.full((64, 64), 90, np.uint8), 100)
    warp = np.tile(np.eye(2, dtype=np.float32), (len(rows), 1, 1))
    ratio = np.log(np.array(factors, np.float32))
    indices = np.stack([rows, rows], axis=1)
    found = Correspondences(points, points, indices, warp, ratio, np.zeros(len(rows), np.float32))
    with CorrespondenceWriter(path, {"source": "tests"}) as writer:
        images = [ImageRecord(name, "train", (64, 64), points, data) for name in "ab"]
        writer.add(images, [PairRecord("a", "b", found, {"occluded": 7})])
        if finish:
            writer.finish({"left_out": {"c.png": "c.png: not an image"}})
    return path


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
        assert result.stdout.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["out.h5"]

    def test_the_file_is_that_of_the_library(self, places, scene_file, tmp_path):
        options = SceneOptions(
            pairs=PairRules(min_overlap=0.1), keypoints=KeypointRules(300), split=SplitRules(validation=0.0)
        )
        build_scene(places / "one", tmp_path / "out.h5", options)
        assert_same_content(tmp_path / "out.h5", scene_file)
        with CorrespondenceFile(tmp_path / "out.h5") as file, CorrespondenceFile(scene_file) as other:
            assert file.settings == other.settings

    def test_jobs_do_not_matter(self, places, scene_file, tmp_path):
        result = run("colmap", places / "one", "-o", tmp_path / "out.h5", *SCENE, "--jobs", 2)
        assert (result.exit_code, result.stderr) == (0, "")
        assert_same_content(tmp_path / "out.h5", scene_file)

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
        assert [line.split(":")[0] for line in result.stdout.splitlines()] == [
            str(tmp_path / name) for name in ("one.h5", "two.h5")
        ]

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
            (spoil_images, ["scene", "fewer than two images", IMAGES[0]]),
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


COMMANDS = {"colmap": ("one", SCENE), "homographies": ("photos", PHOTOS)}


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
    assert_one_error(run("homographies", places / "photos", "-o", tmp_path), str(tmp_path), "is a folder")


def test_an_input_is_never_overwritten(places):
    photo = places / "photos" / "a.png"
    before = photo.read_bytes()
    assert_one_error(run("homographies", photo, "-o", photo, "--overwrite"), "a.png")
    assert photo.read_bytes() == before


class TestInterrupted:
    """Ctrl-C, in this process."""

    @pytest.mark.parametrize("command", COMMANDS)
    def test_says_where_things_are_and_continues(self, places, scene_file, photo_file, tmp_path, monkeypatch, command):
        module, name = {"colmap": (scenes, "link_views"), "homographies": (homographies, "make_view_pair")}[command]
        whole = {"colmap": scene_file, "homographies": photo_file}[command]
        original, calls = getattr(module, name), []

        def stop_at_fourth(*arguments):
            calls.append(arguments)
            if len(calls) == 4:
                raise KeyboardInterrupt
            return original(*arguments)

        monkeypatch.setattr(module, name, stop_at_fourth)
        path, settings = COMMANDS[command]
        output = tmp_path / "out.h5"
        result = run(command, places / path, "-o", output, *settings)
        assert result.exit_code == 130
        assert result.stderr == f"logpolar: stopped; what was finished is in {output}, the same command continues\n"
        assert result.stdout == ""
        with CorrespondenceFile(output) as file:
            assert (len(file), file.complete) == (3, False)
        shown = run("show", output)
        assert shown.exit_code == 0
        assert "INCOMPLETE" in shown.stdout
        assert run(command, places / path, "-o", output, *settings).exit_code == 0
        assert len(calls) == 4 + 3
        assert_same_content(output, whole)
        assert [each.name for each in tmp_path.iterdir()] == ["out.h5"]

    def test_while_images_are_prepared(self, places, scene_file, tmp_path, monkeypatch):
        original, calls = scenes.prepare_view, []

        def stop_at_third(task):
            calls.append(task)
            if len(calls) == 3:
                raise KeyboardInterrupt
            return original(task)

        monkeypatch.setattr(scenes, "prepare_view", stop_at_third)
        assert run("colmap", places / "one", "-o", tmp_path / "out.h5", *SCENE).exit_code == 130
        with CorrespondenceFile(tmp_path / "out.h5") as file:
            assert [entry.name for entry in file.images] == IMAGES[:2]
        assert run("colmap", places / "one", "-o", tmp_path / "out.h5", *SCENE).exit_code == 0
        assert len(calls) == 3 + 2
        assert_same_content(tmp_path / "out.h5", scene_file)


SLOW = """
import signal, time
from logpolar import hdf5
from logpolar.cli import main
from logpolar.datasets import building, homographies, scenes

flush, in_batches = hdf5._flush, building.in_batches

def flush_slowly(path):
    time.sleep(0.02)
    flush(path)

def one_by_one(items, size, store):
    in_batches(items, 1, store)

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells turn it off for what runs in the background
hdf5._flush = flush_slowly
homographies.in_batches = scenes.in_batches = one_by_one
main()
"""
"""The command line with a transaction for each image and each pair, which takes its time."""


def start(command: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, "dataset", command, *map(str, arguments), "--jobs", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextlib.contextmanager
def started(*arguments: object):
    """A process that takes all its workers with it should the test fail."""
    process = start(*arguments)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def identity(path: Path) -> int | None:
    """Changes whenever the file is replaced."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def wait_for_change(path: Path, before: int | None, process: subprocess.Popen[str]) -> None:
    """Until the file is replaced or the process ends."""
    deadline = time.monotonic() + PATIENCE
    while identity(path) == before and process.poll() is None:
        assert time.monotonic() < deadline, "waited in vain for another process"
        time.sleep(0.002)


@pytest.mark.parametrize("command", COMMANDS)
class TestRealProcesses:
    """With two workers, which hold the pipes too: ``communicate`` returns when the last of them has ended."""

    def test_ctrl_c_is_one_line_and_the_file_continues(self, places, scene_file, photo_file, tmp_path, command):
        path, settings = COMMANDS[command]
        output = tmp_path / "out.h5"
        with started(command, places / path, "-o", output, *settings) as process:
            wait_for_change(output, None, process)
            wait_for_change(output, identity(output), process)  # so there is a worker that made something
            os.killpg(process.pid, signal.SIGINT)  # to all of them, as a terminal sends it
            stdout, stderr = process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
        assert stdout == ""
        assert stderr == f"logpolar: stopped; what was finished is in {output}, the same command continues\n"
        with CorrespondenceFile(output) as file:
            assert not file.complete
        assert run(command, places / path, "-o", output, *settings).exit_code == 0
        assert_same_content(output, {"colmap": scene_file, "homographies": photo_file}[command])
        assert [each.name for each in tmp_path.iterdir()] == ["out.h5"]

    def test_killed_at_any_moment_the_file_is_whole_and_can_be_continued(
        self, places, scene_file, photo_file, tmp_path, command
    ):
        path, settings = COMMANDS[command]
        output, moment = tmp_path / "out.h5", random.Random(7)
        for attempt, additions in enumerate((2, 3, 2)):
            before = identity(output)
            with started(command, places / path, "-o", output, *settings) as process:
                for _ in range(additions):
                    wait_for_change(output, before, process)
                    before = identity(output)
                time.sleep(moment.uniform(0, 0.06))
                process.kill()
                process.communicate(timeout=PATIENCE)
            assert process.returncode == -signal.SIGKILL or attempt > 0, "the first must not end before it is killed"
            with CorrespondenceFile(output) as file:
                for pair in file.pairs():
                    file.read(pair)
        assert run(command, places / path, "-o", output, *settings).exit_code == 0
        assert_same_content(output, {"colmap": scene_file, "homographies": photo_file}[command])
        assert [each.name for each in tmp_path.iterdir()] == ["out.h5"]


def test_a_real_process_has_the_exit_code_and_one_line_of_error(tmp_path):
    program = "from logpolar.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "dataset", "colmap", "nowhere", "-o", "out.h5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "logpolar: error: nowhere: no such folder\n"


class TestShow:
    def test_figures(self, scene_file):
        result = run("show", scene_file)
        assert (result.exit_code, result.stderr) == (0, "")
        lines = [line.split() for line in result.stdout.splitlines()]
        with CorrespondenceFile(scene_file) as file:
            counts, rejects = file.counts(), file.rejects()
        assert lines[0] == [f"{scene_file}:", "colmap"]
        assert ["images", "4"] in lines
        assert ["pairs", "with", "correspondences", str(counts["pairs_with_correspondences"])] in lines
        assert ["correspondences", str(counts["correspondences"])] in lines
        assert ["pairs", "to", "train", "6"] in lines
        assert ["pairs", "to", "test", "0"] in lines
        causes = [line[1:] for line in lines if line[0] == "keypoints:"]
        assert causes == [[*cause.split(), str(count)] for cause, count in rejects.items() if count]
        assert len(causes) > 3
        assert not [line for line in lines if line[-1] == "0" and line[0] in ("keypoints:", "image")]

    def test_how_scales_disagree(self, tmp_path):
        result = run("show", make_file(tmp_path / "f.h5", [1, 1, 3]))
        assert "scales disagree by: 50 %: 1.00x, 90 %: 2.60x, 95 %: 2.80x, 99 %: 2.96x; above 2x: 33.33 %" in (
            result.stdout
        )
        assert "left out: c.png: not an image" in result.stdout

    @pytest.mark.parametrize("finish", [True, False])
    def test_incomplete_files_say_so(self, tmp_path, finish):
        result = run("show", make_file(tmp_path / "f.h5", [1], finish))
        assert result.exit_code == 0
        assert ("INCOMPLETE" in result.stdout) is not finish

    def test_nothing_found(self, tmp_path):
        result = run("show", make_empty(tmp_path / "f.h5"))
        assert (result.exit_code, result.stderr) == (0, "")
        assert "scales disagree by: nothing found" in result.stdout
        assert_one_error(run("show", tmp_path / "f.h5", "-o", tmp_path / "out"), "f.h5", NOTHING_FOUND)
        assert [path.name for path in tmp_path.iterdir()] == ["f.h5"]

    def test_before_anything_was_added(self, tmp_path):
        with CorrespondenceWriter(tmp_path / "f.h5", {"source": "tests"}):
            pass
        result = run("show", tmp_path / "f.h5")
        assert (result.exit_code, result.stderr) == (0, "")
        assert "INCOMPLETE" in result.stdout


class TestPictures:
    def test_of_a_scene(self, scene_file, tmp_path):
        folder = tmp_path / "deep" / "out"
        result = run("show", scene_file, "-o", folder)
        assert (result.exit_code, result.stderr) == (0, "")
        names = ["statistics.png", "pairs.jpg", "patches.png", "depth.png"]
        assert result.stdout.splitlines()[-1] == f"wrote {', '.join(names)} to {folder}"
        assert sorted(path.name for path in folder.iterdir()) == sorted(names)
        for name in names:
            assert cv2.imread(str(folder / name)).std() > 1

    def test_of_photos_there_is_no_depth(self, photo_file, tmp_path):
        assert run("show", photo_file, "-o", tmp_path).exit_code == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.jpg", "patches.png", "statistics.png"]

    def test_of_an_incomplete_file(self, tmp_path):
        result = run("show", make_file(tmp_path / "f.h5", [1], finish=False), "-o", tmp_path / "out")
        assert result.exit_code == 0
        assert (tmp_path / "out" / "pairs.jpg").exists()

    def test_count_part_and_seed(self, photo_file, tmp_path, monkeypatch):
        monkeypatch.setattr(
            plotting, "plot_statistics", lambda *arguments: Figure()
        )  # which takes long, and others test

        def pages(*options):
            assert run("show", photo_file, "-o", tmp_path, *options).exit_code == 0
            return cv2.imread(str(tmp_path / "pairs.jpg"))

        one, two, validation = pages("--count", 1), pages("--count", 2), pages("--part", "validation")
        assert two.shape[1] == validation.shape[1] == 2 * one.shape[1] + 8  # a third would be in a second row
        assert pages("--count", 3).shape[0] > 1.5 * two.shape[0]
        first, again, other = pages(), pages("--seed", 0), pages("--seed", 1)
        np.testing.assert_array_equal(first, again)
        assert first.shape != other.shape or (first != other).any()

    def test_of_a_part_without_pairs(self, scene_file, tmp_path):
        assert_one_error(run("show", scene_file, "-o", tmp_path / "out", "--part", "test"), NOTHING_FOUND)
        assert list(tmp_path.iterdir()) == []

    def test_where_all_scales_disagree_a_little(self, tmp_path):
        """By more than the first class of patches has and less than the second."""
        result = run("show", make_file(tmp_path / "f.h5", [1.3, 1.4]), "-o", tmp_path / "out")
        assert result.exit_code == 0

    def test_folder_that_is_a_file(self, scene_file, tmp_path):
        (tmp_path / "out").write_text("mine")
        assert_one_error(run("show", scene_file, "-o", tmp_path / "out"), str(tmp_path / "out"), "is a file")
        assert_one_error(run("show", scene_file, "-o", tmp_path / "out" / "deep"), str(tmp_path / "out"))
        assert (tmp_path / "out").read_text() == "mine"

    def test_without_matplotlib_the_extra_is_named(self, scene_file, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.delitem(sys.modules, "logpolar.plotting", raising=False)
        assert_one_error(run("show", scene_file, "-o", tmp_path / "out"), "logpolar[viz]")
        assert run("show", scene_file).exit_code == 0
        assert list(tmp_path.iterdir()) == []


class TestBadFiles:
    @pytest.mark.parametrize("content", [None, b"", b"these are words"])
    def test_no_hdf5(self, tmp_path, content):
        if content is not None:
            (tmp_path / "f.h5").write_bytes(content)
        words = "no such file" if content is None else "not an HDF5 file"
        assert_one_error(run("show", tmp_path / "f.h5"), "f.h5", words)

    def test_a_folder(self, tmp_path):
        assert_one_error(run("show", tmp_path), str(tmp_path))

    def test_a_feature_file(self, tmp_path):
        with FeatureWriter(tmp_path / "f.h5", {}):
            pass
        assert_one_error(run("show", tmp_path / "f.h5"), "f.h5", "not a logpolar correspondence file")

    def test_half_a_file(self, scene_file, tmp_path):
        data = scene_file.read_bytes()
        (tmp_path / "f.h5").write_bytes(data[: len(data) // 2])
        assert_one_error(run("show", tmp_path / "f.h5"), "f.h5", "damaged")

    @pytest.mark.parametrize(
        "missing",
        [
            "pairs",
            "correspondences",
            "keypoints",
            "pairs/rejects",
        ],
    )
    def test_a_file_without_one_of_its_tables(self, scene_file, tmp_path, missing):
        shutil.copy(scene_file, tmp_path / "f.h5")
        with h5py.File(tmp_path / "f.h5", "a") as file:
            del file[missing]
        assert_one_error(run("show", tmp_path / "f.h5"), "f.h5", "damaged")

    def test_an_image_that_was_damaged(self, tmp_path):
        path = make_file(tmp_path / "f.h5", [1])
        data = path.read_bytes()
        path.write_bytes(data.replace(b"IDAT", b"XDAT"))
        result = run("show", path, "-o", tmp_path / "out")
        assert_one_error(result, "f.h5", "damaged")

    def test_an_image_that_is_gone(self, tmp_path):
        point = Keypoints.from_points([[5, 5]])
        images = [ImageRecord(name, "train", (64, 64), point, path=f"{name}.png") for name in "ab"]
        one = np.zeros(1, np.float32)
        found = Correspondences(point, point, np.zeros((1, 2), np.int32), np.eye(2, dtype=np.float32)[None], one, one)
        with CorrespondenceWriter(tmp_path / "f.h5", {}) as writer:
            writer.add(images, [PairRecord("a", "b", found, {})])
        assert_one_error(run("show", tmp_path / "f.h5", "-o", tmp_path / "out"), "a.png", "no such file")
