from __future__ import annotations

import re

import cv2
import pytest
from click.testing import CliRunner

from helpers import assert_one_error
from logpolar.cli import main


def run_demo(*options: str):
    return CliRunner().invoke(main, ["demo", *options])


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The demo with its usual settings: result and picture."""
    path = tmp_path_factory.mktemp("demo") / "picture.png"
    return run_demo("-o", str(path)), path


def row(output: str, name: str) -> tuple[int, int, int, float]:
    """Matches, correct ones, inliers and error of one descriptor."""
    found = re.search(rf"^{name}\s+(\d+)\s+(\d+)\s+\(\d+ %\)\s+(\d+)\s+([\d.]+) px$", output, re.MULTILINE)
    assert found, output
    return int(found[1]), int(found[2]), int(found[3]), float(found[4])


def test_figures_of_the_model_stand_next_to_root_sift(usual):
    result, path = usual
    assert result.exit_code == 0
    assert result.stderr == ""
    assert re.search(r"keypoints: \d+ and \d+", result.stdout)
    ours, baseline = row(result.stdout, "logpolar-96"), row(result.stdout, "RootSIFT")
    for matches, correct, inliers, error in (ours, baseline):
        assert matches >= correct > 50
        assert matches >= inliers > 50
        assert error < 0.2
    assert ours[1] > baseline[1]
    assert f"wrote {path}" in result.stdout


def test_picture_shows_photo_and_lines(usual):
    picture = cv2.imread(str(usual[1]))
    height, width = picture.shape[:2]
    assert height > 2 * 512
    assert width > 512 + 150
    assert (picture == (80, 200, 60)).all(axis=2).sum() > 1000
    assert (picture == (60, 60, 230)).all(axis=2).sum() > 50
    assert picture[100:500, :500].std() > 40


def test_options_decide_the_second_view(tmp_path):
    result = run_demo("-o", str(tmp_path / "demo.jpg"), "--zoom=5", "--rotation=0", "--model=paper-cartesian-12")
    assert result.exit_code == 0
    assert "5x smaller" in result.stdout
    assert "rotated by 0 degrees" in result.stdout
    assert row(result.stdout, "paper-cartesian-12")[0] > 10
    assert cv2.imread(str(tmp_path / "demo.jpg")) is not None


def test_without_output_the_picture_lies_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_demo("--zoom", "6", "--model", "logpolar-96-small").exit_code == 0
    assert (tmp_path / "demo.png").stat().st_size > 10000


def test_output_in_a_folder_that_does_not_exist(tmp_path):
    assert_one_error(run_demo("-o", str(tmp_path / "none" / "demo.png")), "none", "does not exist")


def test_output_with_an_ending_that_is_no_picture(tmp_path):
    assert_one_error(run_demo("-o", str(tmp_path / "demo.txt")), ".png")


def test_unknown_model_names_those_there_are(tmp_path):
    result = run_demo("-o", str(tmp_path / "demo.png"), "--model", "nonsense")
    assert_one_error(result, "nonsense", "logpolar-96", "paper-cartesian-12")
    assert not (tmp_path / "demo.png").exists()


@pytest.mark.parametrize("option", [("--zoom", "0.5"), ("--zoom", "7"), ("--noise", "-1"), ("--rotation", "left")])
def test_values_out_of_range_are_refused(option):
    result = run_demo(*option)
    assert result.exit_code == 2
    assert option[0] in result.stderr
