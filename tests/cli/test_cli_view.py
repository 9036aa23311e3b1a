from __future__ import annotations

import pytest
from click.testing import CliRunner

from helpers import assert_one_error
from logpolar.cli import main
from logpolar.cli.match import match


def run(*words):
    return CliRunner().invoke(main, ["view", "matches", *map(str, words)])


@pytest.fixture
def photos(tmp_path, photo):
    import cv2

    paths = tmp_path / "a.png", tmp_path / "b.png"
    for path, piece in zip(paths, (photo[:80, :90], photo[200:280, 300:390]), strict=True):
        cv2.imwrite(str(path), piece)
    return paths


def test_takes_what_match_takes():
    own = {option for each in main.commands["view"].commands["matches"].params for option in each.opts}
    assert {option for each in match.params for option in each.opts} - own == {"--html", "--h5", "--json"}


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
