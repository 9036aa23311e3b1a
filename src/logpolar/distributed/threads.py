"""Work in a thread: ahead of its use, or where Ctrl-C can interrupt it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def cores() -> int:
    """CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ahead(items: Iterator[Result]) -> Iterator[Result]:
    """The same items, each computed in a thread while its predecessor is in use."""
    with ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(next, items, None)
        while (item := upcoming.result()) is not None:
            upcoming = thread.submit(next, items, None)
            yield item


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
