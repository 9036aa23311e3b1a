from __future__ import annotations

import pytest
from click.testing import CliRunner

from feature_files import NAMES, write_feature_file
from helpers import assert_one_error
from logpolar.cli import main
from logpolar.matching.files import MatchFile


@pytest.fixture
def features(tmp_path):
    return write_feature_file(tmp_path / "features.h5")


def run_match_features(*arguments: object):
    return CliRunner().invoke(main, ["match-features", *map(str, arguments), "--jobs", "1"])


def pairs_in(path) -> list[tuple[str, str]]:
    with MatchFile(path) as file:
        return file.pairs()


def test_exhaustive_and_again(features, tmp_path):
    result = run_match_features(features, "-o", tmp_path / "m.h5")
    assert result.exit_code == 0
    assert "added 3 of 3 pairs with 60 matches" in result.stdout
    again = run_match_features(features, "-o", tmp_path / "m.h5")
    assert "added 0 of 3 pairs with 0 matches, 3 already present" in again.stdout


@pytest.mark.parametrize(
    ("options", "count"),
    [(("--pairing", "sequential", "--overlap", "1"), 2), (("--pairing", "retrieval", "--neighbours", "2"), 3)],
)
def test_pairing(features, tmp_path, options, count):
    assert run_match_features(features, "-o", tmp_path / "m.h5", *options).exit_code == 0
    assert len(pairs_in(tmp_path / "m.h5")) == count


def test_pairs_of_a_file(features, tmp_path):
    (tmp_path / "pairs.txt").write_text("c.jpg deep/b.jpg\n")
    assert run_match_features(features, "-o", tmp_path / "m.h5", "--pairs", tmp_path / "pairs.txt").exit_code == 0
    assert pairs_in(tmp_path / "m.h5") == [("c.jpg", "deep/b.jpg")]


def test_mistakes_are_one_line(features, tmp_path):
    output = tmp_path / "m.h5"
    assert_one_error(run_match_features(tmp_path / "none.h5", "-o", output), "none.h5: no such file")
    assert_one_error(run_match_features(features, "-o", features), "would overwrite an input")
    assert_one_error(run_match_features(features, "-o", output, "--device", "tpu"), "unknown device 'tpu'")
    single = write_feature_file(tmp_path / "single.h5", NAMES[:1])
    assert_one_error(run_match_features(single, "-o", output), "single.h5", "1 images", "at least two")
    (tmp_path / "pairs.txt").write_text("a.jpg x.jpg\n")
    assert_one_error(run_match_features(features, "-o", output, "--pairs", tmp_path / "pairs.txt"), "'x.jpg'")
    assert not output.exists()
