"""Work on a Dask cluster; slurm, Kubernetes and clouds are reached through Dask's own deployments."""

from __future__ import annotations

import contextlib
import logging
import pickle
import warnings
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

from logpolar.distributed.clusters import ClusterRun, run_pickled
from logpolar.distributed.work import AHEAD, Job, Pending
from logpolar.errors import LogpolarError, LogpolarWarning, MissingExtraError

try:
    from distributed import Client, Future, KilledWorker
    from distributed import TimeoutError as NotYet
    from distributed.comm.core import CommClosedError
except ImportError as missing:
    raise MissingExtraError("a Dask cluster", "dask") from missing

_PATIENCE = 30
"""Seconds to wait for the scheduler and the first worker, and without any worker before that is said."""


class _ConnectedClient(Client):  # type: ignore[misc] # Dask's is not typed
    """A client of a scheduler with workers.

    One that finds none is closed at once: left to the garbage collector, it takes a lock that a later client may hold
    at that very moment, in the same thread.
    """

    def __init__(self, address: str) -> None:
        try:
            super().__init__(address, timeout=_PATIENCE, set_as_default=False)
            self.wait_for_workers(1, timeout=_PATIENCE)
        except BaseException:
            with contextlib.suppress(Exception):  # what went wrong first is what counts
                self.close(timeout=1)
            raise


class DaskCluster:
    """An ``Engine``: a batch is a task of Dask, which repeats it on another worker if its worker dies."""

    lost: tuple[type[BaseException], ...] = (KilledWorker,)
    cut: tuple[type[BaseException], ...] = (CommClosedError, CancelledError)

    def __init__(self, address: str, job: Job) -> None:
        self._address, self._run = address, pickle.dumps(ClusterRun(job))
        for name in ("distributed", "distributed.client"):  # the second has a level of its own
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what they report is handled here
        self._threads = 1
        self._open()

    def _open(self) -> None:
        try:
            self._client: Any = _ConnectedClient(self._address)
        except (OSError, ValueError, TimeoutError) as error:
            raise LogpolarError(
                f"dask:{self._address}: no scheduler with workers answers there; start one with "
                "`dask scheduler` and `dask worker ADDRESS`"
            ) from error

    def capacity(self) -> int:
        with contextlib.suppress(OSError):  # the connection is cut: who asks for a result will see it
            self._threads = int(sum(self._client.nthreads().values()))
        return AHEAD * max(self._threads, 1)

    def submit(self, tasks: Sequence[Any]) -> Pending:
        return DaskBatch(self._client.submit(run_pickled, self._run, pickle.dumps(tasks), pure=False), self._client)

    def recover(self) -> None:
        """A worker that died is Dask's concern; a connection that was cut is made again."""
        if self._client.status != "running":
            self._client.close(timeout=1)
            self._open()

    def close(self, done: bool) -> None:
        self._client.close(timeout=10 if done else 1)  # what nobody waits for any more is dropped


@dataclass(frozen=True)
class DaskBatch:
    """A batch under way. Without workers it waits for new ones, such as those that a queue will start."""

    future: Future
    client: Any

    def _found(self) -> list[Any]:
        found: list[Any] = self.future.result(timeout=_PATIENCE)
        return found

    def result(self) -> list[Any]:
        if self.client.status == "closed":
            raise CancelledError("the connection that it was sent over was cut, and made again")
        while True:
            try:
                return self._found()
            except NotYet:
                if self.future.done():  # by now; or the error is the work's own
                    return self._found()
                if not self.client.nthreads():
                    warnings.warn(
                        "the cluster has no workers left; waiting for new ones", LogpolarWarning, stacklevel=2
                    )
