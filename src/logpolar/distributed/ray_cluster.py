"""Work on a Ray cluster."""

from __future__ import annotations

import logging
import pickle
import re
import socket
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from logpolar.distributed.clusters import ClusterRun, run_pickled
from logpolar.distributed.work import AHEAD, Job
from logpolar.errors import LogpolarError, MissingExtraError

try:
    import ray
    from ray.exceptions import (
        NodeDiedError,
        ObjectLostError,
        OutOfMemoryError,
        RayActorError,
        RayError,
        RayTaskError,
        WorkerCrashedError,
    )
except ImportError as missing:
    raise MissingExtraError("a Ray cluster", "ray") from missing

_REPEATS = 2
"""How often Ray repeats a batch whose worker died, on another one."""

_PATIENCE = 10
"""Seconds to wait for an address: Ray itself tries for minutes, and says so in many lines."""


class RayCluster:
    """An ``Engine``: a batch is a task of Ray. The address "local" starts Ray on this machine for the run.

    With ``gpu`` there is an actor for each GPU, in turns: Ray ends the processes of other tasks that use one after each
    task, and hides GPUs from those that ask for none.
    """

    lost: tuple[type[BaseException], ...] = (
        WorkerCrashedError,
        NodeDiedError,
        ObjectLostError,
        OutOfMemoryError,
        RayActorError,
    )
    cut: tuple[type[BaseException], ...] = ()

    def __init__(self, address: str, job: Job, gpu: bool = False) -> None:
        self._run, self._own = pickle.dumps(ClusterRun(job)), not ray.is_initialized()
        if self._own:
            _connect(address)
        self._gpus = int(ray.cluster_resources().get("GPU", 0)) if gpu else 0
        if gpu and not self._gpus:
            self.close(done=True)
            raise LogpolarError(f"ray:{address}: no machine of this cluster has a GPU; leave out --device")
        actor = ray.remote(num_gpus=1, max_restarts=-1, max_task_retries=_REPEATS)(_GpuWorker)
        self._actors = [actor.remote() for _ in range(self._gpus)]
        task = ray.remote(max_retries=_REPEATS)(run_pickled)
        self._turns = cycle([each.run for each in self._actors] or [task])

    def capacity(self) -> int:
        return AHEAD * max(self._gpus or int(ray.cluster_resources().get("CPU", 1)), 1)

    def submit(self, tasks: Sequence[Any]) -> RayBatch:
        return RayBatch(next(self._turns).remote(self._run, pickle.dumps(tasks)))

    def recover(self) -> None:
        """Ray replaces dead workers itself."""

    def close(self, done: bool) -> None:
        if self._own:
            ray.shutdown()


def _connect(address: str) -> None:
    reason = "no cluster answers there; start one with `ray start --head`"
    try:
        if place := re.fullmatch(r"(?:ray://)?([^:/]+):(\d+)", address):
            socket.create_connection((place[1], int(place[2])), _PATIENCE).close()
            reason = "Ray cannot connect to it; set RAY_AUTH_MODE=token if its cluster asks for a token"
        ray.init(address=address, logging_level=logging.CRITICAL, log_to_driver=False)
    except (OSError, ValueError, OverflowError, RuntimeError, RayError) as error:
        raise LogpolarError(f"ray:{address}: {reason}") from error


class _GpuWorker:
    """A process that has a GPU for itself."""

    def run(self, run: bytes, tasks: bytes) -> list[Any]:
        return run_pickled(run, tasks)


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
