"""Input files: regular files of a bounded size, and JSON of a bounded depth."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

from logpolar.errors import LogpolarError, StorageError, in_words

MAX_BYTES = 2**30
"""Largest file that is read whole."""

_MAX_DEPTH = 100
"""Deepest nesting of JSON: much deeper documents overflow the stack."""


def check_regular(path: Path, error: type[LogpolarError] = StorageError, most: int | None = None) -> None:
    """Raise unless ``path`` is a file: reading from a pipe or a device can wait, or go on, for ever."""
    try:
        if path.is_dir():
            raise error(f"{path}: is a folder, not a file")
        if path.exists() and not path.is_file():
            raise error(f"{path}: is a pipe or a device, not a file; save its content first")
        size = path.stat().st_size
    except OSError as reason:
        raise error(f"{path}: {in_words(reason)}") from reason
    except ValueError as reason:  # a name with a NUL
        raise error(f"{str(path)!r}: not the name of a file") from reason
    if most is not None and size > most:
        raise error(f"{path}: has {size / 2**20:.0f} MB; files of this kind have {most / 2**20:.0f} MB at most")


def read_bytes(path: str | Path, error: type[LogpolarError] = StorageError, most: int = MAX_BYTES) -> bytes:
    """The content of a file."""
    path = Path(path)
    check_regular(path, error, most)
    try:
        return path.read_bytes()
    except OSError as reason:
        raise error(f"{path}: {in_words(reason)}") from reason


def read_text(path: str | Path, error: type[LogpolarError] = StorageError, what: str = "text file") -> str:
    """The content of a file in UTF-8; ``what`` it should be, for the error."""
    try:
        return read_bytes(path, error).decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        raise error(f"{path}: not a {what}") from reason


def parse_json(text: str | bytes) -> Any:
    """A JSON document; raises ``ValueError`` for anything else, also for one that is nested too deep."""
    plain = text.decode() if isinstance(text, bytes) else text
    if max(accumulate((each in "[{") - (each in "]}") for each in plain), default=0) > _MAX_DEPTH:
        raise ValueError("nested too deep")
    return json.loads(plain)
