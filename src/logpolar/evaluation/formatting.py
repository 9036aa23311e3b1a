"""Numbers as text."""

from __future__ import annotations

import math


def percent(share: float | None, digits: int = 2) -> str:
    return "" if share is None or math.isnan(share) else f"{100 * share:.{digits}f}"


def decimal(share: float | None, digits: int = 4) -> str:
    return "" if share is None or math.isnan(share) else f"{share:.{digits}f}"
