"""`logpolar eval sfm` from end to end on a tiny world, and what it says of bad input."""

from __future__ import annotations

import csv
import json
import shutil
import sys

import pycolmap
import pytest
from click.testing import CliRunner

from helpers import assert_one_error
from logpolar.cli import main
from logpolar.evaluation.descriptors import registry as opening
from logpolar.evaluation.report.runs import read_runs
from logpolar.evaluation.report.sections import paper_sections

SMALL = ("-j", 1, "--keypoints", 300, "--repeats", 2)


@pytest.fixture(scope="module")
def scene(castle):
    return castle[0]


def run(*arguments: object):
    return CliRunner().invoke(main, ["eval", "sfm", *map(str, arguments)])


@pytest.fixture(scope="module")
def measured(scene, tmp_path_factory):
    """Three photos of six reduced, by three descriptors one of which is absent."""
    place = tmp_path_factory.mktemp("sfm")
    specs = ("-d", "rootsift", "-d", "colmap-sift", "-d", "hardnet:no.pth", "--skip-missing")
    arguments = (scene, *specs, *SMALL, "--downscale", 1.5, "--cache", place / "cache", "-o", place / "results")
    result = run(*arguments)
    assert result.exit_code == 0, result.stderr
    return place, arguments


class TestResults:
    def test_document(self, measured):
        place, _ = measured
        document = json.loads((place / "results" / "sfm.json").read_text())
        assert list(document) == ["protocol", "command", "versions", "data", "options", "descriptors", "results"]
        assert document["versions"]["pycolmap"] == pycolmap.__version__
        assert (document["options"]["seed"], document["options"]["shrink"]) == (0, 1.5)
        assert document["data"]["castle"]["images"] == 6
        assert [each["name"] for each in document["descriptors"]] == ["RootSIFT", "COLMAP SIFT", "hardnet:no.pth"]
        assert document["descriptors"][1]["identity"]["max_ratio"] == 0.8
        assert list(document["results"]) == ["RootSIFT", "COLMAP SIFT"]
        for found in document["results"].values():
            score = found["scenes"]["castle"]
            assert found["ratio"] == 0.8
            assert (score["images"], score["reduced"], score["pairs"]) == (6, 3, 15)
            counts = [len(each["rows"]) for each in score["repeats"]]
            assert (len(counts), score["registered"]) == (2, sum(counts) / 2)
            assert (score["registered_least"], score["registered_most"]) == (min(counts), max(counts))
            assert found["all"]["registered"] == score["registered"] <= 6
            assert score["reduced_registered"] <= min(3, score["registered"])
            assert 0 < score["keypoints_mean"] <= 300

    def test_tables(self, measured):
        place, _ = measured
        document = json.loads((place / "results" / "sfm.json").read_text())
        rows = list(csv.DictReader((place / "results" / "sfm.csv").read_text().splitlines()))
        assert [(row["descriptor"], row["scene"]) for row in rows] == [
            ("RootSIFT", "castle"),
            ("COLMAP SIFT", "castle"),
        ]
        table = (place / "results" / "sfm.md").read_text()
        found = document["results"]["COLMAP SIFT"]["all"]
        least, most = found["registered_least"], found["registered_most"]
        assert f"| COLMAP SIFT | castle | {found['registered']:.4g} of 6 ({least} - {most}) |" in table
        assert "Means of 2 models from the same matches" in table
        assert "| hardnet:no.pth | weights missing |" in table
        assert "is downscaled 1.5 times" in table

    def test_report_takes_it(self, measured):
        section = paper_sections(read_runs([measured[0] / "results"]))[-1]
        assert section.title == "Structure from motion"
        assert [row[:2] for row in section.tables[0].rows] == [["castle", "RootSIFT"], ["castle", "COLMAP SIFT"]]

    def test_second_run_does_not_describe(self, measured, monkeypatch):
        place, arguments = measured
        before = json.loads((place / "results" / "sfm.json").read_text())["results"]["RootSIFT"]
        monkeypatch.setattr(opening, "root_sift", lambda *_, **__: pytest.fail("described again"))
        assert run(*arguments).exit_code == 0
        again = json.loads((place / "results" / "sfm.json").read_text())["results"]["RootSIFT"]
        assert again["scenes"]["castle"]["keypoints_mean"] == before["scenes"]["castle"]["keypoints_mean"]


def test_bad_input(scene, tmp_path, monkeypatch):
    twin = shutil.copytree(scene, tmp_path / "deep" / "castle")
    named_all = shutil.copytree(scene, tmp_path / "all")
    photos = tmp_path / "photos"
    shutil.copytree(scene / "images", photos / "images")
    cases = (
        ((scene, twin), "same name"),
        ((named_all,), "'all'"),
        ((tmp_path / "nowhere",), "no such file"),
        ((photos,), "not a scene with known poses"),
        ((scene, "--images", 1), "at least two images"),
        ((scene, "-d", "unknown-thing"), "unknown name 'unknown-thing'"),
        ((scene, "-d", "colmap-sift,lambda=3"), "colmap-sift"),
        ((scene, "--device", "abacus"), "abacus"),
    )
    for arguments, words in cases:
        assert_one_error(run(*arguments, "-d", "rootsift", *SMALL, "-o", tmp_path / "out"), words)
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    assert_one_error(run(scene, "-d", "rootsift", "-o", tmp_path / "out"), "pip install 'logpolar[sfm]'")
    assert not (tmp_path / "out").exists()
