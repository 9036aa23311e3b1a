from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from logpolar.errors import ImageError
from logpolar.images import find_images


def write(path: Path, image: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image)
    return path


class TestFinding:
    def test_folder_is_searched_to_any_depth_and_names_are_relative(self, tmp_path, small):
        for name in ("b.JPG", "a.png", "deep/er/c.tif"):
            write(tmp_path / name, small)
        (tmp_path / "notes.txt").write_text("no image")
        found = find_images([tmp_path])
        assert list(found) == ["a.png", "b.JPG", "deep/er/c.tif"]
        assert found["deep/er/c.tif"] == tmp_path / "deep/er/c.tif"

    def test_glob_takes_images_only(self, tmp_path, small):
        write(tmp_path / "a.png", small)
        (tmp_path / "a.txt").write_text("no image")
        assert list(find_images([f"{tmp_path}/a.*"])) == ["a.png"]

    def test_recursive_glob(self, tmp_path, small):
        write(tmp_path / "one/two/a.png", small)
        assert list(find_images([f"{tmp_path}/**/*.png"])) == ["a.png"]

    def test_existing_file_with_brackets_is_no_glob(self, tmp_path, small):
        write(tmp_path / "a[1].png", small)
        assert list(find_images([tmp_path / "a[1].png"])) == ["a[1].png"]

    def test_the_same_file_twice_counts_once(self, tmp_path, small):
        path = write(tmp_path / "a.png", small)
        assert list(find_images([path, tmp_path])) == ["a.png"]

    def test_two_files_of_one_name_are_refused(self, tmp_path, small):
        write(tmp_path / "one/a.png", small)
        write(tmp_path / "two/a.png", small)
        with pytest.raises(ImageError, match=r"'a\.png'.*one.*two"):
            find_images([tmp_path / "one", tmp_path / "two"])

    @pytest.mark.parametrize(
        ("path", "reason"), [("none.jpg", "no such"), ("none*.jpg", "no image"), ("", "no images")]
    )
    def test_nothing_there(self, tmp_path, path, reason):
        with pytest.raises(ImageError, match=reason):
            find_images([tmp_path / path])
