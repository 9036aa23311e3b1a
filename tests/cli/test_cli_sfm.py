from __future__ import annotations

import json
import shutil
import sys

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from helpers import assert_one_error, assert_picture
from logpolar.cli import main
from logpolar.features.files import FeatureFile
from synthetic_world import standard_world

FEW = (
    "--model",
    "logpolar-96-small",
    "--min-size",
    "0",
    "--max-keypoints",
    "300",
    "--jobs",
    "1",
    "--pairing",
    "sequential",
    "--overlap",
    "3",
)


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
    report = json.loads(run_sfm(photos, tmp_path / "model", *FEW, "--json").stdout)
    assert (len(report["registered"]), list(report["left_out"])) == (4, ["text.jpg"])


def test_masks_and_quality(photos, tmp_path):
    """One mask hides half of a photo, one has another size, the others are missing: said, and the rest is done."""
    half = np.full((240, 320), 255, np.uint8)
    half[:, :160] = 0
    (tmp_path / "masks").mkdir()
    for name, mask in (("0.png.png", half), ("1.png.png", half[:10])):
        cv2.imwrite(str(tmp_path / "masks" / name), mask)
    options = ("--quality", "low", "--masks", tmp_path / "masks", "--quiet")
    result = run_sfm(photos, tmp_path / "model", *FEW, *options)
    assert result.exit_code == 1
    assert "1.png.png: the mask has 320 x 10 pixels, its photo 320 x 240" in result.stderr
    assert "2.png: no mask in" in result.stderr
    assert "left out: " in result.stderr
    assert result.stdout == ""
    with FeatureFile(tmp_path / "model" / "features.h5") as file:
        assert file.read("0.png").keypoints.xy[:, 0].min() > 159
        assert file.read("2.png").keypoints.xy[:, 0].min() < 100
        assert file.settings["max_size"] == 1000


def test_two_of_many_photos_are_a_failure(photos, tmp_path):
    many = shutil.copytree(photos, tmp_path / "many")
    random = np.random.default_rng(0)
    for number in range(6):
        noise = random.integers(0, 255, (8, 8), dtype=np.uint8)
        cv2.imwrite(str(many / f"noise{number}.png"), noise)
    (tmp_path / "pairs.txt").write_text("0.png 1.png\n")
    few = (*FEW, "--pairs", tmp_path / "pairs.txt")
    result = run_sfm(many, tmp_path / "model", *few, "--min-model-size", 2)
    assert result.exit_code == 1
    assert "reconstruction failed" in result.stderr


def test_mistakes_are_one_line(photos, tmp_path, monkeypatch):
    assert_one_error(run_sfm(tmp_path / "none", tmp_path / "model"), "none: no such folder of photos")
    assert_one_error(run_sfm(photos, photos / "model"), "inside the photos' folder")
    bad = run_sfm(photos, tmp_path / "model", "--camera-params", "1,2")
    assert_one_error(bad, "SIMPLE_RADIAL has 4 parameters (f, cx, cy, k), not 2")
    assert_one_error(run_sfm(photos, tmp_path / "model", "--poses", tmp_path / "none"), "none: no such file")
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    assert_one_error(run_sfm(photos, tmp_path / "model"), "pip install 'logpolar[sfm]'")
    assert not (tmp_path / "model").exists()
