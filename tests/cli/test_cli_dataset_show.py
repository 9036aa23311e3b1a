from __future__ import annotations

import json
import re
import shutil
import sys

import cv2
import h5py
import numpy as np
import pytest
from matplotlib.figure import Figure

from dataset_commands import NOTHING_FOUND, make_empty, make_file, run
from helpers import assert_one_error
from logpolar.datasets import page, pictures
from logpolar.datasets.correspondences import Correspondences
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.writing import CorrespondenceWriter, ImageRecord, PairRecord
from logpolar.features.files import FeatureWriter
from logpolar.keypoints import Keypoints


@pytest.fixture
def quick(monkeypatch):
    """Without the figure, which is slow and tested elsewhere."""
    monkeypatch.setattr(pictures, "plot_statistics", lambda *arguments: Figure((1, 1)))


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
        assert ["pairs", "of", "train", "6"] in lines
        assert ["pairs", "of", "test", "0"] in lines
        causes = [line[1:] for line in lines if line[0] == "keypoints:"]
        assert causes == [[*cause.split(), str(count)] for cause, count in rejects.items() if count]
        assert len(causes) > 3
        assert not [line for line in lines if line[-1] == "0" and line[0] in ("keypoints:", "image")]

    def test_how_scales_disagree(self, tmp_path):
        result = run("show", make_file(tmp_path / "f.h5", [1, 1, 3]))
        assert "scale mismatch: 50 %: 1.00x, 90 %: 2.60x, 95 %: 2.80x, 99 %: 2.96x; above 2x: 33.33 %" in (
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
        assert "scale mismatch: none" in result.stdout
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

    def test_of_photos_there_is_no_depth(self, photo_file, tmp_path, quick):
        assert run("show", photo_file, "-o", tmp_path).exit_code == 0
        assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.jpg", "patches.png", "statistics.png"]

    def test_of_an_incomplete_file(self, tmp_path, quick):
        result = run("show", make_file(tmp_path / "f.h5", [1], finish=False), "-o", tmp_path / "out")
        assert result.exit_code == 0
        assert (tmp_path / "out" / "pairs.jpg").exists()

    def test_count_part_and_seed(self, photo_file, tmp_path, quick):
        def pages(*options):
            assert run("show", photo_file, "-o", tmp_path, *options).exit_code == 0
            return cv2.imread(str(tmp_path / "pairs.jpg"))

        one, two, validation = pages("--count", 1), pages("--count", 2), pages("--split", "validation")
        assert two.shape[1] == validation.shape[1] == 2 * one.shape[1] + 8  # a third would be in a second row
        assert pages("--count", 3).shape[0] > 1.5 * two.shape[0]
        first, again, other = pages(), pages("--seed", 0), pages("--seed", 1)
        np.testing.assert_array_equal(first, again)
        assert first.shape != other.shape or (first != other).any()

    def test_of_a_part_without_pairs(self, scene_file, tmp_path):
        assert_one_error(run("show", scene_file, "-o", tmp_path / "out", "--split", "test"), NOTHING_FOUND)
        assert list(tmp_path.iterdir()) == []

    def test_where_all_scales_disagree_a_little(self, tmp_path, quick):
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
        monkeypatch.delitem(sys.modules, "logpolar.viewing.plotting", raising=False)
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

    def test_an_image_that_was_damaged(self, tmp_path, quick):
        path = make_file(tmp_path / "f.h5", [1])
        data = path.read_bytes()
        path.write_bytes(data.replace(b"IDAT", b"XDAT"))
        result = run("show", path, "-o", tmp_path / "out")
        assert_one_error(result, "f.h5", "damaged")

    def test_an_image_that_is_gone(self, tmp_path, quick):
        point = Keypoints.from_points([[5, 5]])
        images = [ImageRecord(name, "train", (64, 64), point, path=f"{name}.png") for name in "ab"]
        one = np.zeros(1, np.float32)
        found = Correspondences(point, point, np.zeros((1, 2), np.int32), np.eye(2, dtype=np.float32)[None], one, one)
        with CorrespondenceWriter(tmp_path / "f.h5", {}) as writer:
            writer.add(images, [PairRecord("a", "b", found, {})])
        assert_one_error(run("show", tmp_path / "f.h5", "-o", tmp_path / "out"), "a.png", "no such file")


@pytest.fixture
def no_plot(monkeypatch):
    """Without the figure, which is slow and tested elsewhere."""
    monkeypatch.setattr(page, "_statistics_figure", lambda *arguments: [])


def sections(path):
    data = json.loads(re.search(r'id="data">(.*?)</script>', path.read_text()).group(1))
    return {section["title"]: section for section in data["sections"]}


class TestPage:
    def test_tables_and_pictures_of_a_scene(self, scene_file, tmp_path, no_plot):
        result = run("show", scene_file, "--html", tmp_path / "data.html", "--count", 2)
        assert result.exit_code == 0, result.output
        found = sections(tmp_path / "data.html")
        assert list(found) == ["Content", "Images", "Image pairs", "Pairs to look at", "Patches", "Depth"]
        with CorrespondenceFile(scene_file) as file:
            counts = file.counts()
        content = dict(found["Content"]["tables"][0]["rows"])
        assert content["correspondences"] == str(counts["correspondences"])
        settings = dict(found["Content"]["tables"][3]["rows"])
        assert settings["pairs"].startswith("min_shared ")
        assert not any("{" in value for value in settings.values())
        images, pairs = (found[name]["tables"][0]["rows"] for name in ("Images", "Image pairs"))
        assert len(images) == counts["images"]
        assert sum(int(row[3]) for row in pairs) == counts["correspondences"]
        assert sum(int(row[4]) for row in images) == 2 * counts["correspondences"]
        assert len(found["Pairs to look at"]["figures"]) == 2
        assert "red is unknown" in found["Depth"]["figures"][0]["caption"]

    def test_of_many_pairs_those_with_the_most_correspondences(self, scene_file, tmp_path, no_plot, monkeypatch):
        monkeypatch.setattr(page, "MAX_ROWS", 2)
        run("show", scene_file, "--html", tmp_path / "data.html", "--count", 1)
        table = sections(tmp_path / "data.html")["Image pairs"]["tables"][0]
        with CorrespondenceFile(scene_file) as file:
            counts = sorted(int(end - start) for start, end in file.correspondence_rows)
        assert sorted(int(row[3]) for row in table["rows"]) == counts[-2:]
        assert table["caption"] == "The 2 of 6 pairs with the most correspondences."

    def test_without_depth_and_with_images_left_out(self, tmp_path, no_plot):
        run("show", make_file(tmp_path / "f.h5", [1, 3]), "--html", tmp_path / "data.html")
        found = sections(tmp_path / "data.html")
        assert "Depth" not in found
        assert ["c.png", "c.png: not an image"] in found["Content"]["tables"][-1]["rows"]

    def test_nothing_found(self, tmp_path, no_plot):
        result = run("show", make_empty(tmp_path / "f.h5"), "--html", tmp_path / "data.html")
        assert result.exit_code == 0, result.output
        assert sections(tmp_path / "data.html")["Pictures"]["notes"] == ["No correspondences to show."]

    def test_bad_output(self, scene_file, tmp_path):
        assert_one_error(run("show", scene_file, "--html", tmp_path / "data.png"), "pages are written as .html")
        assert_one_error(run("show", scene_file, "--html", tmp_path / "no" / "data.html"), "does not exist")
