from __future__ import annotations

import shutil
from dataclasses import replace

import cv2
import h5py
import numpy as np
import pytest

from dataset_files import SETTINGS, make_image, make_pair, write
from logpolar.errors import LogpolarError
from logpolar.evaluation.options import PhototourismOptions
from logpolar.evaluation.phototourism import prepare_scene
from logpolar.evaluation.posed_scenes import draw_bags, draw_pairs, read_scene
from logpolar.geometry.cameras import Camera
from synthetic_world import standard_world, write_workspace

NAMES = [f"view{number}.png" for number in range(6)]


def write_challenge(world, folder, visibility=None):
    """A scene as the Image Matching Challenge has it; K from COLMAP, so half a pixel further."""
    place = folder / "set_100"
    for name in ("images", "calibration", "visibility"):
        (place / name).mkdir(parents=True)
    for name, camera, (image, _) in zip(NAMES, world.cameras, world.views, strict=True):
        cv2.imwrite(str(place / "images" / name), image)
        with h5py.File(place / "calibration" / f"calibration_{name[:-4]}.h5", "w") as file:
            file["K"] = camera.intrinsics + np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
            file["R"], file["T"] = camera.rotation, camera.translation[None]  # (1, 3), as it comes
    if visibility is not None:
        for name, row in zip(NAMES, visibility, strict=True):
            (place / "visibility" / f"{name}.txt").write_text("\n".join(f"{value:.3f}" for value in row))
        (place / "images.txt").write_text("".join(f"images/{name}\n" for name in NAMES))
        (place / "visibility.txt").write_text("".join(f"visibility/{name}.txt\n" for name in NAMES))
    return folder


@pytest.fixture
def challenge(posed_world, tmp_path):
    return write_challenge(posed_world, tmp_path / "reichstag")


def assert_sees_the_same(image, camera, points):
    """A wrong convention of K, R or T moves the projection."""
    seen, depth = image.camera.see(points)
    expected, expected_depth = camera.project(points)
    np.testing.assert_allclose(depth, expected_depth, atol=1e-9)
    np.testing.assert_allclose(seen, expected, rtol=1e-9, atol=1e-6)


def refused(*arguments, **more) -> str:
    with pytest.raises(LogpolarError) as error:
        read_scene(*arguments, **more)
    assert "\n" not in str(error.value)
    return str(error.value)


class TestColmap:
    def test_cameras_and_images(self, posed_world, castle):
        folder, points = castle
        scene = read_scene(folder)
        assert scene.name == "castle"
        assert [image.name for image in scene.images] == NAMES
        for image, camera, (pixels, _) in zip(scene.images, posed_world.cameras, posed_world.views, strict=True):
            assert_sees_the_same(image, camera, points.xyz)
            np.testing.assert_array_equal(image.read(), pixels)

    def test_pairs_share_points(self, castle):
        folder, points = castle
        shared = {(i, j): int((points.seen[:, i] & points.seen[:, j]).sum()) for i in range(6) for j in range(i + 1, 6)}
        least = sorted(shared.values())[7]
        pairs = read_scene(folder, min_shared=least).pairs
        assert pairs == [pair for pair, count in shared.items() if count >= least]
        assert 0 < len(pairs) < 15
        assert "none of its 6 images overlap" in refused(folder, min_shared=10**6)

    def test_missing_image(self, castle, tmp_path):
        folder = shutil.copytree(castle[0], tmp_path / "half")
        (folder / "images" / NAMES[2]).unlink()
        scene = read_scene(folder)
        assert len(scene.images) == 5
        assert "missing" in scene.left_out[NAMES[2]]

    def test_image_of_another_size(self, castle, tmp_path):
        folder = shutil.copytree(castle[0], tmp_path / "changed")
        cv2.imwrite(str(folder / "images" / NAMES[0]), np.zeros((60, 80), np.uint8))
        with pytest.raises(LogpolarError, match="80 x 60 pixels, its camera 160 x 120"):
            read_scene(folder).images[0].read()

    def test_identity(self, castle, tmp_path):
        """The same wherever it lies; other cameras are another scene."""
        copied = read_scene(shutil.copytree(castle[0], tmp_path / "copied"))
        assert copied.identity() == read_scene(castle[0]).identity()
        write_workspace(standard_world(1, 6, 80, 60), tmp_path / "castle")
        other = read_scene(tmp_path / "castle")
        assert [image.name for image in other.images] == NAMES
        assert other.identity() != copied.identity()

    def test_no_model(self, tmp_path):
        (tmp_path / "sparse").mkdir()
        assert "no sparse model" in refused(tmp_path)


