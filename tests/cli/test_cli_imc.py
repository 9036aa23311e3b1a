from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from feature_files import NAMES, write_feature_file
from helpers import assert_one_error
from logpolar.cli import main
from logpolar.matching.batch import match_pairs
from logpolar.matching.pairs import exhaustive_pairs


@pytest.fixture
def place(tmp_path):
    write_feature_file(tmp_path / "f.h5")
    match_pairs(tmp_path / "f.h5", tmp_path / "m.h5", exhaustive_pairs(NAMES))
    return tmp_path


def run_imc(*arguments: object):
    return CliRunner().invoke(main, ["imc", *map(str, arguments)])


def test_export_and_check(place):
    result = run_imc("export", place / "f.h5", place / "m.h5", "-o", place / "s", "--scene", "x", "--label", "my_label")
    assert result.exit_code == 0, result.output
    (method,) = json.loads((place / "s" / "config.json").read_text())
    assert method["config_common"]["json_label"] == "my_label"
    assert method["config_common"]["descriptor"] == "none"  # the model in the file's settings
    check = run_imc("check", place / "s")
    assert check.exit_code == 0
    assert "no problems in 1 scenes, 3 images, 3 pairs" in check.stdout


def test_problems_are_listed(place):
    run_imc("export", place / "f.h5", place / "m.h5", "-o", place / "s", "--scene", "x")
    (place / "s" / "phototourism" / "x" / "matches.h5").unlink()
    check = run_imc("check", place / "s")
    assert check.exit_code == 1
    assert check.stdout.splitlines()[0] == "phototourism/x: config.json declares matches, but there is no matches.h5"


def test_mistakes_are_one_line(place):
    export = ("export", place / "f.h5", "-o", place / "s", "--scene", "x")
    assert_one_error(run_imc(*export, "--label", "My Label"), "label must be made of lowercase letters", "'My Label'")
    assert_one_error(run_imc(*export[:-1], "a/b"), "'a/b' cannot be the name of a scene")
    assert_one_error(run_imc("export", place / "none.h5", *export[2:]), "none.h5: no such file")
    assert_one_error(run_imc("check", place / "none"), "none: no such folder")
    assert not (place / "s").exists()
