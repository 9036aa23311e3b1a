"""Real runs of pycolmap on an exact world. CUDA, which this cannot have, is a stand-in that writes depth maps."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import cv2  # before pycolmap, whose zlib breaks OpenCV's PNG writer otherwise
import numpy as np
import pycolmap
import pytest

from logpolar.errors import StorageError
from logpolar.sfm.dense import DenseOptions, ReconstructionError, reconstruct_dense
from logpolar.sfm.workspace import read_workspace
from synthetic_world import standard_world, write_depth

VIEWS = 6
STEPS = ("import_images", "extract_features", "match_exhaustive", "incremental_mapping", "undistort_images")
NAMES = ("photos", "features", "matches", "mapping", "undistortion")


def write_views(world, folder: Path) -> Path:
    folder.mkdir()
    for index, (image, _) in enumerate(world.views):
        cv2.imwrite(str(folder / f"view{index}.png"), image)
    return folder


@pytest.fixture(scope="module")
def world():
    return standard_world(cameras=VIEWS)


@pytest.fixture(scope="module")
def photos(world, tmp_path_factory):
    return write_views(world, tmp_path_factory.mktemp("world") / "photos")


@pytest.fixture(scope="module")
def finished(photos, tmp_path_factory):
    """A finished run: the workspace and the report."""
    workspace = tmp_path_factory.mktemp("finished") / "workspace"
    return workspace, reconstruct_dense([photos], workspace)


@pytest.fixture
def copy(finished, tmp_path):
    return Path(shutil.copytree(finished[0], tmp_path / "workspace", symlinks=True))


@pytest.fixture
def calls(monkeypatch):
    """Names of pycolmap's functions in the order in which they are called."""
    called = []

    def counting(name, real):
        return lambda *args, **kwargs: (called.append(name), real(*args, **kwargs))[1]

    for name in STEPS:
        monkeypatch.setattr(pycolmap, name, counting(name, getattr(pycolmap, name)))
    return called


@pytest.fixture
def stereo(monkeypatch):
    """A stand-in for CUDA: its depth maps are 1 everywhere. Notes what it is asked for and what it found."""
    asked = []

    def patch_match_stereo(workspace_path, workspace_format="COLMAP", *, options):
        folder = Path(workspace_path) / "stereo" / "depth_maps"
        asked.append((workspace_path, workspace_format, options, sorted(path.name for path in folder.iterdir())))
        for image in pycolmap.Reconstruction(f"{workspace_path}/sparse").images.values():
            for kind in ("photometric", "geometric"):
                write_depth(folder / f"{image.name}.{kind}.bin", np.ones((image.camera.height, image.camera.width)))

    monkeypatch.setattr(pycolmap, "has_cuda", True)
    monkeypatch.setattr(pycolmap, "patch_match_stereo", patch_match_stereo)
    return asked


def failing(*args, **kwargs):
    raise RuntimeError("[some_file.cc:12] Check failed: the disk is full\nstack trace")


def record_of(workspace: Path) -> dict:
    return json.loads((workspace / "reconstruction.json").read_text())


def forget(workspace: Path, *steps: str, **settings) -> None:
    """As if the steps had not been run, and with other settings."""
    record = record_of(workspace)
    record["settings"] |= settings
    record["finished"] = {name: noted for name, noted in record["finished"].items() if name not in steps}
    (workspace / "reconstruction.json").write_text(json.dumps(record))


def angle_degrees(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.degrees(np.arccos(np.clip((np.trace(first @ second.T) - 1) / 2, -1, 1))))