class TestChallenge:
    def test_cameras_and_images(self, posed_world, challenge, castle):
        for path in (challenge, challenge / "set_100"):
            scene = read_scene(path)
            assert scene.name == "reichstag"
            for image, camera, (pixels, _) in zip(scene.images, posed_world.cameras, posed_world.views, strict=True):
                assert_sees_the_same(image, camera, castle[1].xyz)
                np.testing.assert_array_equal(image.read(), pixels)

    def test_without_visibility_all_pairs(self, challenge):
        assert len(read_scene(challenge).pairs) == 15

    def test_visibility_is_the_smaller_of_both(self, posed_world, tmp_path):
        visibility = np.zeros((6, 6))
        visibility[0, 1] = visibility[1, 0] = 0.1  # just enough
        visibility[2, 3], visibility[3, 2] = 0.9, 0.05
        visibility[5, 4], visibility[4, 5] = 0.3, 0.7
        folder = write_challenge(posed_world, tmp_path / "seen", visibility)
        assert read_scene(folder).pairs == [(0, 1), (4, 5)]
        assert read_scene(folder, min_visibility=0.05).pairs == [(0, 1), (2, 3), (4, 5)]

    def test_rows_of_left_out_images(self, posed_world, tmp_path):
        visibility = np.zeros((6, 6))
        visibility[4, 5] = visibility[5, 4] = 0.5
        folder = write_challenge(posed_world, tmp_path / "seen", visibility)
        (folder / "set_100" / "calibration" / "calibration_view1.h5").unlink()
        scene = read_scene(folder)
        assert scene.pairs == [(3, 4)]
        assert "calibration_view1.h5" in scene.left_out["view1.png"]

    @pytest.mark.parametrize("name", ["images", "calibration"])
    def test_half_a_download(self, challenge, name):
        shutil.rmtree(challenge / "set_100" / name)
        assert f"no folder {name}" in refused(challenge)

    def test_no_calibration_at_all(self, challenge):
        for path in (challenge / "set_100" / "calibration").iterdir():
            path.write_bytes(path.read_bytes()[:50])
        words = refused(challenge)
        assert "only 0 of 6 images" in words
        assert "not an HDF5 file" in words

    def test_no_rotation(self, challenge):
        with h5py.File(challenge / "set_100" / "calibration" / "calibration_view0.h5", "a") as file:
            file["R"][...] = 2 * np.eye(3)
        assert "not a rotation" in read_scene(challenge).left_out["view0.png"]

    @pytest.mark.parametrize(("content", "words"), [("0.5 word", "numbers"), ("0.5 0.5", "each of the 6 images")])
    def test_bad_list_of_visibility(self, posed_world, tmp_path, content, words):
        folder = write_challenge(posed_world, tmp_path / "seen", np.ones((6, 6)))
        (folder / "set_100" / "visibility" / f"{NAMES[3]}.txt").write_text(content)
        assert words in refused(folder)

    def test_fewer_lists_than_images(self, posed_world, tmp_path):
        folder = write_challenge(posed_world, tmp_path / "seen", np.ones((6, 6)))
        (folder / "set_100" / "visibility.txt").write_text("visibility/view0.png.txt\n")
        assert "names 1 lists" in refused(folder)


