"""What worker processes of clusters share: they outlive a run, and may serve several at once."""

from __future__ import annotations

import pickle
import platform
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from logpolar.distributed.work import Job
from logpolar.errors import LogpolarError
from logpolar.storage.documents import versions

_KEPT_RUNS = 2
"""Runs whose state, such as a loaded model, a process keeps."""


def own_versions() -> dict[str, str]:
    """Of what results depend on."""
    return versions("numpy", "onnxruntime")


@dataclass(frozen=True)
class ClusterRun:
    """A run, as its batches carry it to the workers."""

    job: Job
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    versions: dict[str, str] = field(default_factory=own_versions)

    def __call__(self, tasks: Sequence[Any]) -> list[Any]:
        """In a worker process: the results of a batch. The job is started with the first one."""
        return list(_opened(self)(tasks))


_lock = threading.Lock()
_runs: OrderedDict[str, Callable[[Sequence[Any]], Iterable[Any]]] = OrderedDict()


def _opened(run: ClusterRun) -> Callable[[Sequence[Any]], Iterable[Any]]:
    with _lock:  # a process may have several threads
        if run.token not in _runs:
            _check_versions(run.versions)
            _runs[run.token] = run.job.open()
            while len(_runs) > _KEPT_RUNS:
                _runs.popitem(last=False)
        _runs.move_to_end(run.token)
        return _runs[run.token]


def _check_versions(wanted: dict[str, str]) -> None:
    here = own_versions()
    for name, version in wanted.items():
        if here.get(name) != version:
            place = platform.node()
            raise LogpolarError(
                f"the worker on {place} has {name} {here.get(name, 'not installed')}, this machine {version}; "
                "install the same versions everywhere"
            )


def run_pickled(run: bytes, tasks: bytes) -> list[Any]:
    """``ClusterRun`` on a batch: functions travel by name, as in processes, not by cloudpickle's copies of them."""
    found: list[Any] = pickle.loads(run)(pickle.loads(tasks))
    return found
