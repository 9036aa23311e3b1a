"""Work in processes, or in a thread ahead of its use: ordered results, a bounded queue, no orphaned processes."""

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

_STOPPING = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}


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


def in_processes(
    work: Callable[[Task], Result],
    tasks: Iterable[Task],
    jobs: int,
    start: Callable[..., None] | None = None,
    arguments: tuple[Any, ...] = (),
) -> Iterator[tuple[Task, Result]]:
    """Apply ``work`` to each task in ``jobs`` processes; yields (task, result) in the order of the tasks.

    One job runs in this process, without ``start``. Otherwise each process first runs ``start(*arguments)``, divides
    the cores with the others in OpenCV, ignores Ctrl-C, which the caller handles, and ends with the caller's process,
    even if that is killed. An interrupted caller, or one that stops early, does not wait for the tasks under way.
    ``work``, tasks and results must be picklable. At most 4 tasks per process are queued.
    """
    if jobs == 1:
        for task in tasks:
            yield task, work(task)
        return
    threads = max(cores() // jobs, 1)
    context = multiprocessing.get_context("spawn")
    with _uninterrupted():
        pool = ProcessPoolExecutor(jobs, context, _start_process, (threads, start, arguments))
    waiting: deque[tuple[Task, Future[Result]]] = deque()
    try:
        for task in tasks:
            with _uninterrupted():
                waiting.append((task, pool.submit(work, task)))
            if len(waiting) == 4 * jobs:
                first, future = waiting.popleft()
                yield first, future.result()
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    except BaseException as error:
        for process in list((pool._processes or {}).values()):  # shutdown would wait for the tasks under way
            process.kill()
        if isinstance(error, BrokenProcessPool):
            raise LogpolarError("a worker process was killed, perhaps out of memory; use fewer jobs") from error
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay signals while processes are started: an exception in between would lose sight of them.

    The processes inherit the blocked signals, and so never see Ctrl-C, not even before they can ignore it. Here
    blocking is not enough: other threads still receive signals, and Python runs their handlers in the main thread.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    received: list[int] = []
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: handler for number in _STOPPING if callable(handler := signal.getsignal(number))}
    for number in handlers:
        signal.signal(number, lambda number, frame: received.append(number))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        resource_tracker.ensure_running()  # with SIGHUP blocked, which would kill it; unblocks the others
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in received:
            handlers[number](number, None)


def _start_process(threads: int, start: Callable[..., None] | None, arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING - {signal.SIGINT})  # blocked by _uninterrupted
    threading.Thread(target=_die_with_parent, daemon=True).start()
    cv2.setNumThreads(threads)
    if start is not None:
        start(*arguments)


def _die_with_parent() -> None:
    """A killed parent cannot stop its workers, which would wait for tasks forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
