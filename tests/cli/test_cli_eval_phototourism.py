"""`logpolar eval phototourism` from end to end on a tiny world, and what it says of bad input."""

from __future__ import annotations

import csv
import json
import shutil

import h5py
import pytest
from click.testing import CliRunner

from helpers import assert_one_error, assert_picture
from logpolar.cli import main
from logpolar.evaluation.descriptors import registry as opening

SMALL = ("-j", 1, "--keypoints", 200, "--pairs", 3)
COLUMNS = (
    *("descriptor", "ratio", "scene", "views", "seed", "pairs", "maa10", "map15"),
    *("matches_median", "inliers_median", "registered"),
)


@pytest.fixture(scope="module")
def scene(castle):
    return castle[0]


def run(*arguments: object):
    return CliRunner().invoke(main, ["eval", "phototourism", *map(str, arguments)])


def measure(output, *arguments: object) -> dict:
    result = run(*SMALL, *arguments, "-o", output)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return json.loads((output / "phototourism.json").read_text())


class TestResults:
    def test_tables_and_figure(self, scene, tmp_path):
        bags = ("--bags-5", 1, "--bags-10", 1, "--bags-25", 0)
        stored = [measure(tmp_path / name, scene, "-d", "rootsift", *bags) for name in "ab"]
        assert stored[0] == stored[1]  # the same seed
        document = stored[0]
        assert list(document) == ["protocol", "command", "versions", "data", "options", "descriptors", "results"]
        assert "pycolmap" in document["versions"]
        assert document["options"]["seed"] == 0
        assert document["data"]["castle"]["bags"] == {"5": 1, "10": 0}
        found = document["results"]["RootSIFT"]
        assert list(found) == ["ratio", "maa10_by_tuned_ratio", "mean", "stereo", "multi_view"]
        assert found["stereo"]["castle"]["pairs"] == found["mean"]["two"]["pairs"] == 3
        assert found["multi_view"]["castle"]["pairs"] == found["mean"]["several"]["pairs"] == 10
        rows = list(csv.DictReader((tmp_path / "a" / "phototourism.csv").read_text().splitlines()))
        assert tuple(rows[0]) == COLUMNS
        assert [row["views"] for row in rows] == ["two", "bags of 5", "several", "two", "several"]
        table = (tmp_path / "a" / "phototourism.md").read_text()
        assert "5, 10 and 15 degrees (in the manner of 2019)" in table
        assert "1, 2, ... 10 degrees (2020)" in table
        assert f"| RootSIFT | castle | two | {found['stereo']['castle']['maa10']:.4f} |" in table
        assert_picture(tmp_path / "a" / "phototourism.png")

    def test_several_scenes_and_missing_weights(self, scene, tmp_path, without_figures):
        other = shutil.copytree(scene, tmp_path / "other")
        specs = ("-d", "sift", "-d", "hardnet:no.pth", "--skip-missing")
        document = measure(tmp_path, scene, other, *specs, "--no-multi-view")
        assert document["options"]["multi_view"] is False
        assert document["results"]["SIFT"]["mean"]["two"]["pairs"] == 6
        table = (tmp_path / "phototourism.md").read_text()
        assert "| SIFT | mean | two |" in table
        assert "| hardnet:no.pth | weights missing |" in table

    def test_tuned_ratio(self, scene, tmp_path, without_figures):
        other = shutil.copytree(scene, tmp_path / "other")
        document = measure(tmp_path, scene, "-d", "sift", "--tune", other, "--no-multi-view")
        found = document["results"]["SIFT"]
        best = max(found["maa10_by_tuned_ratio"].values())
        assert found["maa10_by_tuned_ratio"][f"{found['ratio']:g}"] == best
        assert document["options"]["tune"] == ["other"]


