"""Files of matchers: what is refused."""

from __future__ import annotations

from importlib import resources

import numpy as np
import pytest

from logpolar.errors import ModelError
from logpolar.models.matcher_cards import MatcherCard, MatcherOptions
from logpolar.models.matcher_files import load_matcher, write_matcher

CARD = MatcherCard("m", "a matcher", MatcherOptions(inputs=8, width=16, heads=2, layers=1), "logpolar-96", "abc")


@pytest.fixture
def path(tmp_path):
    write_matcher(tmp_path / "m.safetensors", {"a": np.ones(3, np.float32)}, {"encode": b"x"}, CARD)
    return tmp_path / "m.safetensors"


def test_an_unknown_name_is_told_with_the_known_ones():
    with pytest.raises(ModelError, match=r"no matcher 'nobody'.*logpolar-sf-matcher"):
        load_matcher("nobody")


def test_a_descriptor_model_is_not_a_matcher():
    shipped = resources.files("logpolar.models") / "weights" / "logpolar-96.safetensors"
    with resources.as_file(shipped) as file, pytest.raises(ModelError, match="model of a descriptor, not of a matcher"):
        load_matcher(file)


def test_a_damaged_file_is_refused(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ModelError, match="damaged"):
        load_matcher(path)


def test_missing_graphs_and_weights_are_told_in_one_line(path):
    model = load_matcher(path)
    with pytest.raises(ModelError, match="damaged graph 'encode'"):
        model.check_graphs()
    with pytest.raises(ModelError, match="do not fit"):
        model.network()
