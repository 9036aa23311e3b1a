"""Work on many tasks by an engine: batches out, results back in order, whatever happens to the workers.

A worker that dies takes its batch with it. Such batches are run again, each alone, since which of those under way
killed the worker is not known; one that kills its worker again is halved, until the single task is found that does.
That one gets a second chance: clusters may blame a task for a worker that died next to it.
If the connection to a cluster was cut, no batch is to blame: all that were under way are sent again.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from logpolar.distributed.threads import cores
from logpolar.errors import LogpolarError

Task = TypeVar("Task")
Result = TypeVar("Result")

LOCAL = "local"
_MOST_LOSSES = 10
"""So many tasks in a row that kill their workers are not to blame: something else is wrong."""

_MOST_CUTS = 10
"""So many connections that were cut without a result in between."""

AHEAD = 4
"""Batches under way for each process: results are taken in order, and one that takes long must not idle the others."""

_SECONDS = 1.0
"""Between questions for the number of workers."""

ENGINES = (LOCAL, "dask:ADDRESS", "ray:ADDRESS")


@dataclass(frozen=True)
class Workers:
    """Who does the work: processes of this machine, or those of a cluster, by its address."""

    jobs: int = 1  # processes on this machine; a cluster has its own number
    executor: str = LOCAL  # see ENGINES
    batch: int = 1  # tasks sent at a time
    gpu: bool = False  # each worker of a cluster has a GPU for itself, and keeps it

    @property
    def is_here(self) -> bool:
        """Whether this very process does the work."""
        return self.executor == LOCAL and self.jobs == 1

    @property
    def threads(self) -> int:
        """Threads for each task under way: the cores are divided. A cluster counts a worker's threads itself."""
        return max(cores() // self.jobs, 1) if self.executor == LOCAL else 1

    def at_most(self, tasks: int) -> Workers:
        """No more processes than tasks."""
        return replace(self, jobs=max(min(self.jobs, tasks), 1))


@dataclass(frozen=True)
class Job:
    """What workers do: each process calls ``start(*arguments)`` once, then ``work`` with what it returned."""

    work: Callable[..., Any]  # of a task; with ``start``, of its result and a task
    start: Callable[..., Any] | None
    arguments: tuple[Any, ...]
    whole: bool = False  # ``work`` takes a batch instead of a task, and yields the results

    def open(self) -> Callable[[Sequence[Any]], Iterable[Any]]:
        """Starts here; the function that works on batches."""
        work = self.work if self.start is None else partial(self.work, self.start(*self.arguments))
        return work if self.whole else lambda tasks: map(work, tasks)


class Pending(Protocol):
    """A batch under way."""

    def result(self) -> list[Any]: ...


@dataclass(frozen=True)
class NotSent:
    """A batch whose workers were dead before it left."""

    error: BaseException

    def result(self) -> list[Any]:
        raise self.error


_Sent: TypeAlias = tuple[Sequence[Task], Pending]


class Engine(Protocol):
    """Runs batches on workers."""

    @property
    def lost(self) -> tuple[type[BaseException], ...]:
        """Errors of a batch whose worker died."""

    @property
    def cut(self) -> tuple[type[BaseException], ...]:
        """Errors of batches that were under way when the connection to the workers was cut."""

    def capacity(self) -> int:
        """Batches that may be under way at a time."""

    def submit(self, tasks: Sequence[Any]) -> Pending: ...

    def recover(self) -> None:
        """After a loss: be ready for new batches."""

    def close(self, done: bool) -> None:
        """Free the workers; unless all is done, without waiting for what is under way."""


def in_processes(
    work: Callable[..., Result],
    tasks: Iterable[Task],
    jobs: int,
    start: Callable[..., Any] | None = None,
    arguments: tuple[Any, ...] = (),
) -> Iterator[tuple[Task, Result]]:
    """``on_workers`` in ``jobs`` processes of this machine."""
    return on_workers(work, tasks, Workers(jobs), start, arguments)


def on_workers(
    work: Callable[..., Result],
    tasks: Iterable[Task],
    workers: Workers,
    start: Callable[..., Any] | None = None,
    arguments: tuple[Any, ...] = (),
    if_lost: Callable[[Task], Result] | None = None,
) -> Iterator[tuple[Task, Result]]:
    """Apply ``work`` to each task; yields (task, result) in the order of the tasks.

    With ``start``, each process first calls ``start(*arguments)``, and ``work`` gets what it returned before the task.
    ``work``, tasks and results must be picklable, unless one job of this machine does it all: that is this process. A
    task that kills its worker even if it is alone gets the result of ``if_lost``, or raises ``LogpolarError``. An
    interrupted caller, or one that stops early, does not wait for the tasks under way.
    """
    yield from _on_engine(Job(work, start, arguments), batched(tasks, workers.batch), workers, if_lost)


def on_batches(
    work: Callable[..., Iterable[Result]],
    batches: Iterable[Sequence[Task]],
    workers: Workers,
    start: Callable[..., Any] | None = None,
    arguments: tuple[Any, ...] = (),
    if_lost: Callable[[Task], Result] | None = None,
) -> Iterator[tuple[Task, Result]]:
    """``on_workers`` for work that takes a batch of tasks at a time and yields their results.

    Parts of a batch, down to single tasks, may come as batches of their own, after workers have died.
    """
    yield from _on_engine(Job(work, start, arguments, whole=True), iter(batches), workers, if_lost)


def batched(tasks: Iterable[Task], size: int) -> Iterator[list[Task]]:
    """Tasks in batches, for ``on_batches``."""
    left = iter(tasks)
    while batch := list(islice(left, size)):
        yield batch


def _on_engine(
    job: Job,
    batches: Iterator[Sequence[Task]],
    workers: Workers,
    if_lost: Callable[[Task], Result] | None,
) -> Iterator[tuple[Task, Result]]:
    if workers.is_here:
        run = job.open()
        for batch in batches:
            yield from zip(batch, run(batch), strict=True)
        return
    engine = open_engine(workers, job)
    done = False
    try:
        yield from _Run(engine, if_lost).results(batches)
        done = True
    finally:
        engine.close(done)


def open_engine(workers: Workers, job: Job) -> Engine:
    """The engine of an executor; raises ``LogpolarError`` if there is none."""
    kind, _, address = workers.executor.partition(":")
    if workers.executor == LOCAL:
        from logpolar.distributed.processes import Processes

        return Processes(workers.jobs, workers.threads, job)
    if kind == "dask" and address:
        from logpolar.distributed.dask_cluster import DaskCluster

        return DaskCluster(address, job)
    if kind == "ray" and address:
        from logpolar.distributed.ray_cluster import RayCluster

        return RayCluster(address, job, workers.gpu)
    raise LogpolarError(f"'{workers.executor}' is no executor; use one of: {', '.join(ENGINES)}")


class _Run(Generic[Task, Result]):
    """The work of an engine on one list of tasks."""

    def __init__(self, engine: Engine, if_lost: Callable[[Task], Result] | None) -> None:
        self._engine, self._if_lost = engine, if_lost
        self._losses = 0  # single tasks, one after the other, that killed their workers
        self._cuts = 0  # of the connection, without a result in between
        self._room, self._asked = 0, float("-inf")

    def results(self, batches: Iterator[Sequence[Task]]) -> Iterator[tuple[Task, Result]]:
        waiting: deque[_Sent[Task]] = deque()
        more = True
        while more or waiting:
            while more and len(waiting) < self._capacity():
                batch = next(batches, None)
                more = batch is not None
                if batch:
                    waiting.append((batch, self._send(batch)))
            if not waiting:
                return
            first = waiting.popleft()
            try:
                yield from zip(first[0], first[1].result(), strict=True)
                self._cuts = 0
            except self._engine.cut as error:
                waiting = self._again([first, *waiting], error)
            except self._engine.lost:
                self._engine.recover()
                for suspects, pending in [first, *waiting]:
                    yield from self._after_loss(suspects, pending)
                waiting.clear()

    def _capacity(self) -> int:
        """Of the engine, which may have to ask a scheduler."""
        if time.monotonic() > self._asked + _SECONDS:
            self._room, self._asked = self._engine.capacity(), time.monotonic()
        return self._room

    def _send(self, batch: Sequence[Task]) -> Pending:
        try:
            return self._engine.submit(batch)
        except (*self._engine.lost, *self._engine.cut) as error:
            return NotSent(error)

    def _again(self, sent: Iterable[_Sent[Task]], error: BaseException) -> deque[_Sent[Task]]:
        """Batches, all sent again over a new connection."""
        self._cuts += 1
        if self._cuts > _MOST_CUTS:
            raise LogpolarError("the connection to the workers is cut again and again; see its scheduler") from error
        self._engine.recover()
        return deque((batch, self._send(batch)) for batch, _ in sent)

    def _after_loss(self, batch: Sequence[Task], pending: Pending) -> Iterator[tuple[Task, Result]]:
        """Results of a batch that was under way when a worker died."""
        try:
            found = pending.result()
        except (*self._engine.lost, *self._engine.cut):
            yield from self._alone(batch)
        else:
            yield from zip(batch, found, strict=True)

    def _alone(self, batch: Sequence[Task], again: bool = False) -> Iterator[tuple[Task, Result]]:
        try:
            found = self._result(batch)
        except self._engine.lost as error:
            self._engine.recover()
            if len(batch) > 1:
                middle = len(batch) // 2
                yield from self._alone(batch[:middle])
                yield from self._alone(batch[middle:])
            elif not again:
                yield from self._alone(batch, again=True)
            else:
                yield batch[0], self._lose(batch[0], error)
        else:
            self._losses = 0
            yield from zip(batch, found, strict=True)

    def _result(self, batch: Sequence[Task]) -> list[Any]:
        """Of a batch by itself, over a new connection if need be."""
        sent = self._send(batch)
        while True:
            try:
                return sent.result()
            except self._engine.cut as error:
                ((_, sent),) = self._again([(batch, sent)], error)

    def _lose(self, task: Task, error: BaseException) -> Result:
        self._losses += 1
        if self._if_lost is None or self._losses > _MOST_LOSSES:
            raise LogpolarError("a worker process was killed, perhaps out of memory; use fewer jobs") from error
        return self._if_lost(task)