def align(points: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """``points`` after the similarity that brings them closest to the truth (Umeyama)."""
    centred, target = points - points.mean(axis=0), truth - truth.mean(axis=0)
    left, strength, right = np.linalg.svd(centred.T @ target)
    sign = np.array([1, 1, np.linalg.det(left @ right)])
    scale = (strength * sign).sum() / (centred**2).sum()
    return scale * centred @ (left * sign) @ right + truth.mean(axis=0)


class TestResult:
    def test_every_photo_is_registered(self, finished):
        _, report = finished
        assert (report.photos, report.registered, report.unregistered, report.left_out) == (VIEWS, VIEWS, [], {})
        assert report.models == 1
        assert report.points > 700

    def test_poses_are_those_of_the_world_up_to_a_similarity(self, finished, world):
        images = pycolmap.Reconstruction(str(finished[0] / "sparse")).images.values()
        found = {int(image.name[4]): np.array(image.cam_from_world().matrix()) for image in images}
        assert len(found) == VIEWS
        for i, first in found.items():
            for j, second in found.items():
                truth = world.cameras[i].rotation @ world.cameras[j].rotation.T
                assert angle_degrees(first[:, :3] @ second[:, :3].T, truth) < 0.15
        centres = np.stack([-pose[:, :3].T @ pose[:, 3] for pose in found.values()])
        truth = np.stack([-world.cameras[i].rotation.T @ world.cameras[i].translation for i in found])
        assert np.linalg.norm(align(centres, truth) - truth, axis=1).max() < 0.02, "of a path of 5 units"

    def test_cameras_are_undistorted_pinholes_of_the_right_focal_length(self, finished, world):
        for image in pycolmap.Reconstruction(str(finished[0] / "sparse")).images.values():
            assert image.camera.model.name == "PINHOLE"
            pixels = cv2.imread(str(finished[0] / "images" / image.name))
            assert pixels.shape[:2] == (image.camera.height, image.camera.width)
            focal = image.camera.calibration_matrix()[0, 0]
            assert focal == pytest.approx(world.cameras[int(image.name[4])].focal, rel=0.01)

    def test_layout_is_a_dense_workspace_with_the_files_of_the_run(self, finished, photos):
        names = {path.name for path in finished[0].iterdir()}
        assert names - {"run-colmap-geometric.sh", "run-colmap-photometric.sh"} == {
            *("images", "sparse", "stereo", "mapping", "database.db", "reconstruction.json", "colmap.log")
        }
        assert {path.name for path in photos.iterdir()} == {f"view{index}.png" for index in range(VIEWS)}

    def test_colmap_writes_to_its_log_only(self, photos, tmp_path, capfd, monkeypatch):
        two = tmp_path / "two"
        two.mkdir()
        for name in ("view0.png", "view1.png"):
            shutil.copy(photos / name, two)
        monkeypatch.setattr(pycolmap, "match_exhaustive", failing)
        with pytest.raises(ReconstructionError):
            reconstruct_dense([two], tmp_path / "workspace")
        assert capfd.readouterr() == ("", "")
        assert "Feature extraction" in (tmp_path / "workspace" / "colmap.log").read_text()

    def test_dense_image_size(self, copy, photos):
        forget(copy, "undistortion", dense_image_size=200)
        reconstruct_dense([photos], copy, DenseOptions(dense_image_size=200))
        assert max(cv2.imread(str(copy / "images" / "view0.png")).shape) == 200

    def test_the_largest_of_several_models_is_taken(self, copy, photos, monkeypatch):
        def map_in_two_parts(database, folder, output, *args, **kwargs):
            parts = {0: pycolmap.Reconstruction(), 1: pycolmap.Reconstruction(str(whole)), 2: pycolmap.Reconstruction()}
            for number, part in parts.items():
                (Path(output) / str(number)).mkdir()
                part.write(str(Path(output) / str(number)))
            return parts

        forget(copy, "undistortion", "mapping")
        whole = (copy / "mapping" / "0").rename(copy / "whole")
        monkeypatch.setattr(pycolmap, "incremental_mapping", map_in_two_parts)
        report = reconstruct_dense([photos], copy)
        assert (report.models, report.registered) == (3, VIEWS)
        assert pycolmap.Reconstruction(str(copy / "sparse")).num_reg_images() == VIEWS


class TestDepth:
    def test_without_cuda_there_is_none_and_the_report_says_so(self, finished):
        assert (finished[1].dense, finished[1].depth_maps) == (False, 0)

    def test_patch_match_is_asked_for_geometric_consistency_and_the_result_can_be_read(self, copy, photos, stereo):
        report = reconstruct_dense([photos], copy)
        assert (report.dense, report.depth_maps) == (True, VIEWS)
        ((place, layout, options, _),) = stereo
        assert (Path(place), layout) == (copy, "COLMAP")
        assert isinstance(options, pycolmap.PatchMatchOptions)
        assert options.geom_consistency
        assert [view.name for view in read_workspace(copy).views] == [f"view{index}.png" for index in range(VIEWS)]
        assert reconstruct_dense([photos], copy).dense
        assert len(stereo) == 1, "a second run has nothing to do"

    def test_maps_that_a_killed_run_was_writing_are_made_again(self, copy, photos, stereo):
        folder = copy / "stereo" / "depth_maps"
        for index in range(3):
            write_depth(folder / f"view{index}.png.photometric.bin", np.ones((4, 5)))
        whole = (folder / "view0.png.photometric.bin").read_bytes()
        (folder / "view1.png.photometric.bin").write_bytes(whole[:-4])
        (folder / "view2.png.photometric.bin").write_bytes(b"5&")
        reconstruct_dense([photos], copy)
        assert stereo[0][3] == ["view0.png.photometric.bin"]

    def test_no_maps_at_all_is_an_error(self, copy, photos, stereo, monkeypatch):
        monkeypatch.setattr(pycolmap, "patch_match_stereo", lambda *args, **kwargs: None)
        with pytest.raises(ReconstructionError, match="no depth maps"):
            reconstruct_dense([photos], copy)
        assert "depth maps" not in record_of(copy)["finished"]

    def test_cuda_without_a_device_is_no_cuda(self, copy, photos, stereo, monkeypatch):
        monkeypatch.setattr(pycolmap, "get_num_cuda_devices", lambda: 0, raising=False)
        assert not reconstruct_dense([photos], copy).dense
        assert stereo == []

    def test_maps_that_colmap_made_elsewhere_count(self, copy, photos):
        for index in range(VIEWS):
            write_depth(copy / "stereo" / "depth_maps" / f"view{index}.png.geometric.bin", np.ones((4, 5)))
        assert reconstruct_dense([photos], copy).dense


class TestResuming:
    def test_after_a_failure_in_each_step_only_what_is_unfinished_runs_and_the_result_is_whole(
        self, photos, tmp_path, calls, monkeypatch
    ):
        workspace, real = tmp_path / "workspace", {name: getattr(pycolmap, name) for name in STEPS}

        def half_features(database, folder, names, **kwargs):
            real["extract_features"](database, folder, names[:3], **kwargs)
            failing()

        def half_matches(database, *args, **kwargs):
            pycolmap.match_sequential(database, pairing_options=pycolmap.SequentialPairingOptions(overlap=1))
            failing()

        def half_model(database, folder, output, *args, **kwargs):
            (Path(output) / "7").mkdir()
            (Path(output) / "7" / "cameras.bin").write_bytes(b"half")
            failing()

        def half_images(output, *args, **kwargs):
            real["undistort_images"](output, *args, **kwargs)
            (Path(output) / "images" / "view0.png").write_bytes(b"half")
            failing()

        halves = (failing, half_features, half_matches, half_model, half_images)
        for number, (step, half) in enumerate(zip(STEPS, halves, strict=True)):
            calls.clear()
            with monkeypatch.context() as patch:
                patch.setattr(pycolmap, step, half)
                with pytest.raises(ReconstructionError, match="the disk is full"):
                    reconstruct_dense([photos], workspace)
            assert list(record_of(workspace)["finished"]) == list(NAMES[:number])
            expected = [] if number == 0 else [STEPS[number - 1]]  # what failed in the run before
            assert [name for name in calls if name != step] == expected
            assert not (workspace / "sparse").exists()
        calls.clear()
        report = reconstruct_dense([photos], workspace)
        assert calls == ["undistort_images"]
        assert report.registered == 6
        assert cv2.imread(str(workspace / "images" / "view0.png")) is not None
        assert not (workspace / "unfinished").exists()
        assert [path.name for path in (workspace / "mapping").iterdir()] == ["0"]
        database = pycolmap.Database.open(str(workspace / "database.db"))
        assert (database.num_cameras(), database.num_images(), database.num_matched_image_pairs()) == (6, 6, 15)
        database.close()

    def test_a_finished_run_does_nothing_but_report(self, copy, photos, calls, finished):
        assert reconstruct_dense([photos], copy) == finished[1]
        assert calls == []

    def test_killed_in_the_middle_of_a_step(self, photos, tmp_path):
        code = "import sys; from logpolar.sfm.dense import reconstruct_dense as r; r(sys.argv[1:2], 'w', say=print)"
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", code, photos], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        assert any(line.startswith("step 2") for line in process.stdout)
        process.kill()
        process.communicate()
        assert list(record_of(tmp_path / "w")["finished"]) == ["photos"]
        assert reconstruct_dense([photos], tmp_path / "w").registered == 6

    def test_what_was_deleted_is_made_again(self, copy, photos, calls):
        for name in ("sparse", "database.db"):
            target = copy / name
            shutil.rmtree(target) if target.is_dir() else target.unlink()
        assert reconstruct_dense([photos], copy).registered == VIEWS
        assert calls == ["undistort_images"], "mapping is there, so the database is not needed"
        assert (copy / "sparse" / "images.bin").is_file()

    def test_other_settings_are_refused_by_name_and_other_threads_are_not(self, copy, photos, calls):
        with pytest.raises(StorageError, match="max_image_size = 1600, not 800"):
            reconstruct_dense([photos], copy, DenseOptions(max_image_size=800))
        reconstruct_dense([photos], copy, DenseOptions(threads=1))
        assert calls == []

    def test_other_photos_are_refused_by_name(self, copy, photos, tmp_path):
        others = Path(shutil.copytree(photos, tmp_path / "others"))
        (others / "view1.png").rename(others / "new.png")
        with (others / "view2.png").open("ab") as file:
            file.write(b"more")
        with pytest.raises(StorageError, match=r"1 new \(new.png\), 1 gone \(view1.png\), 1 changed \(view2.png\)"):
            reconstruct_dense([others], copy)

    def test_the_photos_folder_may_move(self, copy, photos, tmp_path, calls):
        others = shutil.copytree(photos, tmp_path / "others")
        assert reconstruct_dense([others], copy).registered == VIEWS
        assert calls == []

    def test_before_the_first_step_is_finished_anything_may_change(self, photos, tmp_path, monkeypatch):
        monkeypatch.setattr(pycolmap, "import_images", failing)
        for options in (DenseOptions(), DenseOptions(seed=1)):
            with pytest.raises(ReconstructionError, match="the disk is full"):
                reconstruct_dense([photos], tmp_path / "workspace", options)

    def test_overwrite_removes_what_the_command_made_and_nothing_else(self, copy, photos, calls, monkeypatch):
        (copy / "notes.txt").write_text("precious")
        (copy / "photos").mkdir()
        (copy / "photos" / "view0.png").write_text("not a link of ours")
        monkeypatch.setattr(pycolmap, "import_images", failing)
        with pytest.raises(ReconstructionError, match="the disk is full"):
            reconstruct_dense([photos], copy, DenseOptions(seed=1), overwrite=True)
        assert {path.name for path in copy.iterdir()} - {"database.db"} == {
            *("notes.txt", "photos", "reconstruction.json", "colmap.log")
        }
        assert (copy / "photos" / "view0.png").read_text() == "not a link of ours"
        assert record_of(copy)["settings"]["seed"] == 1


class TestPhotos:
    @pytest.fixture(autouse=True)
    def only_the_first_step(self, monkeypatch):
        monkeypatch.setattr(pycolmap, "extract_features", failing)

    def database_after(self, photos, workspace, **options):
        with pytest.raises(ReconstructionError, match="failed to create the features: Check failed: the disk is full"):
            reconstruct_dense(photos, workspace, DenseOptions(**options))
        return pycolmap.Database.open(str(workspace / "database.db"))

    def test_files_and_folders_together_are_linked_into_one_folder(self, photos, tmp_path):
        (tmp_path / "more" / "deep").mkdir(parents=True)
        shutil.copy(photos / "view1.png", tmp_path / "more" / "deep" / "other.png")
        sources = [photos / "view0.png", tmp_path / "more", f"{photos}/view[23].png"]
        database = self.database_after(sources, tmp_path / "workspace")
        names = sorted(image.name for image in database.read_all_images())
        assert names == ["deep/other.png", "view0.png", "view2.png", "view3.png"]
        assert (tmp_path / "workspace" / "photos" / "view0.png").samefile(photos / "view0.png")
        with pytest.raises(ReconstructionError):
            reconstruct_dense(sources, tmp_path / "workspace", overwrite=True)
        assert (photos / "view0.png").stat().st_size > 1000, "overwriting removes links, not photos"

    @pytest.mark.parametrize(("single", "cameras"), [(True, 1), (False, 6)])
    def test_cameras_are_shared_if_asked_for(self, photos, tmp_path, single, cameras):
        assert self.database_after([photos], tmp_path / "workspace", single_camera=single).num_cameras() == cameras

    def test_single_camera_of_two_sizes_is_refused(self, photos, tmp_path):
        cv2.imwrite(str(tmp_path / "small.png"), np.zeros((30, 40), np.uint8))
        with pytest.raises(ReconstructionError, match=r"small.png 40 x 30"):
            reconstruct_dense([photos, tmp_path / "small.png"], tmp_path / "w", DenseOptions(single_camera=True))

    def test_what_cannot_be_read_is_left_out_with_the_reason(self, photos, tmp_path):
        photos = Path(shutil.copytree(photos, tmp_path / "photos"))
        image = cv2.imread(str(photos / "view0.png"))
        cv2.imwrite(str(photos / "only_opencv.webp"), image)
        jpeg = cv2.imencode(".jpg", image)[1].tobytes()
        (photos / "cut.jpg").write_bytes(jpeg[: len(jpeg) // 2])
        assert self.database_after([photos], tmp_path / "workspace").num_images() == 6
        left_out = record_of(tmp_path / "workspace")["finished"]["photos"]["left_out"]
        assert list(left_out) == ["cut.jpg", "only_opencv.webp"]
        assert "damaged" in left_out["cut.jpg"]
        assert "COLMAP cannot read it (BITMAP_ERROR" in left_out["only_opencv.webp"]


def test_sequential_matching(copy, photos, monkeypatch):
    forget(copy, "matches", "mapping", "undistortion", matcher="sequential")
    database = pycolmap.Database.open(str(copy / "database.db"))
    database.clear_matches()
    database.clear_two_view_geometries()
    assert database.num_matched_image_pairs() == 0
    database.close()
    monkeypatch.setattr(pycolmap, "match_exhaustive", failing)
    monkeypatch.setattr(pycolmap, "incremental_mapping", failing)
    with pytest.raises(ReconstructionError, match="failed to create the model"):
        reconstruct_dense([photos], copy, DenseOptions(matcher="sequential"))
    database = pycolmap.Database.open(str(copy / "database.db"))
    assert database.num_matched_image_pairs() >= 5, "neighbours by name"


@pytest.mark.parametrize(
    "options", [{"matcher": "best"}, {"max_image_size": 10}, {"dense_image_size": 0}, {"seed": -1}, {"threads": -1}]
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must be"):
        DenseOptions(**options)
