"""Work on a Dask cluster; slurm, Kubernetes and clouds are reached through Dask's own deployments."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Sequence
from concurrent.futures import CancelledError
from typing import Any

from logpolar.distributed.clusters import ClusterRun, run_pickled
from logpolar.distributed.work import Job, Pending
from logpolar.errors import LogpolarError, MissingExtraError

try:
    from distributed import Client, KilledWorker
    from distributed.comm.core import CommClosedError
except ImportError as missing:
    raise MissingExtraError("a Dask cluster", "dask") from missing

_PATIENCE = 30
"""Seconds to wait for the scheduler and the first worker."""


class DaskCluster:
    """An ``Engine``: a batch is a task of Dask, which repeats it on another worker if its worker dies."""

    lost: tuple[type[BaseException], ...] = (KilledWorker,)
    cut: tuple[type[BaseException], ...] = (CommClosedError, CancelledError)

    def __init__(self, address: str, job: Job) -> None:
        self._address, self._run = address, pickle.dumps(ClusterRun(job))
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what it reports is handled here
        self._open()

    def _open(self) -> None:
        try:
            self._client: Any = Client(self._address, timeout=_PATIENCE, set_as_default=False)
            self._client.wait_for_workers(1, timeout=_PATIENCE)
        except (OSError, ValueError, TimeoutError) as error:
            raise LogpolarError(
                f"dask:{self._address}: no scheduler with workers answers there; start one with "
                "`dask scheduler` and `dask worker ADDRESS`"
            ) from error

    def capacity(self) -> int:
        return max(2 * int(sum(self._client.nthreads().values())), 2)

    def submit(self, tasks: Sequence[Any]) -> Pending:
        sent: Pending = self._client.submit(run_pickled, self._run, pickle.dumps(tasks), pure=False)
        return sent

    def recover(self) -> None:
        """A worker that died is Dask's concern; a connection that was cut is made again."""
        if self._client.status != "running":
            self._client.close(timeout=1)
            self._open()

    def close(self, done: bool) -> None:
        self._client.close(timeout=10 if done else 1)  # what nobody waits for any more is dropped
