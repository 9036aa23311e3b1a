from __future__ import annotations

import json

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from logpolar.cli import main
from logpolar.images import to_bytes
from logpolar.keypoints.detection import SiftDetector
from logpolar.models import load_model
from logpolar.models.describers import open_describer
from logpolar.sampling import sample_patches
from logpolar.settings import DEFAULT_MODEL


@pytest.fixture(scope="module")
def photos(gray, tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number in range(5):
        cv2.imwrite(str(folder / f"{number}.png"), np.roll(to_bytes(gray), 50 * number, axis=0))
    return folder


def run(*arguments):
    return CliRunner().invoke(main, ["quantise", *map(str, arguments)])


def test_a_variant_with_its_card(photos, gray, tmp_path):
    output = tmp_path / "mine.safetensors"
    result = run(DEFAULT_MODEL, photos, "-o", output)
    assert result.exit_code == 0, result.output
    assert "cosine" in result.output
    shown = CliRunner().invoke(main, ["models", str(output)])
    assert f"int8, of {DEFAULT_MODEL}" in shown.output
    card = json.loads(CliRunner().invoke(main, ["models", str(output), "--json"]).output)[0]
    assert card["variant"]["precision"] == "int8"
    model = load_model(DEFAULT_MODEL)
    patches = sample_patches(gray, SiftDetector(50)(gray), model.sampling)
    expected, found = (open_describer(each).describe_patches(patches) for each in (model, load_model(output)))
    assert (expected * found).sum(axis=1).min() > 0.99


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("logpolar-97", "{photos}", "-o", "{out}/a.safetensors"), "no model 'logpolar-97'"),
        ((DEFAULT_MODEL, "{photos}", "-o", "{out}/a.onnx"), "safetensors"),
        (
            ("logpolar", "{photos}", "--precision", "bfloat16", "-o", "{out}/a.safetensors"),
            "detectors are quantised to int8",
        ),
        ((DEFAULT_MODEL, "{out}", "-o", "{out}/a.safetensors"), "no images"),
        ((DEFAULT_MODEL, "{photos}/0.png", "-o", "{out}/a.safetensors"), "too few"),
        ((DEFAULT_MODEL, "{photos}/missing.h5", "-o", "{out}/a.safetensors"), "missing.h5"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(photos, tmp_path, arguments, words):
    result = run(*(each.format(photos=photos, out=tmp_path) for each in arguments))
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_detector(photos, tmp_path):
    output = tmp_path / "mine.safetensors"
    result = run("logpolar", photos, "-o", output, "--max-size", 128)
    assert result.exit_code == 0, result.output
    assert "keypoints of logpolar: 0.9" in result.output
    assert "int8, of logpolar" in CliRunner().invoke(main, ["models", str(output)]).output
