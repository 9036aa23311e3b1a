"""logpolar train-matcher: the command itself; the run is tested in tests/training/test_matcher_run.py."""

from __future__ import annotations

from click.testing import CliRunner

from logpolar.cli import main


def test_mistakes_in_the_config_are_told_in_one_line(tmp_path):
    config = tmp_path / "matcher.toml"
    config.write_text('[data]\nphotos = ["nowhere/*.jpg"]\n')
    result = CliRunner().invoke(
        main, ["train-matcher", str(config), "-o", str(tmp_path / "run"), "--set", "batch.pears=1"]
    )
    assert result.exit_code == 2
    assert "did you mean 'pairs'?" in result.output


def test_init_names_a_shipped_matcher_or_a_file(tmp_path):
    config = tmp_path / "matcher.toml"
    config.write_text('[data]\nphotos = ["nowhere/*.jpg"]\n[network]\nwidth = 16\nheads = 2\n')
    for init, words in (("learned", "init: the [network]"), ("nothing.safetensors", "nothing.safetensors")):
        result = CliRunner().invoke(main, ["train-matcher", str(config), "-o", str(tmp_path / "run"), "--init", init])
        assert result.exit_code == 2
        assert words in result.output
