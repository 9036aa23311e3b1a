"""Ctrl-C, SIGTERM and SIGHUP: the first stops a command, which keeps what is done; the second ends it at once."""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, NoReturn

import click

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]

_PATIENCE = 1.2
"""Seconds until a command that is inside a library call, or slow to stop, is ended regardless: files can take it."""

_AT_ONCE = 0.3
"""Seconds within which signals are one: ``timeout`` sends its own to the process and again to the process group."""

_CLEANING = 0.6
"""Seconds for removing temporary files at the end; what takes longer is blocked."""

_noticed = threading.Event()
_said = threading.Event()


class Interrupted(KeyboardInterrupt):
    """The signal of this number arrived."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def stop(words: str, error: BaseException) -> NoReturn:
    """Exit with a line and, as is the shells' convention, 128 + the number of the signal that ``error`` reports."""
    _said.set()
    _noticed.set()  # what still runs in a thread is not waited for
    with contextlib.suppress(OSError):  # SIGHUP: the terminal is gone
        click.echo(f"logpolar: {words}", err=True)
    sys.exit(128 + getattr(error, "number", signal.SIGINT))


def behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """The interruption that caused an error: C++ modules that are interrupted while they load raise ImportError."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Run a command, to whose process the signals belong from now on."""
    if os.name != "posix":  # Python's own Ctrl-C
        yield
        return
    atexit.register(_ignore)  # the first, and so the last to run
    for number in _SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup and background jobs of scripts have it
            signal.signal(number, _interrupt)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reader,), daemon=True).start()
    try:
        yield
    except SystemExit as done:
        if _noticed.is_set():
            _end(done.code if isinstance(done.code, int) else 1)
        raise
    finally:
        _noticed.set()  # Python's own exit is not to be interrupted by an exception


def _ignore() -> None:
    """All is done, or said: a signal to the rest of Python's exit would only change the exit code."""
    if threading.current_thread() is threading.main_thread():  # not at the end that ``_end`` makes
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)


def _interrupt(number: int, frame: Any) -> None:
    if not _noticed.is_set():
        _noticed.set()
        raise Interrupted(number)


def _watch(pipe: int) -> None:
    """Receives signals at once, whereas ``_interrupt`` waits for the main thread to return from a library call.

    A command with a handler of its own, such as training, decides itself when it stops.
    """
    first = None
    while True:
        if select.select([pipe], [], [], None if first is None else _PATIENCE)[0]:
            number = os.read(pipe, 1)[0]
            if number not in _SIGNALS:
                continue
            if first is None:
                first = time.monotonic()
            elif time.monotonic() - first > _AT_ONCE:
                _end(128 + number)
        elif signal.getsignal(number) == _interrupt:
            if not _said.is_set():
                print("logpolar: stopped; finished work is kept", file=sys.stderr)
            _end(128 + number)


def _end(code: int) -> NoReturn:
    """End the process, but not by Python's exit, which waits for threads, workers and queues."""
    try:
        cleaning = threading.Thread(target=_clean_up, daemon=True)
        cleaning.start()
        cleaning.join(_CLEANING)
    finally:
        os._exit(code)


def _clean_up() -> None:
    import multiprocessing

    for process in multiprocessing.active_children():
        process.kill()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    atexit._run_exitfuncs()  # temporary folders, locks, semaphores
