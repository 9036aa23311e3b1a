"""Numbers and tables as text."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percent(share: float | None, digits: int = 2) -> str:
    return "" if share is None or math.isnan(share) else f"{100 * share:.{digits}f}"


def decimal(share: float | None, digits: int = 4) -> str:
    return "" if share is None or math.isnan(share) else f"{share:.{digits}f}"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lines of a table; a bar within a cell would begin another."""
    lines = [list(columns), ["---"] * len(columns), *(list(row) for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines) + "\n"
