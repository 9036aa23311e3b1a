"""Damage to files as hypothesis makes it, for the property tests of readers."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

_VALUES = st.binary(min_size=1, max_size=8) | st.sampled_from([b"\xff" * 8, b"\0" * 8, b"\xff\xff\xff\x7f", b"[" * 8])


def try_damaged(data: bytes, attempt: Callable[[bytes], None], examples: int = 30) -> None:
    """Call ``attempt`` with copies of ``data``: bytes replaced or inserted, half of them early, and cut short."""
    place = st.integers(0, min(len(data), 512) - 1) | st.integers(0, len(data) - 1)

    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(place, _VALUES, st.booleans()), min_size=1, max_size=3), st.none() | place)
    def try_one(changes: list[tuple[int, bytes, bool]], end: int | None) -> None:
        damaged = bytearray(data)
        for start, value, inserted in changes:
            damaged[start : start if inserted else start + len(value)] = value
        attempt(bytes(damaged[:end]))

    try_one()


def one_line(error: Exception) -> bool:
    """Whether a message is one line of a length that can be read."""
    return len(str(error).splitlines()) == 1 and len(str(error)) < 1500
