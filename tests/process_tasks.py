"""Work that tests give to other processes, which must be able to import it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import cv2


def slow_at_first(task: int) -> int:
    """The square; every fourth takes longer than those after it."""
    time.sleep(0.05 if task % 4 == 0 else 0)
    return task**2


def refuse_five(task: int) -> int:
    if task == 5:
        raise ValueError(f"number {task} is odd")
    return -task


def die_at_five(task: int) -> int:
    if task == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return -task


def process_of(task: int) -> int:
    time.sleep(0.01)
    return os.getpid()


def start(*words: str) -> list[str]:
    return list(words)


def own_gpu(started: list[str], task: int) -> tuple[int, int, str | None]:
    """Dies at task 5, once. ``started`` counts the tasks of this process."""
    started.append("task")
    if task == 5 and not Path(started[0]).exists():
        Path(started[0]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return os.getpid(), len(started) - 1, os.environ.get("CUDA_VISIBLE_DEVICES")


def look_around(started: list[str], task: int) -> dict[str, object]:
    return {
        "process": os.getpid(),
        "started": started,
        "threads": cv2.getNumThreads(),
        "ignores Ctrl-C": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        "was born so": signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    }
