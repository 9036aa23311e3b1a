"""Fields of settings classes that carry their meaning and their range, so that the command line can be made of them."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def setting(
    default: Any, help: str, low: float | None = None, high: float | None = None, choices: tuple[str, ...] | None = None
) -> Any:
    """A field of a settings class: its default, what it means, the least and the most it may be, or what it can be."""
    return field(default=default, metadata={"help": help, "low": low, "high": high, "choices": choices})
