"""Work in processes of this machine: no orphans, Ctrl-C for the caller alone."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection, resource_tracker
from typing import Any

import cv2

from logpolar.distributed.work import AHEAD, Job

_STOPPING = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}


class Processes:
    """Processes of this machine: an ``Engine``.

    Each divides the cores with the others in OpenCV, ignores Ctrl-C, which the caller handles, and ends with the
    caller's process, even if that is killed.
    """

    lost: tuple[type[BaseException], ...] = (BrokenProcessPool,)
    cut: tuple[type[BaseException], ...] = ()

    def __init__(self, jobs: int, threads: int, job: Job) -> None:
        self._jobs, self._threads, self._job = jobs, threads, job
        self._open()

    def _open(self) -> None:
        context = multiprocessing.get_context("spawn")
        with _uninterrupted():
            self._pool = ProcessPoolExecutor(self._jobs, context, _start_process, (self._threads, self._job))

    def capacity(self) -> int:
        return AHEAD * self._jobs

    def submit(self, tasks: Sequence[Any]) -> Future[list[Any]]:
        with _uninterrupted():
            return self._pool.submit(_work_on, tasks)

    def recover(self) -> None:
        self.close(done=True)  # the others are dead as well
        self._open()

    def close(self, done: bool) -> None:
        if not done:
            for process in list((self._pool._processes or {}).values()):  # shutdown would wait for what is under way
                process.kill()
        self._pool.shutdown(cancel_futures=True)


_run: Callable[[Sequence[Any]], Iterable[Any]]
"""In a worker process: what it does with a batch."""


def _work_on(tasks: Sequence[Any]) -> list[Any]:
    return list(_run(tasks))


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


def _start_process(threads: int, job: Job) -> None:
    global _run
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING - {signal.SIGINT})  # blocked by _uninterrupted
    threading.Thread(target=_die_with_parent, daemon=True).start()
    cv2.setNumThreads(threads)
    _run = job.open()


def _die_with_parent() -> None:
    """A killed parent cannot stop its workers, which would wait for tasks forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
