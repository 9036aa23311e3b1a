"""The models inside the package."""

from __future__ import annotations

import shutil
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from function_describer import score_pairs
from logpolar.datasets.homographies import make_view_pair
from logpolar.datasets.options import ViewOptions
from logpolar.images import to_bytes, to_gray
from logpolar.models import load_model, shipped_models
from logpolar.models.runtimes.onnxruntime_cpu import OnnxruntimeDescriber
from logpolar.sampling import Cartesian, LogPolar
from logpolar.settings import DEFAULT_MODEL

SHIPPED = Path(str(resources.files("logpolar.models") / "weights" / f"{DEFAULT_MODEL}.safetensors"))


def test_names():
    assert DEFAULT_MODEL in shipped_models()
    assert shipped_models() == sorted(file.stem for file in SHIPPED.parent.glob("*.safetensors"))


@pytest.mark.parametrize("name", shipped_models())
def test_cards_say_what_a_user_must_know(name):
    card = load_model(name).card
    assert card.name == name
    assert card.description
    assert isinstance(card.sampling, LogPolar | Cartesian)
    assert card.training["data"]
    assert card.training["optimisation"]["steps"] > 0
    assert {"seed", "files", "batch", "augmentation", "loss", "hardware"} <= set(card.training)
    assert card.training["versions"]
    assert card.licence
    if card.variant:
        assert {f"cosine with {card.variant.parent}", "two test scenes"} <= set(card.figures)
    else:
        assert any(name.startswith("validation") for name in card.figures) and "test scenes" in card.figures
    for figures in (scenes["mean"] for title, scenes in card.figures.items() if not title.startswith("cosine")):
        assert figures["pairs"] > 0
        assert figures["correspondences"] > 0
        assert 0 <= figures["fpr95"] < 1
        assert 0.4 < figures["rank1"] <= 1  # day and night: about half


def test_variants_name_a_parent_that_ships():
    variants = [card.variant for card in (load_model(name).card for name in shipped_models()) if card.variant]
    assert variants
    for variant in variants:
        assert variant.parent_hash == load_model(variant.parent).digest
        assert variant.calibration["patches"] > 1000


@pytest.mark.parametrize("name", shipped_models())
def test_they_recognise_keypoints(name, gray):
    model = load_model(name)
    describer = OnnxruntimeDescriber(model)
    pixels = to_bytes(gray)
    pair = make_view_pair(pixels[:300, :300], pixels[300:], ViewOptions(max_zoom=2), np.random.default_rng(2))
    score = score_pairs([pair], lambda view, points: describer.describe(to_gray(view), points))
    assert score.correspondences > 40
    assert score.rank1 > 0.9


def test_by_path_or_name_the_same(tmp_path):
    copy = shutil.copy(SHIPPED, tmp_path / "copy.safetensors")
    by_name, by_path, by_text = load_model(DEFAULT_MODEL), load_model(copy), load_model(str(copy))
    assert by_name.card == by_path.card == by_text.card
    assert by_name.digest == by_path.digest == by_text.digest
