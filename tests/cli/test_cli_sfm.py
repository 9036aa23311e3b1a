from __future__ import annotations

import sys

import cv2
import pytest
from click.testing import CliRunner

from helpers import assert_one_error, assert_picture
from logpolar.cli import main
from synthetic_world import standard_world

FEW = ("--max-keypoints", "300", "--jobs", "1", "--pairing", "sequential", "--overlap", "3")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Four views and a file that is no photo."""
    place = tmp_path_factory.mktemp("sfm") / "photos"
    place.mkdir()
    world = standard_world(cameras=6)
    for index, camera in enumerate(world.cameras[:4]):
        cv2.imwrite(str(place / f"{index}.png"), world.render(camera)[0])
    (place / "text.jpg").write_text("no photo")
    return place


def run_sfm(*arguments: object):
    return CliRunner().invoke(main, ["sfm", *map(str, arguments)])


def test_a_model_and_its_summary(photos, tmp_path):
    result = run_sfm(photos, tmp_path / "model", *FEW)
    assert result.exit_code == 1, result.output  # a photo was left out
    assert "text.jpg" in result.stderr
    assert "model: 4 of 4 photos registered" in result.stdout
    assert "mean track length" in result.stdout
    assert_picture(tmp_path / "model" / "summary.png")
    again = run_sfm(photos, tmp_path / "model", *FEW)
    assert "database and model are up to date" in again.stdout


def test_mistakes_are_one_line(photos, tmp_path, monkeypatch):
    assert_one_error(run_sfm(tmp_path / "none", tmp_path / "model"), "none: no such folder of photos")
    assert_one_error(run_sfm(photos, photos / "model"), "inside the photos' folder")
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    assert_one_error(run_sfm(photos, tmp_path / "model"), "pip install 'logpolar[sfm]'")
    assert not (tmp_path / "model").exists()
