from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import cv2  # before pycolmap, whose zlib breaks OpenCV's PNG writer otherwise
import numpy as np
import pycolmap
import pytest
from click.testing import CliRunner

import logpolar.sfm.dense
from helpers import assert_one_error
from logpolar.cli import main
from logpolar.cli.dataset import dataset
from logpolar.cli.dataset_reconstruct import reconstruct
from logpolar.sfm.dense import DenseOptions, DenseReport
from synthetic_world import make_texture, standard_world, write_depth

if "reconstruct" not in dataset.commands:
    dataset.add_command(reconstruct)

VIEWS = 6


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Six views of one place."""
    folder = tmp_path_factory.mktemp("photos")
    for index, (image, _) in enumerate(standard_world(cameras=VIEWS).views):
        cv2.imwrite(str(folder / f"view{index}.png"), image)
    return folder


def run(*arguments: object):
    return CliRunner().invoke(main, ["dataset", "reconstruct", *map(str, arguments)])


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def mixed(photos, tmp_path_factory):
    """A run on the six views, a photo of something else, and half a photo; and the workspace."""
    place = tmp_path_factory.mktemp("mixed")
    folder = Path(shutil.copytree(photos, place / "my photos"))
    cv2.imwrite(str(folder / "elsewhere.png"), make_texture(np.random.default_rng(9), 320, 240))
    jpeg = cv2.imencode(".jpg", cv2.imread(str(folder / "view0.png")))[1].tobytes()
    (folder / "cut.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    return run(folder, place / "work space"), place / "work space", folder


class TestResult:
    def test_steps_and_figures_are_plain_lines(self, mixed):
        result, workspace, _ = mixed
        lines = result.stdout.splitlines()
        assert [line.split(": ")[1] for line in lines[:5]] == [
            *("photos", "features", "matches", "mapping", "undistortion")
        ]
        assert "1 of 8 photos cannot be read" in lines
        assert any(line.startswith(f"{workspace}: 6 of 7 photos registered, ") for line in lines)
        assert "not registered: elsewhere.png" in lines

    def test_what_cannot_be_read_is_told_on_stderr_and_by_the_exit_code(self, mixed):
        result, _, folder = mixed
        assert result.stderr == f"logpolar: left out: {folder / 'cut.jpg'}: not an image, or a damaged one\n"
        assert result.exit_code == 1

    def test_without_cuda_it_says_what_is_missing_and_how_to_go_on(self, mixed):
        result, workspace, _ = mixed
        assert "NO DEPTH MAPS: 0 of 6" in result.stdout
        assert (
            f"colmap patch_match_stereo --workspace_path '{workspace}' --workspace_format COLMAP "
            "--PatchMatchStereo.geom_consistency true" in result.stdout
        )
        assert "pip install pycolmap-cuda12" in result.stdout
        assert f"logpolar dataset colmap '{workspace}' -o 'work space.h5'" in result.stdout

    def test_the_workspace_is_read_by_dataset_colmap_once_there_are_depth_maps(self, mixed, tmp_path):
        _, workspace, folder = mixed
        for image in pycolmap.Reconstruction(str(workspace / "sparse")).images.values():
            depth = np.ones((image.camera.height, image.camera.width))
            write_depth(workspace / "stereo" / "depth_maps" / f"{image.name}.geometric.bin", depth)
        result = run(folder, workspace)
        assert f"6 depth maps; next: logpolar dataset colmap '{workspace}'" in result.stdout
        assert "NO DEPTH" not in result.stdout
        built = CliRunner().invoke(
            main, ["dataset", "colmap", str(workspace), "-o", str(tmp_path / "out.h5"), "--jobs", "1"]
        )
        assert "6 images" in built.stdout
        assert_one_error(built, "out.h5", "no correspondences found")  # the same depth everywhere is no surface


class TestOptions:
    @pytest.fixture
    def given(self, monkeypatch):
        """Arguments of the library's function, which is not run."""
        arguments = []

        def note(photos, workspace, options, overwrite, **rest):
            arguments.append((photos, workspace, options, overwrite))
            return DenseReport(2, {}, 2, [], 1, 100, 2, True)

        monkeypatch.setattr(logpolar.sfm.dense, "reconstruct_dense", note)
        return arguments

    def test_defaults_are_those_of_the_library(self, given):
        assert run("a.jpg", "b.jpg", "there").exit_code == 0
        assert given == [(("a.jpg", "b.jpg"), Path("there"), DenseOptions(), False)]

    def test_all_reach_the_library(self, given):
        sizes = ("--max-image-size", 800, "--dense-image-size", 500)
        rest = ("--matcher", "sequential", "--single-camera", "--seed", 3, "--threads", 2, "--overwrite")
        assert run("a", "there", *sizes, *rest).exit_code == 0
        assert asdict(given[0][2]) == {
            "max_image_size": 800,
            "dense_image_size": 500,
            "matcher": "sequential",
            "single_camera": True,
            "seed": 3,
            "threads": 2,
        }
        assert given[0][3] is True

    def test_exit_code_is_0_when_every_photo_was_read(self, given):
        result = run("a", "there")
        assert (result.exit_code, result.stderr) == (0, "")
        assert "there: 2 of 2 photos registered, 100 points" in result.stdout


