"""Configs of matchers."""

from __future__ import annotations

import pytest

from logpolar.errors import LogpolarError
from logpolar.training.matcher_config import read_matcher_config
from logpolar.training.matcher_options import MatcherConfig


def read(tmp_path, text: str, *changes: str) -> MatcherConfig:
    path = tmp_path / "matcher.toml"
    path.write_text(text)
    return read_matcher_config(path, changes)


def test_states_what_differs_and_files_are_relative_to_it(tmp_path):
    config = read(tmp_path, '[data]\nphotos = ["a/*.jpg"]\n[batch]\npairs = 7\n', "optimisation.steps=9")
    assert config.data.photos == (str(tmp_path / "a/*.jpg"),)
    assert (config.batch.pairs, config.optimisation.steps) == (7, 9)
    assert config.network == MatcherConfig().network


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no scenes"),
        ('[data]\nphotos = ["a"]\nimages = 1\n', "has no key 'images'"),
        ('[data]\nphotos = ["a"]\n[batch]\npairs = 0\n', "pairs must be at least 1"),
        ('[data]\nphotos = ["a"]\n[network]\nwidth = 65\n', "width must be a multiple"),
        ('name = "a/b"\n[data]\nphotos = ["a"]\n', "usable as a file name"),
        ("[data", "not a TOML file"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, text, words):
    with pytest.raises(LogpolarError, match=words) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
