from __future__ import annotations

import json
from importlib import resources

import pytest
from click.testing import CliRunner

from helpers import assert_one_error
from logpolar.cli import main
from logpolar.models import load_model, shipped_models
from logpolar.models.files import load_detector, shipped_detectors
from logpolar.models.matcher_files import shipped_matchers


def run_models(*arguments: object):
    return CliRunner().invoke(main, ["models", *map(str, arguments)])


@pytest.fixture
def model_file(tmp_path):
    """A copy of a shipped model, as a file of one's own."""
    data = (resources.files("logpolar.models") / "weights" / "paper-cartesian-12.safetensors").read_bytes()
    (tmp_path / "mine.safetensors").write_bytes(data)
    return tmp_path / "mine.safetensors"


def test_all_shipped_models_are_shown():
    result = run_models()
    assert result.exit_code == 0
    assert result.stderr == ""
    titles = [line for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert titles[:-2] == [*shipped_models(), *shipped_detectors(), *shipped_matchers()]
    assert titles[-2] == "logpolar-sf: keypoints of logpolar, described by logpolar-96-upright"


def test_a_matcher_names_its_descriptors():
    output = run_models("logpolar-sf-matcher").stdout
    assert f"matches descriptors of logpolar-96-upright ({load_model('logpolar-96-upright').digest[:16]}" in output
    assert "66 billion multiply-adds for 2048 x 2048 keypoints, 3.65 million weights" in output


def test_a_pair_shows_both_halves(detector_file):
    output = run_models("logpolar-sf").stdout
    assert output.startswith("logpolar-96-upright\n")
    assert load_detector("logpolar").digest[:16] in output
    assert "thousand multiply-adds a pixel" in output
    assert run_models(detector_file).stdout.startswith("tiny-detector\n  A test.\n  keypoints: 5 px")


def test_one_model_with_sampling_data_figures_licence_and_hash():
    output = run_models("logpolar-96").stdout
    assert output.startswith("logpolar-96\n")
    assert "paper-cartesian-12" not in output
    for words in (
        "lambda 96",
        "39.1 million multiply-adds a patch, 1.33 million weights",
        "data: ",
        "rank-1 0.",
        "licence: ",
        load_model("logpolar-96").digest[:16],
    ):
        assert words in output


def test_model_file(model_file):
    result = run_models(model_file)
    assert result.exit_code == 0
    assert load_model("paper-cartesian-12").digest[:16] in result.stdout


def test_json_is_the_whole_card():
    result = run_models("--json")
    assert result.exit_code == 0
    cards = json.loads(result.stdout)
    assert [card["name"] for card in cards] == [*shipped_models(), *shipped_detectors(), *shipped_matchers()]
    assert cards[0] == json.loads(load_model("logpolar-96").card.to_json())


def test_unknown_name_lists_those_there_are():
    assert_one_error(run_models("nonsense"), "nonsense", *shipped_models())


def test_one_bad_name_among_good_ones_prints_nothing_else():
    result = run_models("logpolar-96", "nonsense")
    assert_one_error(result, "nonsense")
    assert result.stdout == ""


def test_file_that_is_no_model(tmp_path):
    (tmp_path / "words.safetensors").write_text("words")
    assert_one_error(run_models(tmp_path / "words.safetensors"), "words.safetensors")


def test_truncated_model(model_file):
    data = model_file.read_bytes()
    model_file.write_bytes(data[: len(data) // 2])
    assert_one_error(run_models(model_file), "mine.safetensors", "damaged")


def test_folder(tmp_path):
    assert_one_error(run_models(tmp_path), str(tmp_path))
