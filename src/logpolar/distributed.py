"""Work spread over processes, or done in a thread ahead of its use: results in order, a short queue, no orphans."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, resource_tracker
from typing import Any, TypeVar

import cv2

from logpolar.errors import LogpolarError

Task = TypeVar("Task")
Result = TypeVar("Result")


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ahead(items: Iterator[Result]) -> Iterator[Result]:
    """The same items, each made in a thread of its own while the one before it is in use."""
    with ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(next, items, None)
        while (item := upcoming.result()) is not None:
            upcoming = thread.submit(next, items, None)
            yield item


def in_processes(
    work: Callable[[Task], Result],
    tasks: Iterable[Task],
    jobs: int,
    start: Callable[..., None] | None = None,
    arguments: tuple[Any, ...] = (),
) -> Iterator[tuple[Task, Result]]:
    """``work`` done on each task in ``jobs`` processes: (task, result) in the order of the tasks.

    With one job the work is done here, without ``start``. Otherwise each process first runs ``start(*arguments)``, uses
    its share of the cores in OpenCV, ignores Ctrl-C, which is for the caller to deal with, and ends when the caller's
    process does, however that ends. ``work`` and what goes in and out of it must be picklable. No more than 4 tasks a
    process are under way or waiting for the caller.
    """
    if jobs == 1:
        for task in tasks:
            yield task, work(task)
        return
    threads = max(cores() // jobs, 1)
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, _start_process, (threads, start, arguments))
    waiting: deque[tuple[Task, Future[Result]]] = deque()
    try:
        for task in tasks:
            with _deaf_to_ctrl_c():
                waiting.append((task, pool.submit(work, task)))
            if len(waiting) == 4 * jobs:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    except BrokenProcessPool as error:
        raise LogpolarError("a worker process was killed, perhaps for want of memory; use fewer jobs") from error
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes that are started here never see Ctrl-C, not even before they can ignore it; for us it only waits."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # starts with the first process otherwise, and then lets Ctrl-C through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_process(threads: int, start: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    cv2.setNumThreads(threads)
    if start is not None:
        start(*arguments)


def _die_with_parent() -> None:
    """A killed parent cannot tell its workers to stop, and they would wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
