"""Work in a thread: ahead of its use, or where Ctrl-C can interrupt it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

Result = TypeVar("Result")

_MOST_AHEAD = 64
"""Threads that callers in as many threads may have at a time."""


def cores() -> int:
    """CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ahead(items: Iterator[Result]) -> Iterator[Result]:
    """The same items, each computed in a thread while its predecessor is in use."""
    threads = _threads(os.getpid())
    upcoming = threads.submit(next, items, None)
    try:
        while (item := upcoming.result()) is not None:
            upcoming = threads.submit(next, items, None)
            yield item
    finally:
        if not upcoming.cancel():
            wait([upcoming])  # it uses ``items``, which belong to the caller


@cache
def _threads(process: int) -> ThreadPoolExecutor:
    """Threads that live as long as the process: OpenCV keeps a kilobyte of each that has ended."""
    return ThreadPoolExecutor(_MOST_AHEAD, "ahead")


def interruptibly(work: Callable[[], Result]) -> Result:
    """The result of ``work``, computed in a thread: Python delays Ctrl-C while a library call runs in the main one.

    After Ctrl-C the call goes on until it returns, or the process ends.
    """
    done: Future[Result] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result()
