from __future__ import annotations

import sys
from dataclasses import replace

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from helpers import assert_one_error
from logpolar.cli import main
from logpolar.evaluation.pairs import Score
from logpolar.extraction import Extractor
from logpolar.models import load_model
from logpolar.sampling import Cartesian, LogPolar
from logpolar.training import photos as training


@pytest.fixture
def folder(tmp_path, photo):
    place = tmp_path / "photos"
    place.mkdir()
    for name, image in (("a.png", photo), ("b.png", photo[:, ::-1]), ("c.png", photo[::-1])):
        cv2.imwrite(str(place / name), image[20:240, 120:340])
    return place


@pytest.fixture
def asked(monkeypatch):
    """What the command asks the library for, in place of training."""
    calls = []

    def note(*arguments, **options):
        calls.append((*arguments, options))
        return Score(4, 100, 0.01, 0.9, 5, 0.5, 7, 0.75)

    monkeypatch.setattr(training, "train_on_photos", note)
    return calls


def run_train(*arguments: object):
    return CliRunner().invoke(main, ["train", *map(str, arguments)])


class TestOptions:
    def test_defaults_are_those_of_the_shipped_model(self, folder, tmp_path, asked):
        result = run_train(folder, "-o", tmp_path / "mine.safetensors")
        assert result.exit_code == 0
        (files, output, recipe, device, *_), *more = asked
        assert more == []
        assert [path.name for path in files] == ["a.png", "b.png", "c.png"]
        assert output == tmp_path / "mine.safetensors"
        assert device == "cpu"
        shipped = load_model("logpolar-96").card
        assert recipe.pattern == shipped.sampling
        assert recipe.network == shipped.network
        assert recipe.training.steps == shipped.training["optimisation"]["steps"]

    def test_cartesian_has_its_own_defaults(self, folder, tmp_path, asked):
        run_train(folder, "-o", tmp_path / "mine.safetensors", "--pattern", "cartesian")
        recipe = asked[0][2]
        assert recipe.pattern == Cartesian(12.0)
        assert not recipe.circular

    def test_options_reach_the_recipe(self, folder, tmp_path, asked):
        options = "--lambda 32 --inner-radius 1 --no-circular --no-antialias --views 3 --steps 7 --scale-jitter 0.1"
        run_train(folder, "-o", tmp_path / "mine.safetensors", *options.split(), "--seed", 5, "--data", "my photos")
        _, _, recipe, *rest = asked[0]
        assert recipe.pattern == LogPolar(32.0, inner_radius=1.0, antialias=False)
        assert (recipe.circular, recipe.views, recipe.batch.scale_jitter) == (False, 3, 0.1)
        assert (recipe.training.steps, recipe.training.seed) == (7, 5)
        assert "my photos" in rest

    def test_score_and_file_are_told(self, folder, tmp_path, asked):
        output = run_train(folder, "-o", tmp_path / "mine.safetensors").stdout
        assert "rank1 0.9," in output
        assert f"wrote {tmp_path / 'mine.safetensors'}" in output


def test_trained_model_can_be_used(folder, tmp_path, monkeypatch, photo):
    """Everything is real but for the size of batches."""
    whole = training.train_on_photos

    def small(photos, output, recipe, *arguments, **options):
        return whole(
            photos, output, replace(recipe, batch=replace(recipe.batch, pairs=2, per_pair=4)), *arguments, **options
        )

    monkeypatch.setattr(training, "train_on_photos", small)
    monkeypatch.setattr(training, "_CHUNK", 64)
    path = tmp_path / "mine.safetensors"
    result = run_train(folder, "-o", path, "--steps", 2, "--views", 2, "--jobs", 2, "--data", "three photos")
    assert result.exit_code == 0, result.output
    assert "validation: pairs 4, " in result.stdout
    card = load_model(path).card
    assert card.name == "mine"
    assert card.training["data"] == "three photos"
    features = Extractor(path).extract(photo[:100, :100])
    assert len(features) > 10
    np.testing.assert_allclose(np.linalg.norm(features.descriptors, axis=1), 1, atol=1e-3)


class TestBadInput:
    def test_missing_photos(self, tmp_path):
        assert_one_error(run_train(tmp_path / "none", "-o", tmp_path / "mine.safetensors"), "none", "no such file")

    def test_folder_without_images(self, tmp_path):
        assert_one_error(run_train(tmp_path, "-o", tmp_path / "mine.safetensors"), "no images")

    def test_too_few_photos(self, folder, tmp_path):
        result = run_train(folder, "-o", tmp_path / "mine.safetensors", "--views", 1)
        assert_one_error(result, "too little to train on")
        assert not (tmp_path / "mine.safetensors").exists()

    def test_ending_that_is_no_model(self, folder, tmp_path):
        assert_one_error(run_train(folder, "-o", tmp_path / "mine.pt"), "mine.pt", ".safetensors")

    def test_folder_that_does_not_exist(self, folder, tmp_path):
        result = run_train(folder, "-o", tmp_path / "none" / "mine.safetensors")
        assert_one_error(result, "none", "does not exist")

    def test_device_that_is_not_there(self, folder, tmp_path, monkeypatch):
        monkeypatch.setattr(training.torch.cuda, "is_available", lambda: False)
        assert_one_error(run_train(folder, "-o", tmp_path / "mine.safetensors", "--device", "cuda"), "cuda")

    def test_without_torch_the_extra_is_named(self, folder, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "torch", None)
        assert_one_error(run_train(folder, "-o", tmp_path / "mine.safetensors"), "logpolar[torch]")

    @pytest.mark.parametrize("option", [("--steps", "0"), ("--inner-radius", "2"), ("--lambda", "0"), ("--views", "0")])
    def test_values_out_of_range_are_refused(self, folder, tmp_path, option):
        result = run_train(folder, "-o", tmp_path / "mine.safetensors", *option)
        assert result.exit_code == 2
        assert option[0] in result.stderr
