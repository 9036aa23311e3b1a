from __future__ import annotations

import contextlib
import errno
import json
import re
import shutil
import sqlite3

import pytest
from click.testing import CliRunner

from helpers import assert_one_error
from logpolar.cli import main
from logpolar.cli.match import match


def run(*words, command="matches"):
    return CliRunner().invoke(main, ["view", command, *map(str, words)])


@pytest.fixture
def photos(tmp_path, photo):
    import cv2

    paths = tmp_path / "a.png", tmp_path / "b.png"
    for path, piece in zip(paths, (photo[:80, :90], photo[200:280, 300:390]), strict=True):
        cv2.imwrite(str(path), piece)
    return paths


def test_takes_what_match_takes():
    own = {option for each in main.commands["view"].commands["matches"].params for option in each.opts}
    pictures = {"--colour-by", "--max-lines", "--inliers-only", "--compare"}
    assert {option for each in match.params for option in each.opts} - own == {"--html", "--h5", "--json"} | pictures


def test_unrelated_photos_are_called_so(photos, tmp_path):
    result = run(*photos, "-o", tmp_path / "pair.html", "-m", "logpolar-96-small")
    assert result.exit_code == 0
    assert "no common scene found" in result.stdout
    assert '"common_scene":false' in (tmp_path / "pair.html").read_text()


def test_the_page_of_match_is_the_same(photos, tmp_path):
    for command in (["view", "matches", "-o"], ["match", "--html"]):
        words = [*command, tmp_path / f"{command[0]}.html", *photos, "-m", "logpolar-96-small"]
        assert CliRunner().invoke(main, [str(word) for word in words]).exit_code == 0
    assert (tmp_path / "view.html").read_text() == (tmp_path / "match.html").read_text()


@pytest.mark.parametrize(
    ("output", "words"), [("pair.png", "pages are written as .html"), ("missing/pair.html", "does not exist")]
)
def test_output_that_is_no_page_or_has_no_folder(photos, tmp_path, output, words):
    assert_one_error(run(*photos, "-o", tmp_path / output), words)


def test_photo_that_is_not_there(photos, tmp_path):
    assert_one_error(run(photos[0], tmp_path / "gone.jpg", "-o", tmp_path / "pair.html"), "gone.jpg")
    assert not (tmp_path / "pair.html").exists()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """COLMAP's own synthetic scene: a model of five photos, which are not there, and its database."""
    pycolmap = pytest.importorskip("pycolmap")
    options = pycolmap.SyntheticDatasetOptions()
    options.num_rigs, options.num_cameras_per_rig, options.num_frames_per_rig = 1, 1, 5
    options.num_points3D = 40
    folder = tmp_path_factory.mktemp("colmap")
    (folder / "sparse" / "0").mkdir(parents=True)
    with pycolmap.Database.open(str(folder / "database.db")) as file:
        pycolmap.synthesize_dataset(options, file).write(str(folder / "sparse" / "0"))
    return folder


class TestModel:
    @staticmethod
    def data(path):
        return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text()).group(1))

    def view(self, tmp_path, *words):
        result = run(*words, "-o", tmp_path / "page.html", command="model")
        assert result.exit_code == 0, result.output
        return self.data(tmp_path / "page.html")

    def test_photos_that_moved_are_named_in_the_page(self, folder, tmp_path):
        data = self.view(tmp_path, folder)
        assert "5 of 5 photos registered" in data["verdict"]
        assert "the 5 photos are not in this page: none was found where it looked, see --photos" in data["verdict"]
        assert data["photos"][0]["keypoints"] > 0

    def test_photos_are_found_where_they_are_now(self, folder, tmp_path, photo):
        import cv2

        (tmp_path / "moved").mkdir()
        for each in self.view(tmp_path, folder)["photos"]:
            (tmp_path / "moved" / each["name"]).parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(tmp_path / "moved" / each["name"]), photo[:60, :80])
        data = self.view(tmp_path, folder / "sparse", "--photos", tmp_path / "moved")
        assert all(each["picture"] for each in data["photos"])

    def test_a_model_alone(self, folder, tmp_path):
        shutil.copytree(folder / "sparse" / "0", tmp_path / "alone" / "deep" / "model")
        data = self.view(tmp_path, tmp_path / "alone" / "deep" / "model")
        assert data["photos"][0]["keypoints"] is None
        assert data["findings"] == []

    def test_a_model_without_points(self, folder, tmp_path):
        import pycolmap

        model = pycolmap.Reconstruction(str(folder / "sparse" / "0"))
        for number in list(model.points3D):
            model.delete_point3D(number)
        (tmp_path / "empty").mkdir()
        model.write(str(tmp_path / "empty"))
        assert self.view(tmp_path, tmp_path / "empty")["findings"][0]["title"] == "Model 0 has no points"

    def test_a_project_whose_file_of_points_was_emptied(self, folder, tmp_path):
        """Its photos still name the points that they observe."""
        project = shutil.copytree(folder, tmp_path / "project")
        (project / "sparse" / "0" / "points3D.bin").write_bytes(bytes(8))
        assert self.view(tmp_path, project)["model"] is not None

    def test_a_database_without_a_model_gives_the_page_of_a_failure(self, folder, tmp_path):
        (tmp_path / "failed").mkdir()
        shutil.copyfile(folder / "database.db", tmp_path / "failed" / "database.db")
        data = self.view(tmp_path, tmp_path / "failed")
        assert data["model"] is None
        assert data["findings"][0]["title"].startswith("No model")

    def test_no_matches_at_all(self, folder, tmp_path):
        shutil.copyfile(folder / "database.db", tmp_path / "database.db")
        with contextlib.closing(sqlite3.connect(tmp_path / "database.db")) as tables:
            for table in ("matches", "two_view_geometries"):
                tables.execute(f"DELETE FROM {table}")
            tables.commit()
        data = self.view(tmp_path, tmp_path)
        assert "5 photos not paired with any other" in [finding["title"] for finding in data["findings"]]
        assert {photo["reason"] for photo in data["photos"]} == {"not paired with any photo"}

    def test_mistakes_are_one_line(self, folder, tmp_path):
        page = ("-o", tmp_path / "page.html")
        for words, expected in (
            ((tmp_path / "none", *page), "none: no such folder"),
            ((tmp_path, *page), "no sparse model"),
            ((folder, "--photos", tmp_path / "gone", *page), "gone: no such folder"),
            ((folder, "--database", tmp_path / "gone.db", *page), "gone.db"),
            ((folder, "-o", tmp_path / "page.png"), "pages are written as .html"),
            ((folder, "-o", tmp_path / "missing" / "page.html"), "does not exist"),
        ):
            assert_one_error(run(*words, command="model"), expected)
        assert list(tmp_path.iterdir()) == []

    def test_a_folder_that_cannot_be_written(self, folder, tmp_path, monkeypatch):
        def refuse(*arguments):
            raise PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "page.html"))

        monkeypatch.setattr("logpolar.viewing.pages.page.write_whole", refuse)
        assert_one_error(run(folder, "-o", tmp_path / "page.html", command="model"), "page.html")
