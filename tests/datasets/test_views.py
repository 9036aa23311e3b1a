"""Images as they go into the file, and the surfaces that are seen in them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from helpers import content_of
from logpolar.datasets.depth import confirmed_inverse_depth, invert
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.options import (
    DepthRules,
    ImageRules,
)
from logpolar.datasets.scenes import build_scene, confirming_views
from logpolar.datasets.views import read_surface
from logpolar.datasets.visibility import shared_points
from logpolar.sfm.depth_maps import read_depth
from logpolar.sfm.workspace import read_workspace
from scene_truth import (
    NAMES,
    OPTIONS,
    ROUNDING,
    SIZE,
    SMALL,
    judge,
    together,
)
from synthetic_world import write_workspace


class TestImages:
    def stored(self, path: Path, number: int) -> bytes:
        with h5py.File(path) as file:
            start, end = file["images/data"][number]
            return file["bytes"][start:end].tobytes()

    def test_stored_to_the_byte(self, small, small_built):
        for number in range(4):
            assert self.stored(small_built, number) == (small / "images" / NAMES[number]).read_bytes()

    def test_of_other_formats(self, small_world, tmp_path):
        """JPEG as it is; a format that is not packed becomes a JPEG of the same picture."""
        write_workspace(small_world, tmp_path / "scene", image_names=["a.jpg", "b.bmp", "c.JPG", "d.png"])
        build_scene(tmp_path / "scene", tmp_path / "scene.h5", SMALL)
        for number, name in enumerate(["a.jpg", "b.bmp", "c.JPG", "d.png"]):
            same = self.stored(tmp_path / "scene.h5", number) == (tmp_path / "scene" / "images" / name).read_bytes()
            assert same == (name != "b.bmp")
        with CorrespondenceFile(tmp_path / "scene.h5") as file:
            difference = file.read_image(1).astype(float) - small_world.views[1][0]
        assert np.abs(difference).mean() < 2

    def test_read_back(self, small_world, small_built):
        with CorrespondenceFile(small_built) as file:
            for number, (image, _) in enumerate(small_world.views):
                np.testing.assert_array_equal(file.read_image(number), image)

    def test_sizes(self, small_built):
        with CorrespondenceFile(small_built) as file:
            assert [image.size for image in file.images] == [(200, 150)] * 4

    def test_beside_the_file_in_a_folder_that_moves(self, small_world, small, tmp_path):
        """With relative paths the images are found again wherever workspace and file go together."""
        before, after = tmp_path / "before", tmp_path / "far" / "after"
        shutil.copytree(small, before / "data" / "scene")
        (before / "out").mkdir()
        options = replace(SMALL, images=ImageRules(embed=False))
        build_scene(before / "data" / "scene", before / "out" / "scene.h5", options)
        after.parent.mkdir()
        before.rename(after)
        with CorrespondenceFile(after / "out" / "scene.h5") as file:
            assert len(file._file["bytes"]) < 1e5  # depth pictures alone
            for number, (image, _) in enumerate(small_world.views):
                np.testing.assert_array_equal(file.read_image(number), image)
            stored = file._file["images/path"].asstr()[()].tolist()
        assert stored == [f"../data/scene/images/{name}" for name in NAMES[:4]]

    def test_by_path_the_correspondences_are_the_same(self, small, small_built, tmp_path):
        build_scene(small, tmp_path / "scene.h5", replace(SMALL, images=ImageRules(embed=False)))
        one, other = content_of(tmp_path / "scene.h5"), content_of(small_built)
        for column in ("keypoints/xy", "keypoints/depth", "correspondences/keypoints", "correspondences/warp"):
            np.testing.assert_array_equal(one[column], other[column])

    def test_by_path_from_a_linked_folder(self, small, tmp_path):
        (tmp_path / "disk" / "deep").mkdir(parents=True)
        (tmp_path / "link").symlink_to(tmp_path / "disk" / "deep")
        shutil.copytree(small, tmp_path / "scene")
        options = replace(SMALL, images=ImageRules(embed=False))
        build_scene(tmp_path / "scene", tmp_path / "link" / "scene.h5", options)
        with CorrespondenceFile(tmp_path / "link" / "scene.h5") as file:
            assert file.read_image(0).shape == file.images[0].size[::-1]

    @pytest.mark.parametrize(("max_size", "size"), [(199, (199, 149)), (160, (160, 120))])
    def test_reduced(self, world, workspace, tmp_path, max_size, size):
        """199 px: the sides shrink by factors that differ a little, which the cameras must follow."""
        images = ImageRules(max_size=max_size, quality=100)
        options = replace(OPTIONS, images=images, depth=DepthRules(min_views=0))
        build_scene(workspace, tmp_path / "scene.h5", options)
        with CorrespondenceFile(tmp_path / "scene.h5") as file:
            expected = cv2.resize(world.views[0][0], size, interpolation=cv2.INTER_AREA).astype(float)
            assert np.abs(file.read_image(0) - expected).max() <= 1
        pairs = judge(world, tmp_path / "scene.h5")
        assert all(len(pair.found) > 10 for pair in pairs)
        distance, flat = (together(pairs, of) for of in (lambda pair: pair.distance, lambda pair: pair.flat))
        assert len(distance) > 300
        assert distance[flat].max() <= 1.5 + ROUNDING
        assert distance.max() < 2
        assert together(pairs, lambda pair: pair.nearly_visible).all()
        assert together(pairs, lambda pair: pair.warp_error)[flat].max() < 0.004
        assert together(pairs, lambda pair: pair.scale_error)[flat].max() < 0.01
        assert together(pairs, lambda pair: pair.depth_error)[flat].max() < 0.001

    def test_reduced_when_it_is_read(self, small_world, small, tmp_path):
        """The file has the path of the large image."""
        options = replace(SMALL, images=ImageRules(max_size=99, embed=False, quality=100))
        build_scene(small, tmp_path / "scene.h5", options)
        with CorrespondenceFile(tmp_path / "scene.h5") as file:
            expected = cv2.resize(small_world.views[0][0], (99, 74), interpolation=cv2.INTER_AREA).astype(float)
            assert np.abs(file.read_image(0) - expected).max() <= 1

    def test_compressed_as_much_as_asked_for(self, small, tmp_path):
        lengths = []
        for quality in (30, 95):
            options = replace(SMALL, images=ImageRules(max_size=150, quality=quality))
            build_scene(small, tmp_path / f"{quality}.h5", options)
            lengths.append(len(self.stored(tmp_path / f"{quality}.h5", 0)))
        assert lengths[0] < 0.6 * lengths[1]


def test_the_views_that_share_most_are_asked_to_confirm(workspace):
    scene = read_workspace(workspace)
    shared = shared_points(scene)
    for view in range(len(NAMES)):
        order = [other for other in np.argsort(-shared[view], kind="stable") if other != view]
        asked = confirming_views(scene, shared, view, 3)
        assert [path for path, _ in asked] == [scene.views[other].depth for other in order[:3]]
        assert [camera for _, camera in asked] == [scene.views[other].camera for other in order[:3]]
        assert len(confirming_views(scene, shared, view, 99)) == 5


def test_views_that_share_nothing_are_not_asked(workspace):
    scene = read_workspace(workspace)
    shared = np.zeros((6, 6), np.int32)
    shared[2, 4] = shared[4, 2] = 7
    assert [path for path, _ in confirming_views(scene, shared, 2, 15)] == [scene.views[4].depth]


def test_surface_of_a_coarse_depth_map(world, tmp_path):
    """Drift is meant in pixels of the image: half as many of a map of half the size."""
    write_workspace(world, tmp_path, depth_scale=0.5, depth_noise=0.004)
    scene = read_workspace(tmp_path)
    rules = DepthRules(max_drift=0.5)
    others = confirming_views(scene, shared_points(scene), 1, 5)
    depth, surface = read_surface(scene.views[1], others, rules, SIZE[0])
    camera = scene.views[1].camera.resized(160, 120)
    maps = [(read_depth(path), other.resized(160, 120)) for path, other in others]
    np.testing.assert_array_equal(depth, read_depth(scene.views[1].depth))
    np.testing.assert_array_equal(surface, confirmed_inverse_depth(depth, camera, maps, rules, 0.5))
    assert 0.1 < (surface > 0).mean() < 0.9
    np.testing.assert_array_equal(read_surface(scene.views[1], [], DepthRules(min_views=0), 1)[1], invert(depth))
