"""What COLMAP's own way from photos to a model says of bad photos; its results are tested where they are measured."""

from __future__ import annotations

import shutil

import cv2
import pytest

from logpolar.errors import ImageError, LogpolarError, StorageError
from logpolar.sfm.colmap_sift import SiftOptions, reconstruct_with_sift
from logpolar.sfm.database_files import read_content
from logpolar.sfm.mapper import NoModelError

FEW = SiftOptions(keypoints=50)


def test_too_few_photos(scene, tmp_path):
    with pytest.raises(LogpolarError, match="at least two photos"):
        reconstruct_with_sift(scene / "photos" / "deep", tmp_path / "model", FEW)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ImageError, match="no images in this folder"):
        reconstruct_with_sift(tmp_path / "empty", tmp_path / "model", FEW)
    assert not (tmp_path / "model").exists()


def test_a_file_that_is_no_photo(scene, tmp_path):
    photos = shutil.copytree(scene / "photos" / "deep", tmp_path / "photos")
    (photos / "text.jpg").write_text("no photo")
    with pytest.raises(StorageError, match="COLMAP can read only 1 of 2 photos"):
        reconstruct_with_sift(photos, tmp_path / "model", FEW)


def test_photos_without_anything_in_common(scene, photo, tmp_path):
    photos = shutil.copytree(scene / "photos" / "deep", tmp_path / "photos")
    cv2.imwrite(str(photos / "other.png"), photo[:200, :200])
    with pytest.raises(NoModelError, match=r"reconstruction failed.*2 photos"):
        reconstruct_with_sift(photos, tmp_path / "model", FEW)
    assert read_content(tmp_path / "model" / "database.db").verified == 0
    assert not (tmp_path / "model" / "sparse").exists()
