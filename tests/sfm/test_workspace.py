from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from logpolar.errors import LogpolarError, MissingExtraError, StorageError
from logpolar.sfm.workspace import Scene, read_workspace
from synthetic_world import (
    SparsePoints,
    World,
    standard_world,
    text_to_binary,
    write_depth,
    write_sparse,
    write_workspace,
)

NAMES = ["view0.png", "view1.png", "view2.png"]


@pytest.fixture(scope="module")
def world() -> World:
    return standard_world(cameras=3, width=96, height=72)


@pytest.fixture(scope="module")
def truth(world, tmp_path_factory) -> tuple[Path, SparsePoints]:
    """A workspace as COLMAP 3.x writes it, and the points of its sparse model."""
    folder = tmp_path_factory.mktemp("text") / "scene"
    return folder, write_workspace(world, folder)


@pytest.fixture(scope="module")
def binary(world, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("binary") / "scene"
    write_workspace(world, folder, binary=True)
    return folder


@pytest.fixture
def folder(truth, tmp_path) -> Path:
    """A copy of the workspace to be damaged."""
    return Path(shutil.copytree(truth[0], tmp_path / "scene"))


def depth_path(folder: Path, name: str, kind: str = "photometric") -> Path:
    return folder / "stereo" / "depth_maps" / f"{name}.{kind}.bin"


def set_camera(folder: Path, view: int, *values: object) -> None:
    """Replace what the text model says of the camera of a view, whose numbers run backwards: 3, 2, 1."""
    path = folder / "sparse" / "cameras.txt"
    lines = path.read_text().splitlines()
    lines[1 + view] = " ".join(map(str, (3 - view, *values)))
    path.write_text("\n".join(lines) + "\n")


def set_pose(folder: Path, view: int, column: int, value: str) -> None:
    """Replace one word of the line of an image: number, translation, camera, name."""
    path = folder / "sparse" / "images.txt"
    lines = path.read_text().splitlines()
    words = lines[1 + 2 * view].split()
    words[column] = value
    lines[1 + 2 * view] = " ".join(words)
    path.write_text("\n".join(lines) + "\n")


def assert_same(one: Scene, other: Scene) -> None:
    assert one.left_out == other.left_out
    np.testing.assert_allclose(one.points, other.points, rtol=1e-12)
    for a, b in zip(one.views, other.views, strict=True):
        assert a.name == b.name
        assert (a.camera.width, a.camera.height) == (b.camera.width, b.camera.height)
        for name in ("matrix", "rotation", "translation"):
            np.testing.assert_allclose(getattr(a.camera, name), getattr(b.camera, name), rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(a.points, b.points)
        np.testing.assert_allclose(a.xy, b.xy, rtol=1e-12)


def assert_left_out(folder: Path, name: str, *words: str) -> None:
    """That image is left out for a reason with these words, all others are there."""
    scene = read_workspace(folder)
    assert [view.name for view in scene.views] == [other for other in NAMES if other != name]
    assert list(scene.left_out) == [name]
    reason = scene.left_out[name]
    assert all(word in reason for word in (name, *words)), reason


class TestContent:
    def test_pixels_are_counted_from_the_centre_of_the_first(self, world, truth):
        """COLMAP's corner origin in the files, ours in the scene: all is as the synthetic world has it."""
        folder, points = truth
        scene = read_workspace(folder)
        assert [view.name for view in scene.views] == NAMES
        np.testing.assert_allclose(scene.points, points.xyz, rtol=1e-12)
        for number, (view, camera) in enumerate(zip(scene.views, world.cameras, strict=True)):
            assert (view.camera.width, view.camera.height) == (96, 72)
            np.testing.assert_allclose(view.camera.matrix, camera.intrinsics, rtol=1e-12)
            np.testing.assert_allclose(view.camera.rotation, camera.rotation, atol=1e-9)
            np.testing.assert_allclose(view.camera.translation, camera.translation, rtol=1e-12)
            seen = np.flatnonzero(points.seen[:, number])
            np.testing.assert_array_equal(view.points, seen)
            np.testing.assert_allclose(view.xy, points.xy[seen, number], rtol=1e-9)

    def test_cameras_see_the_points_where_the_images_show_them(self, truth):
        scene = read_workspace(truth[0])
        for view in scene.views:
            assert len(view.points) > 100
            np.testing.assert_allclose(view.camera.see(scene.points[view.points])[0], view.xy, atol=1e-6)

    def test_paths(self, truth):
        folder = truth[0]
        for view in read_workspace(folder).views:
            assert view.image == folder / "images" / view.name
            assert view.depth == depth_path(folder, view.name)
            assert view.image.is_file()
            assert view.depth.is_file()

    def test_nothing_is_left_out(self, truth):
        assert read_workspace(truth[0]).left_out == {}

    def test_the_folder_may_be_a_string(self, truth):
        assert_same(read_workspace(str(truth[0])), read_workspace(truth[0]))

    def test_images_in_folders(self, world, tmp_path):
        names = ["left/0001.png", "left/0002.png", "right/0001.png"]
        write_workspace(world, tmp_path, image_names=names)
        scene = read_workspace(tmp_path)
        assert [view.name for view in scene.views] == names
        assert scene.views[2].depth == depth_path(tmp_path, "right/0001.png")

    def test_views_are_sorted_by_name(self, world, tmp_path):
        """And keep their own cameras."""
        write_workspace(world, tmp_path, image_names=["c.png", "a.png", "b.png"])
        scene = read_workspace(tmp_path)
        assert [view.name for view in scene.views] == ["a.png", "b.png", "c.png"]
        for view, camera in zip(scene.views, (world.cameras[1], world.cameras[2], world.cameras[0]), strict=True):
            np.testing.assert_allclose(view.camera.translation, camera.translation, rtol=1e-12)

    def test_a_point_that_an_image_has_twice_counts_once(self, folder):
        """COLMAP may merge tracks so that one point has two features in an image."""
        images, tracks = folder / "sparse" / "images.txt", folder / "sparse" / "points3D.txt"
        before = read_workspace(folder)
        lines = images.read_text().splitlines()
        features = lines[2].split()
        number = int(features[3 * 3 + 2])  # the first feature after three that belong to no point
        lines[2] += f" 1.25 2.25 {number}"
        images.write_text("\n".join(lines) + "\n")
        rows = tracks.read_text().splitlines()
        rows[number] += f" 1 {len(features) // 3}"
        tracks.write_text("\n".join(rows) + "\n")
        assert_same(read_workspace(folder), before)

    def test_a_model_without_points(self, folder):
        (folder / "sparse" / "points3D.txt").write_text("")
        images = folder / "sparse" / "images.txt"
        lines = images.read_text().splitlines()
        images.write_text("\n".join([lines[0]] + [text for pose in lines[1::2] for text in (pose, "")]) + "\n")
        scene = read_workspace(folder)
        assert scene.points.shape == (0, 3)
        assert all(view.points.shape == (0,) and view.xy.shape == (0, 2) for view in scene.views)


class TestForms:
    def test_binary_models_with_rigs_and_frames_say_the_same(self, truth, binary):
        assert {path.name for path in (binary / "sparse").iterdir()} >= {"rigs.bin", "frames.bin"}
        assert_same(read_workspace(binary), read_workspace(truth[0]))

    @pytest.mark.parametrize("form", ["text", "binary"])
    def test_model_in_sparse_0(self, truth, binary, tmp_path, form):
        folder = shutil.copytree(truth[0] if form == "text" else binary, tmp_path / "scene")
        (folder / "sparse").rename(folder / "0")
        (folder / "sparse").mkdir()
        (folder / "0").rename(folder / "sparse" / "0")
        assert_same(read_workspace(folder), read_workspace(truth[0]))

    def test_a_half_of_a_model_is_passed_over(self, folder, truth):
        """sparse/ with a file of another model beside the whole one in sparse/0."""
        (folder / "sparse").rename(folder / "0")
        (folder / "sparse").mkdir()
        (folder / "0").rename(folder / "sparse" / "0")
        (folder / "sparse" / "cameras.bin").write_bytes(b"")
        assert_same(read_workspace(folder), read_workspace(truth[0]))

    def test_simple_pinhole(self, folder):
        set_camera(folder, 1, "SIMPLE_PINHOLE", 96, 72, 110.5, 47, 37)
        camera = read_workspace(folder).views[1].camera
        np.testing.assert_array_equal(camera.matrix, [[110.5, 0, 46.5], [0, 110.5, 36.5], [0, 0, 1]])

    def test_pinhole_with_pixels_that_are_not_square(self, folder):
        set_camera(folder, 2, "PINHOLE", 96, 72, 110.5, 99.25, 47, 37)
        camera = read_workspace(folder).views[2].camera
        np.testing.assert_array_equal(camera.matrix, [[110.5, 0, 46.5], [0, 99.25, 36.5], [0, 0, 1]])


class TestDepthMaps:
    def test_geometric_is_preferred_to_photometric(self, folder):
        shutil.copy(depth_path(folder, "view1.png"), depth_path(folder, "view1.png", "geometric"))
        kinds = [view.depth.name.split(".")[-2] for view in read_workspace(folder).views]
        assert kinds == ["photometric", "geometric", "photometric"]

    @pytest.mark.parametrize(("width", "height"), [(48, 36), (192, 144), (50, 37), (50, 38), (1000, 750)])
    def test_any_resolution_of_the_same_view(self, folder, width, height):
        write_depth(depth_path(folder, "view1.png"), np.ones((height, width)))
        assert read_workspace(folder).left_out == {}

    @pytest.mark.parametrize(("width", "height"), [(72, 96), (96, 96), (96, 68), (48, 40), (1000, 700)])
    def test_another_shape(self, folder, width, height):
        write_depth(depth_path(folder, "view1.png"), np.ones((height, width)))
        path = str(depth_path(folder, "view1.png"))
        assert_left_out(folder, "view1.png", path, f"{width} x {height}", "96 x 72")

    def test_missing(self, folder):
        path = depth_path(folder, "view1.png")
        path.unlink()
        assert_left_out(folder, "view1.png", str(path.parent), "no depth map", "patch_match_stereo")

    def test_truncated(self, folder):
        path = depth_path(folder, "view2.png")
        path.write_bytes(path.read_bytes()[:1000])
        assert_left_out(folder, "view2.png", str(path), "truncated")

    def test_no_depth_map(self, folder):
        path = depth_path(folder, "view2.png")
        path.write_bytes(b"something else")
        assert_left_out(folder, "view2.png", str(path), "not a COLMAP depth map")

    def test_a_damaged_geometric_map_is_not_replaced_by_the_photometric_one(self, folder):
        """What the user takes for the good map must not be exchanged in silence."""
        depth_path(folder, "view1.png", "geometric").write_bytes(b"something else")
        assert_left_out(folder, "view1.png", "geometric", "not a COLMAP depth map")


class TestImages:
    def test_missing(self, folder):
        (folder / "images" / "view0.png").unlink()
        assert_left_out(folder, "view0.png", str(folder / "images" / "view0.png"), "missing")

    def test_outside_the_workspace(self, folder):
        """Even if it is there: what a file names is not to be read anywhere on the disk."""
        (folder / "images" / "view0.png").rename(folder / "view0.png")
        set_pose(folder, 0, 9, "../view0.png")
        assert "is not the name of a file inside" in read_workspace(folder).left_out["../view0.png"]

    @pytest.mark.parametrize(
        ("model", "parameters"), [("SIMPLE_RADIAL", (100, 48, 36, 0.1)), ("OPENCV", (100, 100, 48, 36, 0.1, 0, 0, 0))]
    )
    def test_distorted_camera(self, folder, model, parameters):
        set_camera(folder, 1, model, 96, 72, *parameters)
        assert_left_out(folder, "view1.png", model, "image_undistorter")

    @pytest.mark.parametrize("view", [0, 1, 2])
    def test_distorted_camera_of_a_newer_kind_in_a_binary_model(self, folder, view):
        """Wherever it stands among the others."""
        set_camera(folder, view, "RAD_TAN_THIN_PRISM_FISHEYE", 96, 72, 100, 100, 48, 36, *[0.001] * 12)
        text_to_binary(folder / "sparse")
        assert_left_out(folder, NAMES[view], "RAD_TAN_THIN_PRISM_FISHEYE", "image_undistorter")

    def test_pose_that_is_not_finite(self, binary, tmp_path):
        """A binary model may hold NaN."""
        import pycolmap

        folder = Path(shutil.copytree(binary, tmp_path / "scene"))
        model = pycolmap.Reconstruction(str(folder / "sparse"))
        frame = next(image for image in model.images.values() if image.name == "view1.png").frame
        frame.rig_from_world = pycolmap.Rigid3d(frame.rig_from_world.rotation, np.array([np.nan, 0, 1]))
        model.write_binary(str(folder / "sparse"))
        assert_left_out(folder, "view1.png", "not finite")

    def test_focal_length_that_is_not_positive(self, folder):
        set_camera(folder, 1, "PINHOLE", 96, 72, -100, 100, 48, 36)
        assert_left_out(folder, "view1.png", "camera")

    def test_the_points_of_an_image_that_is_left_out_stay(self, folder, truth):
        """Rows of points do not shift, whichever images can be used."""
        (folder / "images" / "view0.png").unlink()
        scene, whole = read_workspace(folder), read_workspace(truth[0])
        np.testing.assert_array_equal(scene.points, whole.points)
        for view, before in zip(scene.views, whole.views[1:], strict=True):
            np.testing.assert_array_equal(view.points, before.points)


def assert_refused(folder: Path, *words: str) -> None:
    with pytest.raises(StorageError) as error:
        read_workspace(folder)
    message = str(error.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


class TestRefused:
    def test_no_folder(self, tmp_path):
        assert_refused(tmp_path / "nowhere", str(tmp_path / "nowhere"), "no such folder")

    def test_a_file(self, tmp_path):
        path = tmp_path / "scene"
        path.write_text("")
        assert_refused(path, str(path), "no such folder")

    def test_an_empty_folder(self, tmp_path):
        assert_refused(tmp_path, str(tmp_path), "no sparse model")

    @pytest.mark.parametrize("name", ["cameras.txt", "images.txt", "points3D.txt"])
    def test_model_that_lacks_a_file(self, folder, name):
        (folder / "sparse" / name).unlink()
        assert_refused(folder, str(folder), "no sparse model")

    def test_empty_model(self, folder):
        for path in (folder / "sparse").iterdir():
            path.write_text("# nothing\n")
        assert_refused(folder, str(folder / "sparse"), "no images")

    def test_one_usable_image(self, folder):
        (folder / "images" / "view0.png").unlink()
        depth_path(folder, "view2.png").unlink()
        assert_refused(folder, str(folder), "only 1 of the 3 images", "view0.png")

    def test_no_depth_maps_at_all(self, folder):
        shutil.rmtree(folder / "stereo")
        assert_refused(folder, str(folder), "only 0 of the 3 images", "no depth map")

    def test_model_of_one_image(self, world, tmp_path):
        alone = World(world.quads, world.cameras[:1])
        alone.__dict__["views"] = world.views[:1]
        write_workspace(alone, tmp_path)
        assert_refused(tmp_path, str(tmp_path), "only 1 of the 1 images")

    @pytest.mark.parametrize("column", [1, 5])
    def test_text_model_with_a_pose_that_is_no_number(self, folder, column):
        set_pose(folder, 1, column, "turned")
        assert_refused(folder, str(folder / "sparse"), "COLMAP model")

    @pytest.mark.parametrize("value", ["nan", "-inf"])
    @pytest.mark.parametrize("column", [1, 5])
    def test_text_model_with_a_pose_that_is_not_finite(self, folder, column, value):
        set_pose(folder, 1, column, value)
        assert_refused(folder, str(folder / "sparse" / "images.txt"), "the pose of view1.png is not finite")

    def test_pose_that_is_no_rotation(self, folder):
        """COLMAP takes a quaternion of any length for one of length 1."""
        for column in (1, 2, 3, 4):
            set_pose(folder, 1, column, "0.9")
        assert_left_out(folder, "view1.png", "not a rotation")

    def test_camera_without_pixels(self, folder):
        path = folder / "sparse" / "cameras.txt"
        lines = path.read_text().splitlines()
        words = lines[-1].split()
        path.write_text("\n".join([*lines[:-1], " ".join([*words[:2], "0", "0", *words[4:]])]) + "\n")
        scene = read_workspace(folder)
        assert len(scene.left_out) == 1
        assert "not finite, or empty" in next(iter(scene.left_out.values()))

    def test_image_of_a_camera_that_does_not_exist(self, folder):
        set_pose(folder, 1, 8, "77")
        assert_refused(folder, str(folder / "sparse"), "COLMAP model")

    @pytest.mark.parametrize("name", ["cameras.txt", "images.txt", "points3D.txt"])
    def test_garbage_in_a_text_model(self, folder, name):
        (folder / "sparse" / name).write_bytes(bytes(range(256)) * 4)
        assert_refused(folder, str(folder / "sparse"), "COLMAP model")

    def test_every_refusal_is_an_error_that_the_command_line_tells(self):
        assert issubclass(StorageError, LogpolarError)

    def test_without_pycolmap(self, truth, monkeypatch):
        monkeypatch.setitem(sys.modules, "pycolmap", None)
        with pytest.raises(MissingExtraError, match=r"logpolar\[sfm\]"):
            read_workspace(truth[0])


@pytest.fixture
def log_level():
    """A level of COLMAP's log for one test; monkeypatch would not put a static property back."""
    import pycolmap

    before, level = pycolmap.logging.minloglevel, pycolmap.logging.Level.WARNING.value
    pycolmap.logging.minloglevel = level
    yield level
    pycolmap.logging.minloglevel = before


def test_colmap_is_quiet_about_models_it_cannot_read(folder, capfd, log_level):
    """Its stack traces on stderr would hide our one line; afterwards it may log as before."""
    import pycolmap

    (folder / "sparse" / "images.txt").write_text("garbage\n")
    assert_refused(folder, str(folder / "sparse"))
    assert capfd.readouterr().err == ""
    assert pycolmap.logging.minloglevel == log_level


def test_wrong_poses_are_read_as_they_are(world, truth, folder):
    """The reader does not judge: a model with a shifted camera gives that camera."""
    points = truth[1]
    shifted = replace(world.cameras[1], translation=world.cameras[1].translation + np.array([1, 2, 3]))
    write_sparse(World(world.quads, [world.cameras[0], shifted, world.cameras[2]]), folder / "sparse", NAMES, points)
    np.testing.assert_allclose(read_workspace(folder).views[1].camera.translation, shifted.translation, rtol=1e-12)
