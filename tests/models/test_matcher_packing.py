"""Stored weights of matchers, against a loop that rounds, and files whose scales are damaged."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from safetensors import safe_open

from logpolar.errors import ModelError
from logpolar.models.files import shipped_files, write_model
from logpolar.models.matcher_cards import MatcherCard, MatcherOptions
from logpolar.models.matcher_files import DEFAULT_MATCHER, load_matcher, write_matcher
from logpolar.models.matcher_packing import pack, unpack

CARD = MatcherCard("m", "a matcher", MatcherOptions(inputs=8, width=16, heads=2, layers=1), "logpolar-96", "abc")
RANDOM = np.random.default_rng(0)
SIZES = np.array([[1.0], [1e-6], [0.0], [50.0], [1e-41]])  # of rows: also one of zeros, and one below normal numbers
WEIGHTS = {
    "a.weight": (RANDOM.normal(size=(5, 7)) * SIZES).astype(np.float32),
    "a.bias": RANDOM.normal(size=5).astype(np.float32),
    "norm.weight": RANDOM.normal(size=5).astype(np.float32),
    "place": RANDOM.normal(size=(2, 7)).astype(np.float32),
}


def write_stored(path, stored):
    """A file with these tensors as they are, and the right hash."""
    graphs = json.dumps({"encode": base64.b64encode(b"x").decode()})
    write_model(path, stored, graphs.encode(), CARD)
    return path


def rounded(row):
    """A row of numbers in multiples of 1 / 127 of the largest, one after another."""
    step = max(abs(float(value)) for value in row) / 127
    return [round(float(value) / step) * step if step else 0.0 for value in row]


class TestStored:
    @pytest.fixture
    def path(self, tmp_path):
        write_matcher(tmp_path / "m.safetensors", WEIGHTS, {"encode": b"x"}, CARD)
        return tmp_path / "m.safetensors"

    def test_matrices_come_back_rounded_row_by_row_and_all_else_as_before(self, path):
        found = load_matcher(path).weights
        assert {name: values.shape for name, values in found.items()} == {n: v.shape for n, v in WEIGHTS.items()}
        assert {values.dtype for values in found.values()} == {np.dtype(np.float32)}
        for row, given in zip(found["a.weight"][:-1], WEIGHTS["a.weight"], strict=False):
            np.testing.assert_allclose(row, rounded(given), rtol=1e-5)
        np.testing.assert_array_equal(found["a.bias"], WEIGHTS["a.bias"])
        np.testing.assert_array_equal(found["norm.weight"], WEIGHTS["norm.weight"])
        np.testing.assert_array_equal(found["place"], WEIGHTS["place"].astype(np.float16))

    def test_rows_of_zeros_stay_zeros_and_tiny_ones_do_not_become_something_else(self, path):
        found = load_matcher(path).weights["a.weight"]
        assert not found[2].any()
        np.testing.assert_allclose(found[4], WEIGHTS["a.weight"][4], atol=1e-42)

    def test_a_byte_a_weight(self, path):
        with safe_open(path, framework="numpy") as file:
            kinds = {name: str(file.get_tensor(name).dtype) for name in file.keys()}  # noqa: SIM118
        assert kinds == {
            "a.weight": "int8",
            "a.weight.scale": "float32",
            "a.bias": "float32",
            "norm.weight": "float32",
            "place": "float16",
        }

    def test_what_was_read_is_stored_the_same_again(self, path, tmp_path):
        model = load_matcher(path)
        write_matcher(tmp_path / "again.safetensors", model.weights, model.graphs, model.card)
        assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()


def test_the_largest_of_a_row_is_exact_for_a_thousand_rows():
    given = np.random.default_rng(1).normal(size=(1000, 16)).astype(np.float32)
    found = unpack(pack({"a.weight": given}))["a.weight"]
    largest = np.abs(given).argmax(axis=1), range(1000)
    np.testing.assert_array_equal(found[largest[::-1]], given[largest[::-1]])
    assert (np.abs(found - given) <= np.abs(given).max(axis=1, keepdims=True) / 254 * 1.0001).all()


def test_files_with_matrices_in_half_precision_can_be_read(tmp_path):
    """As they were written until matrices became int8."""
    old = {name: values.astype(np.float16 if values.ndim > 1 else np.float32) for name, values in WEIGHTS.items()}
    found = load_matcher(write_stored(tmp_path / "m.safetensors", old)).weights
    assert found.keys() == WEIGHTS.keys()
    for name, values in found.items():
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, old[name])


@pytest.mark.parametrize(
    ("scale", "words"),
    [
        (None, "no scales of 'a.weight'"),
        (np.ones(4, np.float32), r"shape \(5, 7\) with scales of shape \(4,\)"),
        (np.ones((5, 1), np.float32), r"with scales of shape \(5, 1\)"),
        (np.ones(0, np.float32), r"with scales of shape \(0,\)"),
        (np.float32([1, 1, np.nan, 1, 1]), "not finite"),
        (np.float32([1, 1, np.inf, 1, 1]), "not finite"),
        (np.float32([1, 1, -1, 1, 1]), "scales of 'a.weight' that are no lengths"),
        (np.ones(5, np.int32), "scales of 'a.weight' that are no lengths"),
    ],
)
def test_damaged_scales_are_told_in_one_line(tmp_path, scale, words):
    stored = pack(WEIGHTS)
    stored.pop("a.weight.scale")
    if scale is not None:
        stored["a.weight.scale"] = scale
    with pytest.raises(ModelError, match=words) as raised:
        load_matcher(write_stored(tmp_path / "m.safetensors", stored))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("shape", [(0, 7), (5, 0), (5,), (5, 7, 1)])
def test_int8_that_is_no_matrix_is_refused(tmp_path, shape):
    stored = {"a.weight": np.zeros(shape, np.int8), "a.weight.scale": np.ones(shape[0], np.float32)}
    with pytest.raises(ModelError, match="with scales of shape"):
        load_matcher(write_stored(tmp_path / "m.safetensors", stored))


def test_the_shipped_matcher_is_small():
    assert len(shipped_files("matcher_weights")[DEFAULT_MATCHER].read_bytes()) < 4e6
