from __future__ import annotations

import pytest

from logpolar.errors import MissingExtraError, first_line, in_one_line, in_words, some_of


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("a\n  b\tc"), "ValueError: a b c"),
        (RuntimeError("x" * 300), "RuntimeError: " + "x" * 186 + "..."),
        (KeyError(), "KeyError:"),
    ],
)
def test_one_line(error, text):
    assert in_one_line(error) == text


def test_first_line():
    assert first_line(RuntimeError("one\ntwo")) == "one"
    assert first_line(RuntimeError()) == "RuntimeError"


def test_reasons_of_the_system():
    assert in_words(FileNotFoundError(2, "No such file or directory")) == "no such file or directory"
    assert in_words(OSError("Odd")) == "odd"


def test_some_names():
    assert some_of("abc") == "a, b, c"
    assert some_of("abcd") == "a, b, c, ..."


def test_missing_extra_names_it():
    assert "pip install 'logpolar[viz]'" in str(MissingExtraError("this figure", "viz"))
