"""Progress of many items: a bar on a terminal; elsewhere, in logs, a plain line now and then."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from tqdm import tqdm

_SECONDS = 20.0
"""Between lines; what is done sooner prints none."""


def show_progress(total: int, what: str, unit: str, shown: bool = True, done: int = 0) -> tqdm[None] | _Lines:
    """Progress of ``total`` items, ``done`` of which an earlier run finished; ``shown``: False for none at all."""
    if not shown or sys.stderr.isatty():
        return tqdm(total=total, initial=done, desc=what, unit=unit, leave=False, disable=not shown)
    return _Lines(total, what, unit, done)


class _Lines:
    def __init__(self, total: int, what: str, unit: str, done: int) -> None:
        self._total, self._what, self._unit, self._done = total, what, unit, done
        self._start, self._first = time.monotonic(), done
        self._last = self._start

    def __enter__(self) -> _Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def update(self, n: float | None = 1) -> bool | None:
        self._done += int(n or 0)
        now = time.monotonic()
        if now - self._last < _SECONDS:
            return None
        self._last = now
        made = self._done - self._first
        left = (now - self._start) / made * (self._total - self._done) if made else 0
        minutes = f", about {left / 60:.0f} min left" if left >= 60 else f", about {left:.0f} s left"
        count = f"{self._done} of {self._total} {self._unit}s"
        print(f"{self._what}: {count}{minutes}", file=sys.stderr, flush=True)
        return True
