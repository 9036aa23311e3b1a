"""Work on a Ray cluster."""

from __future__ import annotations

import logging
import pickle
import re
import socket
from collections.abc import Sequence
from typing import Any

from logpolar.distributed.clusters import ClusterRun, run_pickled
from logpolar.distributed.work import Job
from logpolar.errors import LogpolarError, MissingExtraError

try:
    import ray
    from ray.exceptions import NodeDiedError, ObjectLostError, OutOfMemoryError, RayTaskError, WorkerCrashedError
except ImportError as missing:
    raise MissingExtraError("a Ray cluster", "ray") from missing

_REPEATS = 2
"""How often Ray repeats a batch whose worker died, on another one."""

_PATIENCE = 10
"""Seconds to wait for an address: Ray itself tries for minutes, and says so in many lines."""


class RayCluster:
    """An ``Engine``: a batch is a task of Ray. The address "local" starts Ray on this machine for the run."""

    lost: tuple[type[BaseException], ...] = (WorkerCrashedError, NodeDiedError, ObjectLostError, OutOfMemoryError)
    cut: tuple[type[BaseException], ...] = ()

    def __init__(self, address: str, job: Job) -> None:
        self._run, self._own = pickle.dumps(ClusterRun(job)), not ray.is_initialized()
        try:
            if self._own:
                if place := re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address):
                    socket.create_connection((place[1], int(place[2])), _PATIENCE).close()
                ray.init(address=address, logging_level=logging.CRITICAL, log_to_driver=False)
        except (OSError, ValueError, OverflowError, RuntimeError) as error:
            raise LogpolarError(
                f"ray:{address}: no cluster answers there; start one with `ray start --head`"
            ) from error
        self._remote = ray.remote(max_retries=_REPEATS)(run_pickled)

    def capacity(self) -> int:
        return max(2 * int(ray.cluster_resources().get("CPU", 1)), 2)

    def submit(self, tasks: Sequence[Any]) -> RayBatch:
        return RayBatch(self._remote.remote(self._run, pickle.dumps(tasks)))

    def recover(self) -> None:
        """Ray replaces dead workers itself."""

    def close(self, done: bool) -> None:
        if self._own:
            ray.shutdown()


class RayBatch:
    """A batch under way."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def result(self) -> list[Any]:
        try:
            found: list[Any] = ray.get(self._reference)
        except RayTaskError as error:
            raise error.cause from error  # as the work raised it
        return found