class TestStopping:
    def test_ctrl_c_is_one_line_and_the_same_command_continues(self, photos, tmp_path, monkeypatch):
        workspace = tmp_path / "workspace"
        monkeypatch.setattr(pycolmap, "match_exhaustive", interrupt)
        result = run(photos, workspace)
        assert result.exit_code == 130
        assert len(result.stderr.splitlines()) == 1
        assert "rerun the command to resume" in result.stderr
        monkeypatch.setattr(pycolmap, "extract_features", lambda *args, **kwargs: pytest.fail("was finished"))
        result = run(photos, workspace)
        assert result.exit_code == 130
        assert result.stdout.splitlines() == ["continuing after step 2 of 6: features", "step 3 of 6: matches"]

    def test_reason_of_colmap_is_in_the_one_line(self, photos, tmp_path, monkeypatch):
        def fail(*args, **kwargs):
            pycolmap.logging.error("it was too dark")
            raise RuntimeError("[pipeline.cc:123] Check failed: light > 0 \n  many\n  lines")

        monkeypatch.setattr(pycolmap, "extract_features", fail)
        result = run(photos, tmp_path / "workspace")
        assert_one_error(result, "features", "Check failed: light > 0; it was too dark", "colmap.log")
        assert "pipeline.cc" not in result.stderr


class TestBadInput:
    def test_no_photos(self, tmp_path):
        (tmp_path / "empty").mkdir()
        assert_one_error(run(tmp_path / "empty", tmp_path / "workspace"), "empty", "no images")
        assert not (tmp_path / "workspace").exists()

    def test_no_such_photo(self, tmp_path):
        assert_one_error(run(tmp_path / "none.jpg", tmp_path / "workspace"), "none.jpg", "no such file")

    def test_one_photo(self, photos, tmp_path):
        assert_one_error(run(photos / "view0.png", tmp_path / "workspace"), "view0.png", "at least two photos")
        assert not (tmp_path / "workspace").exists()

    @pytest.mark.parametrize("readable", [0, 1])
    def test_too_few_readable_photos(self, photos, tmp_path, readable):
        (tmp_path / "text.jpg").write_text("no photo")
        (tmp_path / "empty.png").write_text("")
        sources = [tmp_path / "*.*", *[photos / "view0.png"][:readable]]
        words = (f"only {readable} of {readable + 2} photos", "empty.png")
        assert_one_error(run(*sources, tmp_path / "workspace"), *words)

    def test_photos_without_overlap(self, tmp_path):
        random = np.random.default_rng(0)
        for name in ("a.png", "b.png"):
            cv2.imwrite(str(tmp_path / name), make_texture(random, 160, 120))
        assert_one_error(run(tmp_path / "*.png", tmp_path / "workspace"), "reconstruction failed", "2 photos")

    def test_workspace_is_a_file(self, photos, tmp_path):
        (tmp_path / "workspace").write_text("precious")
        assert_one_error(run(photos, tmp_path / "workspace", "--overwrite"), "workspace", "is a file")
        assert (tmp_path / "workspace").read_text() == "precious"

    @pytest.mark.parametrize("options", [(), ("--overwrite",)])
    @pytest.mark.parametrize("name", ["images/view0.png", "reconstruction.json", "notes.txt"])
    def test_workspace_of_somebody_else_is_left_alone(self, photos, tmp_path, options, name):
        path = tmp_path / "workspace" / name
        path.parent.mkdir(parents=True)
        path.write_text("precious")
        assert_one_error(run(photos, tmp_path / "workspace", *options), "workspace", "choose another")
        assert path.read_text() == "precious"

    def test_workspace_in_a_folder_that_does_not_exist(self, photos, tmp_path):
        assert_one_error(run(photos, tmp_path / "none" / "workspace"), "none", "does not exist")

    @pytest.mark.parametrize("below", ["", "workspace", "deep/workspace"])
    def test_workspace_inside_the_photos(self, photos, below):
        before = sorted(photos.rglob("*"))
        assert_one_error(run(photos, photos / below), "inside the photos' folder", str(photos))
        assert sorted(photos.rglob("*")) == before

    def test_photos_inside_the_workspace(self, photos, tmp_path):
        shutil.copytree(photos, tmp_path / "workspace" / "images")
        result = run(tmp_path / "workspace" / "images", tmp_path / "workspace")
        assert_one_error(result, "inside the workspace")

    def test_other_settings(self, photos, tmp_path, monkeypatch):
        monkeypatch.setattr(pycolmap, "extract_features", interrupt)
        assert run(photos, tmp_path / "workspace").exit_code == 130
        result = run(photos, tmp_path / "workspace", "--matcher", "sequential")
        assert_one_error(result, "matcher = exhaustive, not sequential", "overwrite")

    def test_missing_pycolmap_names_the_extra_and_leaves_nothing_behind(self, photos, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "pycolmap", None)
        assert_one_error(run(photos, tmp_path / "workspace"), "logpolar[sfm]")
        assert not (tmp_path / "workspace").exists()

    def test_old_pycolmap(self, photos, tmp_path, monkeypatch):
        monkeypatch.setattr(pycolmap, "__version__", "3.13.0")
        assert_one_error(run(photos, tmp_path / "workspace"), "needs pycolmap 4 or newer, not 3.13.0")
        assert not (tmp_path / "workspace").exists()
