"""Checks that several tests share."""

from __future__ import annotations


def assert_one_error(result, *words: str) -> None:
    """A command ended with exit code 2 and one line on stderr that holds these words."""
    lines = result.stderr.splitlines()
    assert result.exit_code == 2
    assert len(lines) == 1, lines
    assert lines[0].startswith("logpolar: error: ")
    assert all(word in lines[0] for word in words), lines[0]
