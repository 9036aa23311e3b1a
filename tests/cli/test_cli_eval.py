"""`logpolar eval` from end to end on tiny data, and what it says of bad input."""

from __future__ import annotations

import csv
import json
import shutil
import sys

import cv2
import h5py
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from dataset_commands import make_empty, make_file
from helpers import assert_one_error, assert_picture
from logpolar.cli import main
from logpolar.evaluation.descriptors import registry as opening
from logpolar.models.cards import ModelCard, NetworkOptions
from logpolar.models.export import save_model
from logpolar.models.network import DescriptorNetwork
from logpolar.sampling import LogPolar

SIFTS = ("-d", "sift", "-d", "rootsift")
VIEWS = ("00000100", "00000200")


def run(command: str, *arguments: object):
    return CliRunner().invoke(main, ["eval", command, *map(str, arguments)])


def succeed(command: str, *arguments: object):
    result = run(command, *arguments)
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    return result


def read(folder, protocol: str) -> dict:
    return json.loads((folder / f"{protocol}.json").read_text())


def rows(path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


@pytest.fixture(scope="module")
def model(tmp_path_factory, export_once):
    """A network that was never trained."""
    torch.manual_seed(0)
    card = ModelCard("tiny", "A test.", LogPolar(40, 8, 16), NetworkOptions(8, 16, circular=True), {}, {}, "MIT")
    path = tmp_path_factory.mktemp("model") / "untrained.safetensors"
    with export_once():
        save_model(path, DescriptorNetwork(card.network).eval(), card)
    return path


@pytest.fixture(scope="module")
def sequences(photo, tmp_path_factory):
    """One sequence of either split, of images 1 and 2."""
    folder = tmp_path_factory.mktemp("hpatches")
    for name, left in (("v_one", 60), ("i_one", 220)):
        (folder / name).mkdir()
        cv2.imwrite(str(folder / name / "1.png"), photo[80:260, left : left + 200])
        cv2.imwrite(str(folder / name / "2.png"), photo[86:266, left + 4 : left + 204])
        (folder / name / "H_1_2").write_text("1 0 -4\n0 1 -6\n0 0 1\n")
    return folder


@pytest.fixture(scope="module")
def amos(photo, tmp_path_factory):
    folder = tmp_path_factory.mktemp("amos")
    for number, view in enumerate(VIEWS):
        (folder / "Train" / view).mkdir(parents=True)
        for image in range(3):
            part = photo[150 * number : 150 * number + 160, 200:360] / 255.0
            cv2.imwrite(str(folder / "Train" / view / f"{image}.png"), 255 * part ** (0.7 + 0.3 * image))
    random = np.random.default_rng(0)
    lafs = np.zeros((30, 2, 3), np.float32)
    lafs[:, 0, 0] = lafs[:, 1, 1] = random.uniform(6, 12, 30)
    lafs[:, :, 2] = random.uniform(20, 140, (30, 2))
    tensors = [torch.zeros(30, 1), torch.from_numpy(lafs), torch.arange(30).remainder(2)]
    torch.save(tensors, folder / "train_patches.pt")
    return folder


class TestPatches:
    def test_tables_and_figure(self, photo_file, model, tmp_path, monkeypatch):
        monkeypatch.setattr(sys, "argv", ["logpolar", "eval", "patches", "a b.h5"])
        output = tmp_path / "deep" / "results"
        result = succeed("patches", photo_file, *SIFTS, "-d", model, "-o", output, "--resamples", 20, "--seed", 3)
        document = read(output, "patches")
        assert document["command"] == "logpolar eval patches 'a b.h5'"
        assert document["options"] == {"part": None, "pairs": 0, "seed": 3, "fixed_size": None, "resamples": 20}
        assert [each["name"] for each in document["descriptors"]] == ["SIFT", "RootSIFT", "untrained"]
        assert document["descriptors"][0]["identity"]["kind"] == "sift"
        assert document["versions"]["logpolar"]
        assert list(document["data"]) == ["photos"]
        found = document["results"]["RootSIFT"]["photos"]
        assert found["correspondences"] > 40
        assert found["fpr95_interval"][0] <= found["fpr95"] <= found["fpr95_interval"][1]
        assert document["results"]["RootSIFT"]["mean"]["fpr95"] == found["fpr95"]
        table = (output / "patches.md").read_text()
        assert table in result.output
        assert f"{100 * found['fpr95']:.2f}" in table
        assert [row["descriptor"] for row in rows(output / "patches.csv")] == [
            name for name in ("SIFT", "RootSIFT", "untrained") for _ in range(2)
        ]
        classes = rows(output / "patches-classes.csv")
        assert len(classes) == 3 * 2 * 30
        assert sum(int(row["right_pairs"]) for row in classes[:30]) <= found["correspondences"]
        assert_picture(output / "patches.png")

    def test_split_pairs_and_fixed_size(self, photo_file, tmp_path, without_figures):
        counts = []
        for options in ([], ["--split", "train"], ["--pairs", 2], ["--fixed-size", "median"], ["--fixed-size", 0.02]):
            succeed("patches", photo_file, "-d", "sift", "-o", tmp_path, "--resamples", 0, *options)
            values = read(tmp_path, "patches")["results"]["SIFT"]["mean"]
            counts.append((values["pairs"], values["correspondences"], values["fpr95"]))
        assert counts[1][0] < counts[0][0]
        assert counts[2][0] == 2
        assert counts[3][:2] == counts[4][:2] == counts[0][:2]
        assert len({share for _, _, share in counts}) == 5
        assert run("patches", photo_file, "-d", "sift", "-o", tmp_path, "--fixed-size", "0").exit_code == 2

    def test_several_scenes(self, photo_file, scene_file, tmp_path, without_figures):
        succeed("patches", photo_file, scene_file, "-d", "rootsift", "-o", tmp_path, "--resamples", 5)
        found = read(tmp_path, "patches")["results"]["RootSIFT"]
        mean = (found["photos"]["fpr95"] + found["scene"]["fpr95"]) / 2
        assert found["mean"]["fpr95"] == pytest.approx(mean, abs=1e-6)

    def test_missing_weights(self, photo_file, tmp_path, without_figures):
        arguments = (photo_file, "-d", "sift", "-d", "hardnet:no.pth", "-o", tmp_path / "results", "--resamples", 0)
        assert_one_error(run("patches", *arguments), "hardnet:no.pth", "no such file")
        assert not (tmp_path / "results").exists()
        result = succeed("patches", *arguments, "--skip-missing", "-d", "gone.safetensors")
        assert "| hardnet:no.pth | weights missing |" in result.output
        assert "| gone.safetensors | weights missing |" in result.output
        assert read(tmp_path / "results", "patches")["descriptors"][1]["missing"] == "weights missing"
        succeed("patches", photo_file, "-d", "hardnet:no.pth", "--skip-missing", "-o", tmp_path / "nothing")

    def test_without_matplotlib(self, photo_file, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.delitem(sys.modules, "logpolar.evaluation.figures", raising=False)
        result = run("patches", photo_file, "-d", "sift", "-o", tmp_path, "--resamples", 0)
        assert result.exit_code == 0
        assert "figures are left out" in result.stderr
        assert not (tmp_path / "patches.png").exists()


@pytest.mark.usefixtures("without_figures")
class TestCache:
    def test_second_run_and_other_commands_do_not_describe(self, photo_file, tmp_path, monkeypatch):
        output, cache = tmp_path / "results", tmp_path / "cache"
        arguments = (photo_file, "-d", "rootsift", "-o", output, "--cache", cache)
        direct = succeed("patches", *arguments[:-2])
        first = succeed("patches", *arguments)
        monkeypatch.setattr(opening, "root_sift", lambda *_, **__: pytest.fail("described again"))
        again = succeed("patches", *arguments)
        assert direct.output == first.output == again.output
        assert len(list(cache.iterdir())) == 1
        succeed("retrieval", *arguments)

    def test_other_settings_are_refused(self, photo_file, tmp_path):
        cache = tmp_path / "cache"
        for spec in ("rootsift", "rootsift,lambda=6"):
            arguments = ("patches", photo_file, "-o", tmp_path, "--cache", cache, "--resamples", 0)
            succeed(*arguments, "-d", spec)
        six, twelve = sorted(cache.iterdir(), key=lambda path: "lambda" not in path.name)
        shutil.copy(twelve, six)
        result = run(*arguments, "-d", "rootsift,lambda=6")
        assert_one_error(result, six.name, "descriptor.lambda = 12.0, not 6.0")

    def test_changed_image_is_noticed(self, photo_file, tmp_path):
        cache = tmp_path / "cache"
        arguments = ("patches", photo_file, "-o", tmp_path, "--cache", cache, "-d", "sift", "--resamples", 0)
        succeed(*arguments)
        with h5py.File(next(cache.iterdir()), "a") as file:
            next(iter(file["images"].values())).attrs["digest"] = "other"
        assert_one_error(run(*arguments), "have changed since")


class TestRetrieval:
    def test_table_and_figure(self, photo_file, model, tmp_path):
        options = ("--matches", 20, "--distractors", 30)
        succeed("retrieval", photo_file, *SIFTS, "-d", model, "-o", tmp_path, *options)
        found = read(tmp_path, "retrieval")["results"]["RootSIFT"]["mean"]
        assert 0 < found["distractors"] <= 30
        shares = list(found["shares"].values())
        assert shares == sorted(shares)
        assert shares[0] > 0.3
        assert found["shares"]["50"] == 1
        assert len(rows(tmp_path / "retrieval.csv")) == 6
        assert_picture(tmp_path / "retrieval.png")


class TestHPatches:
    def test_tables_and_figures(self, sequences, model, tmp_path):
        options = ("--keypoints", 120, "--rotations", "0,90", "--zooms", "0.5,1", "--cache", tmp_path / "cache")
        result = succeed("hpatches", sequences, *SIFTS, "-d", model, "-o", tmp_path, *options)
        found = read(tmp_path, "hpatches")["results"]["SIFT"]
        assert [(each["options"]["turn"], each["options"]["zoom"]) for each in found] == [(0, 1), (90, 1), (0, 0.5)]
        assert found[0]["splits"]["viewpoint"]["rank1"] > 0.9
        assert len(rows(tmp_path / "hpatches.csv")) == 3 * 3 * 2
        assert len(list((tmp_path / "cache").iterdir())) == 3
        for name in ("mma", "turns", "zooms"):
            assert_picture(tmp_path / f"hpatches-{name}.png")
        again = succeed("hpatches", sequences, *SIFTS, "-d", model, "-o", tmp_path, *options)
        assert again.output == result.output

    def test_fixed_size(self, sequences, model, tmp_path, without_figures):
        """The same correspondences, other descriptors, and caches of their own."""
        found, options = [], ("--keypoints", 120, "--cache", tmp_path / "cache")
        for more in ([], ["--fixed-size", "median"], ["--fixed-size", 0.02]):
            succeed("hpatches", sequences, "-d", "sift", "-d", model, "-o", tmp_path, *options, *more)
            document = read(tmp_path, "hpatches")
            assert document["options"]["fixed_size"] == (more[-1] if more else None)
            found.append([document["results"][name][0]["splits"]["viewpoint"] for name in ("SIFT", "untrained")])
        for scores in zip(*found, strict=True):
            assert len({score["correspondences"] for score in scores}) == 1
        caches = list((tmp_path / "cache").iterdir())
        assert len(caches) == 6
        described = set()
        for cache in caches:
            with h5py.File(cache) as file:
                described.add(file["images"]["v_one%2F1"][:].tobytes())
        assert len(described) == 6

    def test_whole_features(self, sequences, tmp_path, without_figures):
        """Ranks and matches of their own keypoints; rows in the order of the command line."""
        options = ("--keypoints", 120, "--cache", tmp_path / "cache", "--detector", "opencv:GFTTDetector")
        specs = (
            "-d",
            "opencv:ORB",
            "-d",
            "sift",
            "-d",
            "opencv:SIFT",
            "-d",
            "kornia:DISK,weights=no",
            "--skip-missing",
        )
        results = [succeed("hpatches", sequences, *specs, "-o", tmp_path, *options).output for _ in range(2)]
        assert results[0] == results[1]
        document = read(tmp_path, "hpatches")
        assert list(document["results"]) == ["OpenCV ORB", "SIFT", "OpenCV SIFT"]
        assert document["options"]["detector"]["class"] == "GFTTDetector"
        found = {name: scores[0]["splits"]["viewpoint"] for name, scores in document["results"].items()}
        assert len({score["correspondences"] for score in found.values()}) == 3
        assert all(score["matching_accuracy"][2] > 0.8 for score in found.values())
        assert found["OpenCV SIFT"]["rank1"] > 0.8
        assert "| kornia:DISK,weights=no | weights missing |" in results[0]
        assert "Keypoints: opencv GFTTDetector." in results[0]
        assert len(list((tmp_path / "cache").iterdir())) == 3

    def test_bad_folders(self, sequences, tmp_path):
        arguments = ("-d", "sift", "-o", tmp_path / "results")
        assert_one_error(run("hpatches", tmp_path / "nowhere", *arguments), "nowhere", "no such file")
        assert_one_error(run("hpatches", sequences / "v_one", *arguments), "no HPatches sequences")
        half = shutil.copytree(sequences, tmp_path / "half")
        (half / "v_one" / "H_1_2").unlink()
        assert_one_error(run("hpatches", half, *arguments), "v_one", "no homography H_1_2")
        (half / "v_one" / "H_1_2").write_text("404")
        assert_one_error(run("hpatches", half, *arguments), "not a homography")
        assert_one_error(run("hpatches", sequences, *arguments, "--mode", "full"), "no image 3")
        (half / "i_one" / "2.png").write_bytes(b"\x89PNG")
        (half / "v_one" / "H_1_2").write_text("1 0 -4\n0 1 -6\n0 0 1\n")
        assert_one_error(run("hpatches", half, *arguments), "2.png")
        assert_one_error(run("hpatches", sequences, *arguments, "--rotations", "0,x"), "--rotations", "0,x")
        assert_one_error(run("hpatches", sequences, *arguments, "--zooms", "8"), "0.25 to 4")


class TestAmos:
    def test_lambdas(self, amos, model, tmp_path, without_figures):
        options = ("--lambdas", "2,12", "--cache", tmp_path / "cache")
        result = succeed("amos", amos, *SIFTS, "-d", model, "-d", "sift,lambda=6", "-o", tmp_path, *options)
        document = read(tmp_path, "amos")
        assert [each["spec"] for each in document["descriptors"]] == [
            *(f"{name},lambda={support}" for name in ("sift", "rootsift") for support in (2, 12)),
            *(str(model), "sift,lambda=6"),
        ]
        assert all(found["pairs"] == 30 for found in document["results"].values())
        assert document["results"]["SIFT (lambda=2)"]["rank1"] > 0.3
        assert len(rows(tmp_path / "amos.csv")) == 6
        assert "images_in_views.npy is missing" in result.output

    def test_bad_folders(self, amos, tmp_path):
        arguments = ("-d", "sift", "-o", tmp_path / "results")
        assert_one_error(run("amos", tmp_path / "nowhere", *arguments), "train_patches.pt", "no such file")
        half = shutil.copytree(amos, tmp_path / "half")
        data = (half / "train_patches.pt").read_bytes()
        (half / "train_patches.pt").write_bytes(data[: len(data) // 2])
        assert_one_error(run("amos", half, *arguments), "train_patches.pt", "incomplete")
        (half / "train_patches.pt").write_bytes(data)
        shutil.rmtree(half / "Train" / VIEWS[1])
        assert_one_error(run("amos", half, *arguments), "view number 1")
        assert_one_error(run("amos", amos, *arguments, "--lambdas", "-3"), "--lambdas")


class TestBadInput:
    def test_files(self, photo_file, tmp_path):
        arguments = ("-d", "sift", "-o", tmp_path / "results")
        (tmp_path / "text.h5").write_text("no")
        assert_one_error(run("patches", tmp_path / "none.h5", *arguments), "none.h5: no such file")
        assert_one_error(run("retrieval", tmp_path / "text.h5", *arguments), "not an HDF5 file")
        assert_one_error(run("patches", make_file(tmp_path / "half.h5", [1.0], False), *arguments), "is incomplete")
        assert_one_error(run("patches", photo_file, photo_file, *arguments), "same name")
        shutil.copy(photo_file, tmp_path / "mean.h5")
        assert_one_error(run("patches", tmp_path / "mean.h5", *arguments), "'mean'")
        empty = make_empty(tmp_path / "empty.h5")
        for command in ("patches", "retrieval"):
            assert_one_error(run(command, empty, *arguments), "empty.h5", "no correspondences")

    def test_descriptors(self, photo_file, tmp_path):
        (tmp_path / "text.pth").write_text("no network")
        for spec, words in {
            "sifd": "unknown name 'sifd'",
            "sift,lambda=no": "lambda must be a positive number",
            f"onnx:{tmp_path / 'text.pth'}": "text.pth",
            f"torchscript:{tmp_path / 'text.pth'}": "text.pth",
        }.items():
            result = run("patches", photo_file, "-d", spec, "-o", tmp_path / "results")
            assert_one_error(result, f"descriptor '{spec}'", words)
        for command in ("patches", "retrieval", "amos"):
            result = run(command, photo_file, "-d", "opencv:ORB", "-o", tmp_path / "results")
            assert_one_error(result, "descriptor 'opencv:ORB': has its own keypoints")
        result = run("patches", photo_file, "-d", "sift", "-d", "sift,lambda=12", "-o", tmp_path / "results")
        assert_one_error(result, "'sift' and 'sift,lambda=12' are the same")
        result = run("patches", photo_file, "-d", "sift", "-o", tmp_path / "results", "--device", "tpu")
        assert_one_error(result, "must be cpu or cuda")
