"""Building blocks of result files: JSON, Markdown tables, software versions."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from logpolar.settings import VERSION
from logpolar.storage.atomic_io import write_whole


def rounded(value: float, digits: int = 5) -> float | None:
    """A number for JSON, which has no NaN and no infinity: those become None."""
    return round(value, digits) if math.isfinite(value) else None


def write_json(path: Path, document: Any, indent: int = 2) -> None:
    """Write a JSON document atomically; it ends with a newline."""
    write_whole(path, (json.dumps(document, indent=indent) + "\n").encode())


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; ``|`` inside a cell is replaced by ``/``."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines) + "\n"


def versions(*packages: str, **others: str) -> dict[str, str]:
    """Versions of logpolar, Python, OpenCV, the given packages as far as they are installed, and ``others``."""
    import cv2  # slow, and the command line's options import this module

    # OpenCV is installed under one of several names.
    found = {"logpolar": VERSION, "python": platform.python_version(), "opencv": cv2.__version__}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found | others