class TestCorrespondenceFiles:
    @pytest.fixture
    def cameras(self, posed_world):
        return [Camera(c.width, c.height, c.intrinsics, c.rotation, c.translation) for c in posed_world.cameras]

    def test_pairs_with_correspondences(self, tmp_path, cameras):
        images = [make_image(f"{letter}.png", seed=n, camera=cameras[n]) for n, letter in enumerate("abcd")]
        altered = make_image("b.png@shrunk-3", seed=4, camera=cameras[4])
        pairs = [
            make_pair(images[2], images[0]),
            make_pair(images[0], images[1], count=0),
            make_pair(images[3], altered),
            make_pair(images[1], images[3]),
        ]
        path = tmp_path / "scene.h5"
        write(path, [*images, altered], pairs)
        scene = read_scene(path)
        assert scene.name == "scene"
        assert [image.name for image in scene.images] == ["a.png", "b.png", "c.png", "d.png", "b.png@shrunk-3"]
        assert scene.pairs == [(0, 2), (1, 3), (3, 4)]
        assert not scene.transformed
        assert scene.images[1].read().shape == (31, 40)
        np.testing.assert_allclose(scene.images[1].camera.table, cameras[1].table)

    @pytest.mark.parametrize("second", [{"shrink": 3.0, "turn": 0.0}, {"shrink": 1.0, "turn": 45.0}])
    def test_altered_copies(self, tmp_path, cameras, second):
        """They stand where the first images stand, so that sets of images make no sense."""
        images = [make_image(name, seed=n, camera=cameras[n]) for n, name in enumerate(("a.png", "b.png@altered"))]
        path = tmp_path / "scene.h5"
        write(path, images, [make_pair(*images)], {**SETTINGS, "second": second})
        scene = read_scene(path)
        assert scene.transformed
        assert scene.pairs == [(0, 1)]
        with pytest.raises(LogpolarError, match="--no-multi-view"):
            prepare_scene(scene, PhototourismOptions(), multi_view=True)

    def test_a_split(self, tmp_path, cameras):
        splits = ("train", "train", "validation", "validation")
        images = [make_image(f"{n}.png", 20, split, n, camera=cameras[n]) for n, split in enumerate(splits)]
        path = tmp_path / "scene.h5"
        write(path, images, [make_pair(images[0], images[1]), make_pair(images[3], images[2])])
        assert read_scene(path).pairs == [(0, 1), (2, 3)]
        assert read_scene(path, split="validation").pairs == [(2, 3)]
        assert read_scene(path, split="test").pairs == [(0, 1), (2, 3)]

    def test_photos_have_no_cameras(self, tmp_path):
        images = [make_image("a.png"), make_image("b.png", seed=1)]
        path = tmp_path / "photos.h5"
        write(path, images, [make_pair(*images)])
        assert "no image in this file has a camera" in refused(path)


class TestOthers:
    def test_nothing_there(self, tmp_path):
        assert "no such file or folder" in refused(tmp_path / "nowhere")

    def test_other_folders_and_files(self, tmp_path):
        assert "not a scene with known poses" in refused(tmp_path)
        (tmp_path / "notes.txt").write_text("hello")
        assert "not a scene with known poses" in refused(tmp_path / "notes.txt")
        (tmp_path / "broken.h5").write_text("hello")
        assert "broken.h5" in refused(tmp_path / "broken.h5")


class TestDrawing:
    def test_pairs(self, castle_scene):
        assert (
            draw_pairs(castle_scene, 0, 0)
            == draw_pairs(castle_scene, 10, 0)
            == draw_pairs(castle_scene, 99, 5)
            == castle_scene.pairs
        )
        some = draw_pairs(castle_scene, 4, 0)
        assert len(set(some)) == 4
        assert set(some) < set(castle_scene.pairs)
        assert some == draw_pairs(castle_scene, 4, 0)
        assert len({tuple(draw_pairs(castle_scene, 4, seed)) for seed in range(6)}) > 1

    def test_bags_hang_together(self, castle_scene):
        chain = replace(castle_scene, pairs=[(0, 1), (1, 2), (2, 3), (4, 5)])
        assert set(draw_bags(chain, 3, 50, 0)) == {(0, 1, 2), (1, 2, 3)}
        assert draw_bags(chain, 3, 1, 0) == draw_bags(chain, 3, 1, 0)
        assert draw_bags(chain, 5, 3, 0) == []

    def test_bags_of_a_size_differ(self, castle_scene):
        bags = draw_bags(castle_scene, 3, 8, 1)
        assert len(set(bags)) == 8
        assert 5 not in {row for bag in bags for row in bag}
