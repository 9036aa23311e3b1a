"""Ctrl-C, SIGTERM and SIGHUP in training: what is finished is kept, and a step that takes long is given up."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")

PATIENCE = 0.5
"""Seconds after a request until a step is given up."""

_POLL = 0.1


class Stopped(Exception):
    """Training was interrupted by a signal; the run can be resumed."""

    def __init__(self, words: str, number: int = signal.SIGINT) -> None:
        super().__init__(words)
        self.number = number

    @classmethod
    def after(cls, step: int, number: int = signal.SIGINT) -> Stopped:
        return cls(f"stopped after step {step}; rerun the command to resume", number)


class StopRequests:
    """The signals received since training began; false as long as there is none."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._step: int | None = None  # after which to stop at once
        self._work: queue.SimpleQueue[tuple[Callable[[], object], Future[object]]] | None = None

    def __bool__(self) -> bool:
        return bool(self._received)

    def receive(self, number: int, frame: object) -> None:
        """The handler of the signals; a second one stops at once."""
        if self._received:
            raise KeyboardInterrupt
        self._received.append(number)
        if self._step is not None:
            raise Stopped.after(self._step, number)

    def stopped(self, step: int) -> Stopped:
        """To be raised once the state after ``step`` is kept."""
        return Stopped.after(step, self._received[0])

    @contextlib.contextmanager
    def at_once(self, step: int) -> Iterator[None]:
        """A request raises ``Stopped`` here: the state after ``step`` is kept already."""
        self._step = step
        try:
            if self:
                raise self.stopped(step)
            yield
        finally:
            self._step = None

    def finish(self, work: Callable[[], Result], give_up: Callable[[], bool]) -> Result | None:
        """The result of ``work``, computed in a thread; None if it was given up, a while after a request.

        Python runs handlers between calls in the main thread, which a backward pass on a CPU holds for seconds.
        """
        if self._work is None:
            self._work = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._work,), daemon=True).start()
        done: Future[Result] = Future()
        self._work.put((work, done))  # type: ignore[arg-type]
        waited = 0.0
        while not (self and waited >= PATIENCE and give_up()):
            with contextlib.suppress(TimeoutError):
                return done.result(_POLL)
            waited += _POLL if self else 0
        return None

    def close(self) -> None:
        if self._work is not None:
            self._work.put((_end, Future()))


def _end() -> None:
    raise SystemExit


def _serve(work: queue.SimpleQueue[tuple[Callable[[], object], Future[object]]]) -> None:
    """One thread for all steps: each thread has its own pools and buffers in torch."""
    while True:
        function, done = work.get()
        try:
            done.set_result(function())
        except SystemExit:
            return
        except BaseException as error:
            done.set_exception(error)


@contextlib.contextmanager
def stop_requests(listening: bool = True) -> Iterator[StopRequests]:
    """Receives Ctrl-C, SIGTERM or SIGHUP, so that the state is kept first; a second one stops at once.

    Without ``listening``, and outside of the main thread, signals keep their usual meaning.
    """
    requests = StopRequests()
    numbers, before = [], []
    if listening and threading.current_thread() is threading.main_thread():
        names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
        numbers = [number for name in names if signal.getsignal(number := getattr(signal, name)) != signal.SIG_IGN]
        before = [signal.signal(each, requests.receive) for each in numbers]
    try:
        yield requests
    finally:
        for each, handler in zip(numbers, before, strict=True):
            signal.signal(each, handler)
        requests.close()
