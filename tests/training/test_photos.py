from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from logpolar.datasets.options import CorrespondenceRules, ViewOptions
from logpolar.detection import SiftDetector
from logpolar.errors import LogpolarError
from logpolar.evaluation.pairs import Score
from logpolar.images import to_bytes
from logpolar.models import NetworkOptions, load_model
from logpolar.network import DescriptorNetwork
from logpolar.sampling import Cartesian, LogPolar, sample_patches
from logpolar.training.batches import BatchOptions
from logpolar.training.loop import TrainingOptions
from logpolar.training.photos import PhotoRecipe, make_card, split_photos, torch_describer, train_on_photos

RECIPE = PhotoRecipe(
    pattern=LogPolar(48, 8, 8, inner_radius=0.5),
    views=1,
    validation=5,
    view=ViewOptions(max_zoom=1.5, rules=CorrespondenceRules(max_count=30)),
    batch=BatchOptions(pairs=2, per_pair=8),
    training=TrainingOptions(steps=2, seed=3),
)


@pytest.fixture(scope="module")
def photos(photo, tmp_path_factory):
    """Five small photos; the first validates, the others train."""
    folder = tmp_path_factory.mktemp("photos")
    files = [folder / f"{number}.png" for number in range(5)]
    for file, (top, left) in zip(files, [(0, 0), (0, 250), (120, 120), (250, 0), (250, 250)], strict=True):
        cv2.imwrite(str(file), photo[top : top + 230, left : left + 250])
    return files


@pytest.fixture(scope="module")
def trained(photos, tmp_path_factory):
    output = tmp_path_factory.mktemp("trained") / "small.safetensors"
    score = train_on_photos(photos, output, RECIPE, data="five crops of one photo")
    return output, score


class TestTraining:
    def test_writes_a_model(self, trained):
        model = load_model(trained[0])
        assert model.name == "small"
        assert model.sampling == RECIPE.pattern
        assert model.card.network == NetworkOptions(8, 8, circular=True)
        assert {name: values.shape for name, values in model.weights.items()}["head.weight"] == (128, 128, 2, 2)
        assert all(np.isfinite(values).all() for values in model.weights.values())

    def test_card_tells_the_history(self, trained):
        training = load_model(trained[0]).card.training
        assert training["data"] == "five crops of one photo"
        assert training["optimisation"]["seed"] == 3
        assert training["optimisation"]["steps"] == 2
        assert training["image_pairs"] == 4
        assert 4 * 8 <= training["correspondences"] <= 4 * 30
        assert training["batch"] == {"pairs": 2, "per_pair": 8, "angle_jitter": 10.0, "scale_jitter": 0.4}
        assert training["view"]["max_zoom"] == 1.5
        assert training["versions"]["torch"] == torch.__version__
        assert training["versions"]["opencv"] == cv2.__version__

    def test_card_carries_the_figures(self, trained):
        output, score = trained
        (figures,) = load_model(output).card.figures.values()
        np.testing.assert_equal(figures, score.to_dict())
        assert figures["pairs"] == 4
        assert figures["correspondences"] > 20
        assert 0 <= figures["rank1"] <= 1

    def test_running_statistics_are_kept(self, trained):
        """Training moved them away from where they begin."""
        weights = load_model(trained[0]).weights
        assert np.abs(weights["blocks.0.norm.running_mean"]).max() > 0
        assert np.abs(weights["blocks.0.norm.running_var"] - 1).max() > 0.01

    def test_too_few_photos(self, photos, tmp_path):
        with pytest.raises(LogpolarError, match="too little to train on"):
            train_on_photos(photos[:2], tmp_path / "no.safetensors", RECIPE)
        assert not (tmp_path / "no.safetensors").exists()

    @pytest.mark.parametrize("count", [0, 1])
    def test_no_photos_to_train_on(self, photos, tmp_path, count):
        with pytest.raises(LogpolarError, match="too little to train on"):
            train_on_photos(photos[:count], tmp_path / "no.safetensors", RECIPE)

    def test_photos_without_keypoints(self, tmp_path):
        files = [tmp_path / f"{number}.png" for number in range(4)]
        for file in files:
            cv2.imwrite(str(file), np.full((130, 130), 128, np.uint8))
        with pytest.raises(LogpolarError, match="too little to train on"):
            train_on_photos(files, tmp_path / "no.safetensors", RECIPE)

    @pytest.mark.parametrize("device", ["cuda", "cuda:1"])
    def test_cuda_without_a_gpu(self, photos, tmp_path, monkeypatch, device):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(LogpolarError, match=device):
            train_on_photos(photos, tmp_path / "no.safetensors", RECIPE, device=device)


class TestSplit:
    def test_every_so_manieth_of_the_sorted_photos(self):
        names = [Path(letter) for letter in "gcadbfe"]
        training, validation = split_photos(names, 3)
        assert validation == [Path(letter) for letter in "adg"]
        assert training == [Path(letter) for letter in "bcef"]

    def test_order_does_not_matter(self):
        names = [Path(f"{number:02}") for number in range(40)]
        assert split_photos(names, 16) == split_photos(names[::-1], 16)

    def test_nothing(self):
        assert split_photos([], 16) == ([], [])


class TestDescriber:
    @pytest.mark.parametrize("count", [1, 5, 1024, 1025])
    def test_patches_through_the_network(self, gray, count):
        pattern = LogPolar(rows=4, columns=4)
        torch.manual_seed(0)
        network = DescriptorNetwork(NetworkOptions(4, 4)).eval()
        image = to_bytes(gray[:200, :200])
        keypoints = SiftDetector(max_keypoints=None, contrast_threshold=0)(gray)
        assert len(keypoints) > 1025
        found = torch_describer(network, pattern, "cpu")(image, keypoints[:count])
        patches = sample_patches(image.astype(np.float32) / 255, keypoints[:count], pattern)
        with torch.no_grad():
            expected = network(torch.from_numpy(patches)).numpy()
        np.testing.assert_allclose(found, expected, atol=5e-3)


class TestCard:
    SCORE = Score(2, 30, 0.123456, 0.5, 0, float("nan"), 0, float("nan"))

    def test_data_must_be_stated_or_missed(self):
        assert make_card("name", "words", RECIPE, "", [], self.SCORE).training["data"] == "not stated"

    def test_network_follows_the_pattern(self):
        recipe = replace(RECIPE, pattern=Cartesian(rows=16, columns=24), circular=False)
        card = make_card("name", "words", recipe, "photos", [], self.SCORE)
        assert card.network == NetworkOptions(16, 24, circular=False)
        assert card.sampling == recipe.pattern

    def test_figures_are_rounded_and_come_with_their_count(self):
        card = make_card("name", "words", RECIPE, "photos", [], self.SCORE)
        (figures,) = json.loads(card.to_json())["figures"].values()
        assert figures["fpr95"] == 0.1235
        assert figures["correspondences"] == 30
