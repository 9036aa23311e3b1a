from __future__ import annotations

import contextlib
import os
import pickle
import tracemalloc
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch

from damaged_bytes import one_line, try_damaged
from logpolar.errors import LogpolarError
from logpolar.evaluation.amos import amos_pairs
from logpolar.storage.safe_npy import read_object

DESCRIPTION = b"{'descr': '|O', 'fortran_order': False, 'shape': ()}"
HEADER = np.lib.format.magic(1, 0) + b"\x46\x00" + DESCRIPTION.ljust(69) + b"\n"


class Touch:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


class Call:
    def __init__(self, *call) -> None:
        self.call = call

    def __reduce__(self):
        return self.call[0], tuple(self.call[1:])


def saved(path: Path, value: object, protocol: int) -> Path:
    path.write_bytes(HEADER + pickle.dumps(np.array(value, dtype=object), protocol))
    return path


PLAIN = [
    {"a": ["1.jpg", "2.jpg"], "b": ("3.jpg",), 7: {1.5, True, None}, "c": b"\x00\xff"},
    OrderedDict(a=[1, 2], b=frozenset("xy")),
    {"a": np.array(["1.jpg", "2.jpg"]), "b": [np.str_("x"), np.int64(3), np.float32(0.5)], "c": np.arange(4.0)},
    {"a": np.array([["x", None]], dtype=object)},
]


@pytest.mark.parametrize("protocol", range(2, 5))
@pytest.mark.parametrize("value", PLAIN, ids=range(len(PLAIN)))
def test_plain_values(tmp_path, value, protocol):
    read = read_object(saved(tmp_path / "value.npy", value, protocol))
    assert type(read) is type(value)
    np.testing.assert_equal(read, value)


def test_what_numpy_saves(tmp_path):
    np.save(tmp_path / "value.npy", np.array(PLAIN[0]), allow_pickle=True)
    assert read_object(tmp_path / "value.npy") == PLAIN[0]


class TestRefused:
    def assert_refused(self, path: Path, match: str) -> None:
        with pytest.raises(LogpolarError, match=match) as caught:
            read_object(path)
        assert str(caught.value).startswith(str(path))
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("protocol", range(2, 5))
    def test_code_is_not_run(self, tmp_path, protocol):
        mark = tmp_path / "mark"
        path = saved(tmp_path / "value.npy", {"a": Touch(mark)}, protocol)
        self.assert_refused(path, r"refused.*system")
        assert not mark.exists()
        np.load(path, allow_pickle=True)  # what the usual way would do
        assert mark.exists()

    @pytest.mark.parametrize(
        "call",
        [(eval, "1"), (getattr, "x", "join"), (np.load, "x"), (np.fromfile, "x"), (bytearray, 5), (Path, "x")],
        ids=lambda call: call[0].__name__,
    )
    def test_calls(self, tmp_path, call):
        self.assert_refused(saved(tmp_path / "value.npy", {"a": Call(*call)}, 4), "refused.*asks for")

    def test_dotted_names(self, tmp_path):
        """Protocol 4 can ask for an attribute of what is allowed."""
        data = b"\x80\x04\x8c\x05numpy\x8c\x0endarray.tofile\x93."
        (tmp_path / "value.npy").write_bytes(HEADER + data)
        self.assert_refused(tmp_path / "value.npy", r"asks for numpy\.ndarray\.tofile")

    def test_other_encodings(self, tmp_path):
        data = b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00zip\x86R."
        (tmp_path / "value.npy").write_bytes(HEADER + data)
        self.assert_refused(tmp_path / "value.npy", "encoding 'zip'")

    @pytest.mark.parametrize("data", [b"", b"nothing at all", HEADER, HEADER + b"\x80\x04"], ids=range(4))
    def test_damaged(self, tmp_path, data):
        (tmp_path / "value.npy").write_bytes(data)
        self.assert_refused(tmp_path / "value.npy", "not a numpy array, or a damaged one")

    def test_array_of_numbers(self, tmp_path):
        np.save(tmp_path / "value.npy", np.arange(3))
        self.assert_refused(tmp_path / "value.npy", r"not one pickled value, but an array of shape \(3,\)")

    def test_missing(self, tmp_path):
        self.assert_refused(tmp_path / "value.npy", "no such file")


def test_patches_that_run_code(tmp_path):
    """The other file of AMOS, which torch reads."""
    torch.save([Touch(tmp_path / "mark"), torch.zeros(1, 2, 3), torch.zeros(1)], tmp_path / "train_patches.pt")
    with pytest.raises(LogpolarError, match="not a file of tensors"):
        amos_pairs(tmp_path)
    assert not (tmp_path / "mark").exists()


def test_damaged_bytes_are_a_value_or_an_error_in_one_line(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, {"a": np.arange(5), "b": ["c", 1.5, {2}]}, allow_pickle=True)

    def attempt(data):
        path.write_bytes(data)
        try:
            read_object(path)
        except LogpolarError as error:
            assert one_line(error)

    try_damaged(path.read_bytes(), attempt, 60)


def test_names_with_line_breaks_stay_in_one_line(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, OrderedDict(a=1), allow_pickle=True)
    path.write_bytes(path.read_bytes().replace(b"collections", b"collec\rions"))
    with pytest.raises(LogpolarError, match="asks for") as refused:
        read_object(path)
    assert one_line(refused.value)


class TestMemory:
    """Small files for which numpy, or the unpickler in C, would take hundreds of megabytes."""

    @pytest.mark.parametrize(
        "data",
        [
            b"\x80\x02K\x01r" + (2**24).to_bytes(4, "little") + b".",  # the index of a stored object
            pickle.dumps(np.zeros(3, object), 2).replace(b"K\x03\x85", b"J\0\0\0\x02\x85"),
            b"\x80\x02cnumpy\nndarray\nJ\0\0\0\x02\x85R.",
            pickle.dumps(np.zeros(0), 2).replace(b"K\0\x85", b"J\0\0\0\x02\x85", 1),
        ],
    )
    def test_is_not_taken(self, tmp_path, data):
        (tmp_path / "a.npy").write_bytes(HEADER + data)
        tracemalloc.start()
        try:
            with contextlib.suppress(LogpolarError):
                read_object(tmp_path / "a.npy")
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(
    ("opening", "closing"), [(b"}", b"K\x01s."), (b"\x8f(", b"\x90."), (b"c__builtin__\nset\n]", b"a\x85R.")]
)
def test_keys_that_take_for_ever_to_hash(tmp_path, opening, closing):
    nested = ("x",) * 10
    for _ in range(9):
        nested = (nested,) * 10
    data = pickle.dumps(nested, 2)[2:-1]
    (tmp_path / "a.npy").write_bytes(HEADER + b"\x80\x04" + opening + data + closing)
    with pytest.raises(LogpolarError, match="keys other than text and numbers"):
        read_object(tmp_path / "a.npy")
