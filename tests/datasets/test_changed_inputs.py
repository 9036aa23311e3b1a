"""What was there when a file was made may be another thing when it is continued or read."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import h5py
import numpy as np
import pytest

from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.homographies import build_photos
from logpolar.datasets.options import ImageRules, PhotoOptions
from logpolar.datasets.scenes import build_scene
from logpolar.errors import StorageError
from logpolar.sfm.depth_maps import read_depth
from scene_truth import SMALL
from synthetic_world import write_depth


@pytest.fixture
def folder(small, tmp_path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "scene"))


class TestBuilding:
    def test_changed_depth_is_not_answered_with_the_old_file(self, folder, tmp_path):
        build_scene(folder, tmp_path / "f.h5", SMALL)
        path = next((folder / "stereo" / "depth_maps").iterdir())
        write_depth(path, read_depth(path) * 2)
        with pytest.raises(StorageError, match=r"f\.h5: was made from other images, or they have changed"):
            build_scene(folder, tmp_path / "f.h5", SMALL)

    def test_another_photo_of_the_same_name(self, photos, tmp_path):
        one, other = ({"x.png": shutil.copy(path, tmp_path / f"{n}.png")} for n, path in enumerate(photos[:2]))
        options = PhotoOptions(views=1)
        build_photos({n: Path(p) for n, p in one.items()}, tmp_path / "f.h5", options)
        with pytest.raises(StorageError, match="other images"):
            build_photos({n: Path(p) for n, p in other.items()}, tmp_path / "f.h5", options)

    def test_a_finished_file_says_so(self, folder, tmp_path):
        first, second = (build_scene(folder, tmp_path / "f.h5", SMALL) for _ in range(2))
        assert (first.was_complete, second.was_complete) == (False, True)
        assert first.counts == second.counts

    def test_what_others_keep_in_the_scratch_folder_stays(self, folder, tmp_path):
        scratch = tmp_path / "f.h5.scratch"
        scratch.mkdir()
        (scratch / "thesis.txt").write_text("mine")
        build_scene(folder, tmp_path / "f.h5", SMALL)
        assert [path.name for path in scratch.iterdir()] == ["thesis.txt"]

    def test_more_confirming_views_than_there_are(self, folder, tmp_path):
        options = replace(SMALL, depth=replace(SMALL.depth, min_views=4))
        with pytest.raises(StorageError, match="confirmed by 4 other views, but there are 4 in all; lower --min-views"):
            build_scene(folder, tmp_path / "f.h5", options)
        assert not (tmp_path / "f.h5").exists()


class TestReading:
    def test_an_image_of_another_size(self, folder, tmp_path):
        build_scene(folder, tmp_path / "f.h5", replace(SMALL, images=ImageRules(embed=False)))
        path = folder / "images" / "view0.png"
        cv2.imwrite(str(path), cv2.imread(str(path))[:100])
        with CorrespondenceFile(tmp_path / "f.h5") as file, pytest.raises(StorageError, match=r"view0\.png.*changed\?"):
            file.read_image(0)

    def test_through_a_link_in_another_folder(self, folder, tmp_path):
        build_scene(folder, tmp_path / "f.h5", replace(SMALL, images=ImageRules(embed=False)))
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "elsewhere" / "link.h5").symlink_to(tmp_path / "f.h5")
        with CorrespondenceFile(tmp_path / "elsewhere" / "link.h5") as file:
            assert file.read_image(0).shape == file.images[0].size[::-1]

    def test_an_image_that_was_drawn_into_is_read_afresh(self, small_built):
        with CorrespondenceFile(small_built) as file:
            before = file.read(0).first.copy()
            file.read(0).first[:] = 0
            np.testing.assert_array_equal(file.read(0).first, before)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("pairs/images", 999),
            ("pairs/images", -1),
            ("pairs/correspondences", 10**9),
            ("images/keypoints", -5),
            ("images/data", 10**9),
        ],
    )
    def test_tables_that_contradict_each_other(self, small_built, tmp_path, name, value):
        path = Path(shutil.copy(small_built, tmp_path / "f.h5"))
        with h5py.File(path, "a") as file:
            file[name][0] = value
        with pytest.raises(StorageError, match=rf"f\.h5.*damaged \({name}\)"):
            CorrespondenceFile(path)

    def test_keypoints_counted_from_the_end(self, small_built, tmp_path):
        path = Path(shutil.copy(small_built, tmp_path / "f.h5"))
        with h5py.File(path, "a") as file:
            file["correspondences/keypoints"][0] = -5
        with CorrespondenceFile(path) as file, pytest.raises(StorageError, match="pair 0 names keypoints"):
            file.read(0)

    def test_a_summary_of_another_kind(self, small_built, tmp_path):
        path = Path(shutil.copy(small_built, tmp_path / "f.h5"))
        with h5py.File(path, "a") as file:
            file["summary"][()] = json.dumps([1])
        with pytest.raises(StorageError, match="summary"):
            CorrespondenceFile(path)

    def test_columns_say_what_they_hold(self, small_built):
        with h5py.File(small_built) as file:
            assert file["images/part"].attrs["about"] == "0: train, 1: validation, 2: test"
            assert "predicts" in file["correspondences/log_scale_ratio"].attrs["about"]