def test_fixed_size(scene, tmp_path, without_figures):
    arguments = (scene, "-d", "rootsift", "--no-multi-view", "--cache", tmp_path / "cache")
    detected, fixed = (measure(tmp_path, *arguments, *more) for more in ([], ["--fixed-size", "median"]))
    assert (detected["options"]["fixed_size"], fixed["options"]["fixed_size"]) == (None, "median")
    matches = [each["results"]["RootSIFT"]["stereo"]["castle"]["rows"] for each in (detected, fixed)]
    assert [row[-2] for row in matches[0]] != [row[-2] for row in matches[1]]
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_second_look(scene, tmp_path, without_figures):
    arguments = (scene, "-d", "rootsift", "--no-multi-view")
    documents = [measure(tmp_path, *arguments, "--second-look", look) for look in ("none", "same", "logpolar-sf")]
    counts = [sum(row[-2] for row in each["results"]["RootSIFT"]["stereo"]["castle"]["rows"]) for each in documents]
    assert counts[0] < min(counts[1:])
    assert counts[1] != counts[2]
    assert [each["options"]["second_look"] for each in documents[:2]] == ["none", "same"]
    assert documents[2]["options"]["second_look"]["kind"] == "pair"
    pair = (scene, "-d", "logpolar-sf", "--no-multi-view")
    own = [measure(tmp_path, *pair, "--second-look", look)["results"] for look in ("same", "logpolar-sf")]
    assert own[0] == own[1]
    whole = (scene, "-d", "opencv:ORB", "--no-multi-view", "--second-look", "same", *SMALL, "-o", tmp_path / "whole")
    assert_one_error(run(*whole), "describes whole images, and no regions")


def test_whole_features_and_detectors(scene, tmp_path, without_figures):
    """ORB has its own keypoints, RootSIFT those of the detector; the cache keeps them apart."""
    arguments = (scene, "-d", "rootsift", "-d", "opencv:ORB", "--no-multi-view", "--cache", tmp_path / "cache")
    sift, orb, again = (
        measure(tmp_path, *arguments, "--detector", detector) for detector in ("sift", "opencv:ORB", "sift")
    )
    assert sift["results"] == again["results"]
    assert sift["results"]["OpenCV ORB"] == orb["results"]["OpenCV ORB"]
    assert sift["results"]["RootSIFT"] != orb["results"]["RootSIFT"]
    assert [each["options"]["detector"]["kind"] for each in (sift, orb)] == ["sift", "opencv"]
    assert sift["descriptors"][1]["identity"]["keypoints"] == 200
    assert sift["results"]["OpenCV ORB"]["stereo"]["castle"]["matches_median"] > 0
    assert len(list((tmp_path / "cache").iterdir())) == 3
    assert "On their own keypoints: OpenCV ORB." in (tmp_path / "phototourism.md").read_text()


@pytest.mark.usefixtures("without_figures")
class TestCache:
    def test_second_run_does_not_describe(self, scene, tmp_path, monkeypatch):
        arguments = (scene, "-d", "rootsift", "--no-multi-view")
        direct = measure(tmp_path, *arguments)
        first = measure(tmp_path, *arguments, "--cache", tmp_path / "cache")
        monkeypatch.setattr(opening, "root_sift", lambda *_, **__: pytest.fail("described again"))
        again = measure(tmp_path, *arguments, "--cache", tmp_path / "cache", "--pairs", 2)
        assert first["results"] == direct["results"]
        assert again["results"]["RootSIFT"]["stereo"]["castle"]["pairs"] == 2

    def test_other_settings_are_refused(self, scene, tmp_path):
        cache = tmp_path / "cache"
        arguments = (scene, "-d", "rootsift", "--no-multi-view", "--cache", cache, *SMALL, "-o", tmp_path)
        found = []
        for contrast in (0, 0.01):
            assert run(*arguments, "--contrast", contrast).exit_code == 0
            found += [path for path in cache.iterdir() if path not in found]
        shutil.copy(found[0], found[1])
        assert_one_error(run(*arguments, "--contrast", 0.01), found[1].name, "contrast = 0.0, not 0.01")
        with h5py.File(found[0], "a") as file:
            for stored in file["images"].values():
                stored.attrs["digest"] = "other"
        assert_one_error(run(*arguments), "have changed since")


def test_bad_input(scene, tmp_path):
    mean = shutil.copytree(scene, tmp_path / "mean")
    twin = shutil.copytree(scene, tmp_path / "deep" / "castle")
    for arguments, words in (
        ((scene, scene), "given twice"),
        ((scene, twin), "same name"),
        ((mean,), "'mean'"),
        ((scene, "--tune", scene), "not evaluated"),
        ((scene, "--device", "abacus"), "abacus"),
        ((scene, "-d", "rootsift,lambda=12"), "are the same descriptor"),
        ((tmp_path / "nowhere",), "no such file"),
        ((scene, "-d", "opencv:ORB", "--fixed-size", "median"), "'OpenCV ORB' has its own keypoints"),
        ((scene, "-d", "opencv:Nothing"), "has no feature 'Nothing'"),
        ((scene, "--detector", "opencv:Nothing"), "detector 'opencv:Nothing'"),
    ):
        assert_one_error(run(*arguments, "-d", "rootsift", *SMALL, "-o", tmp_path / "out"), words)
    assert not (tmp_path / "out").exists()
