"""Workspaces that cannot be used, or only in part."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from helpers import assert_same_content
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.options import (
    PairRules,
    SceneOptions,
    SplitRules,
)
from logpolar.datasets.scenes import build_scene
from logpolar.errors import LogpolarError, StorageError
from scene_truth import (
    SMALL,
    judge,
    stop_after,
    together,
)
from synthetic_world import World, write_depth, write_workspace


def depth_file(folder: Path, number: int) -> Path:
    return folder / "stereo" / "depth_maps" / f"view{number}.png.photometric.bin"


def image_file(folder: Path, number: int) -> Path:
    return folder / "images" / f"view{number}.png"


def damage(folder: Path, what: str, number: int) -> Path:
    """Spoil one image of a workspace; the file that the complaint must name."""
    image, depth = image_file(folder, number), depth_file(folder, number)
    if what == "no depth map":
        depth.unlink()
        return depth.with_name(depth.name.replace("photometric", "geometric"))
    if what == "depth of another shape":
        write_depth(depth, np.ones((150, 150)))
        return depth
    if what == "truncated depth":
        depth.write_bytes(depth.read_bytes()[:5000])
        return depth
    if what == "no image":
        image.unlink()
    elif what == "undecodable image":
        image.write_bytes(b"\x89PNG\r\n\x1a\n and nothing more")
    elif what == "empty image":
        image.write_bytes(b"")
    elif what == "image of another size":
        cv2.imwrite(str(image), np.zeros((75, 100), np.uint8))
    else:
        raise ValueError(what)
    return image


DAMAGES = [
    "no depth map",
    "depth of another shape",
    "truncated depth",
    "no image",
    "undecodable image",
    "empty image",
    "image of another size",
]


class TestBadInput:
    @pytest.fixture
    def folder(self, small, tmp_path) -> Path:
        return Path(shutil.copytree(small, tmp_path / "scene"))

    def assert_refused(self, folder: Path, tmp_path: Path, *words: str, options: SceneOptions = SMALL) -> None:
        """One line that names what is wrong, and no output, whole or half."""
        output = tmp_path / "out" / "scene.h5"
        output.parent.mkdir()
        with pytest.raises(LogpolarError) as error:
            build_scene(folder, output, options)
        message = str(error.value)
        assert all(word in message for word in words), message
        assert "\n" not in message.strip()
        assert list(output.parent.iterdir()) == []

    @pytest.mark.parametrize("what", DAMAGES)
    def test_one_bad_image_is_left_out_and_reported(self, folder, tmp_path, small_world, what):
        named = damage(folder, what, 1)
        report = build_scene(folder, tmp_path / "scene.h5", SMALL)
        assert list(report.left_out) == ["view1.png"]
        assert str(named) in report.left_out["view1.png"]
        assert report.counts["images"] == 3
        assert report.counts["pairs"] == 3
        with CorrespondenceFile(tmp_path / "scene.h5") as file:
            assert file.complete
            assert [image.name for image in file.images] == ["view0.png", "view2.png", "view3.png"]
            assert file.summary["left_out"] == report.left_out
            # An image that cannot be decoded is found out only when the pairs are chosen already.
            late = what in ("undecodable image", "empty image", "image of another size")
            assert file.summary["image_pairs_rejected"]["image left out"] == (3 if late else 0)
        pairs = judge(small_world, tmp_path / "scene.h5")
        distance = together(pairs, lambda pair: pair.distance)
        assert len(distance) > 50
        assert distance.max() < 2

    @pytest.mark.parametrize("what", DAMAGES)
    def test_all_but_one_bad(self, folder, tmp_path, what):
        for number in (0, 1, 2):
            named = damage(folder, what, number)
        named = str(named).replace("view2", "view0")
        self.assert_refused(folder, tmp_path, str(folder), named)

    @pytest.mark.parametrize("what", DAMAGES)
    def test_all_bad(self, folder, tmp_path, what):
        for number in range(4):
            damage(folder, what, number)
        self.assert_refused(folder, tmp_path, str(folder), "view0.png")

    def test_an_image_that_is_not_one_after_a_stop(self, folder, tmp_path, monkeypatch):
        """What is left out is left out again, and reported, by the run that continues."""
        damage(folder, "undecodable image", 1)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            stop_after(patch, "link_views", 1)
            build_scene(folder, tmp_path / "scene.h5", SMALL)
        report = build_scene(folder, tmp_path / "scene.h5", SMALL)
        assert list(report.left_out) == ["view1.png"]
        build_scene(folder, tmp_path / "whole.h5", SMALL)
        assert_same_content(tmp_path / "scene.h5", tmp_path / "whole.h5")

    def test_image_without_keypoints(self, folder, tmp_path):
        """Nothing is wrong with it; if it is left out nevertheless, the reason must be one that people understand."""
        cv2.imwrite(str(image_file(folder, 1)), np.full((150, 200), 128, np.uint8))
        report = build_scene(folder, tmp_path / "scene.h5", SMALL)
        assert not any("OpenCV" in reason for reason in report.left_out.values())

    def test_poses_that_are_not_finite(self, small_world, tmp_path):
        import pycolmap

        folder = tmp_path / "scene"
        write_workspace(small_world, folder, binary=True)
        model = pycolmap.Reconstruction(str(folder / "sparse"))
        for image in model.images.values():
            if image.name != "view3.png":
                pose = image.frame.rig_from_world
                image.frame.rig_from_world = pycolmap.Rigid3d(pose.rotation, np.array([0, np.nan, 1]))
        model.write_binary(str(folder / "sparse"))
        self.assert_refused(folder, tmp_path, str(folder), "view0.png", "not finite")

    def test_empty_model(self, folder, tmp_path):
        for path in (folder / "sparse").iterdir():
            path.write_text("# nothing\n")
        self.assert_refused(folder, tmp_path, str(folder / "sparse"), "no images")

    def test_no_model(self, folder, tmp_path):
        shutil.rmtree(folder / "sparse")
        self.assert_refused(folder, tmp_path, str(folder), "no sparse model")

    def test_no_workspace(self, tmp_path):
        self.assert_refused(tmp_path / "nowhere", tmp_path, str(tmp_path / "nowhere"))

    def test_one_image(self, small_world, tmp_path):
        alone = World(small_world.quads, small_world.cameras[:1])
        alone.__dict__["views"] = small_world.views[:1]
        write_workspace(alone, tmp_path / "scene")
        self.assert_refused(tmp_path / "scene", tmp_path, str(tmp_path / "scene"), "only 1 of the 1 images")

    @pytest.mark.parametrize(
        ("rules", "cause"),
        [(PairRules(min_shared=10**6), "few shared points: 6"), (PairRules(min_overlap=1.0), "small overlap: 6")],
    )
    def test_no_two_images_overlap(self, folder, tmp_path, rules, cause):
        options = replace(SMALL, pairs=rules)
        self.assert_refused(folder, tmp_path, str(folder), "overlap", cause, options=options)

    def test_the_only_pair_loses_an_image(self, small_world, tmp_path):
        """One pair of three images, and one of its two cannot be decoded: no two that are left are to be paired."""
        three = World(small_world.quads, small_world.cameras[:3])
        three.__dict__["views"] = small_world.views[:3]
        write_workspace(three, tmp_path / "scene")
        options = replace(SMALL, pairs=replace(SMALL.pairs, max_per_image=1))
        build_scene(tmp_path / "scene", tmp_path / "before.h5", options)
        with CorrespondenceFile(tmp_path / "before.h5") as file:
            (pair,) = file.pair_images.tolist()
        damage(tmp_path / "scene", "undecodable image", pair[0])
        self.assert_refused(tmp_path / "scene", tmp_path, f"view{pair[0]}.png", options=options)

    def test_every_pair_across_the_split(self, small_world, tmp_path):
        two = World(small_world.quads, small_world.cameras[:2])
        two.__dict__["views"] = small_world.views[:2]
        write_workspace(two, tmp_path / "scene")
        options = replace(SMALL, split=SplitRules(validation=0.5))
        self.assert_refused(tmp_path / "scene", tmp_path, "across the split: 1", options=options)

    def test_output_that_is_something_else(self, folder, tmp_path):
        path = tmp_path / "notes.txt"
        path.write_text("mine")
        for overwrite in (False, True):
            with pytest.raises(StorageError, match="not an HDF5 file") as error:
                build_scene(folder, path, SMALL, overwrite=overwrite)
            assert str(path) in str(error.value)
        assert path.read_text() == "mine"

    def test_output_in_a_folder_that_does_not_exist(self, folder, tmp_path):
        with pytest.raises(StorageError, match="does not exist"):
            build_scene(folder, tmp_path / "nowhere" / "scene.h5", SMALL)
