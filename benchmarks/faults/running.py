"""Running a command under limits, and what is wrong with how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECONDS, BYTES = 60.0, 4 * 2**30
"""A command that takes more is bad."""


@dataclass
class Tally:
    """Cases tried and bad ones, by class; the first examples of each kind of failure."""

    tried: Counter[str] = field(default_factory=Counter)
    bad: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, kind: str, problem: str, example: str = "") -> None:
        """``problem`` is empty for a good case."""
        self.tried[kind] += 1
        if problem:
            self.bad[kind] += 1
            self.examples.setdefault(f"{kind}: {problem}", example)
            print(f"  {kind}: {problem} {example}", flush=True)


@dataclass(frozen=True)
class Ended:
    code: int
    output: str
    seconds: float
    peak: int  # bytes of the process itself

    def problem(self, allowed: tuple[int, ...] = (0, 1, 2)) -> str:
        """What is wrong, if anything: a traceback, a signal, another exit code, too slow, too large, no message."""
        if self.seconds > SECONDS:
            return f"more than {SECONDS:g} s"
        if self.peak > BYTES:
            return f"{self.peak / 2**30:.1f} GB"
        if "Traceback (most recent call last)" in self.output:
            return "traceback"
        if self.code < 0:
            return f"ended by {signal.Signals(-self.code).name}"
        if self.code not in allowed:
            return f"exit code {self.code}"
        return "no message" if self.code == 2 and not self.output.strip() else ""

    @property
    def last_line(self) -> str:
        return (self.output.strip().splitlines() or [""])[-1][:200]


def start(*words: object) -> subprocess.Popen[bytes]:
    """A command in the background, in a session of its own; its output goes to a file."""
    log = tempfile.TemporaryFile()  # noqa: SIM115 - ``finish`` closes it
    command = [sys.executable, "-m", "logpolar", *map(str, words)]
    process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    process.log = log  # type: ignore[attr-defined]
    return process


def finish(process: subprocess.Popen[bytes], seconds: float = SECONDS) -> Ended:
    """Wait for a command; it is killed, with all it started, above the limits.

    Seconds are those of a machine without other work: a share of a busy one is not a hang.
    """
    begin, peak = time.monotonic(), 0
    share = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    while process.poll() is None and time.monotonic() - begin <= share * seconds and peak <= BYTES:
        peak = max(peak, _memory(process.pid))
        time.sleep(0.02)
    if process.poll() is None:
        kill(process)
    log = process.log  # type: ignore[attr-defined]
    log.seek(0)
    output = log.read().decode(errors="replace")
    log.close()
    return Ended(process.returncode, output, (time.monotonic() - begin) / share, peak)


def run(*words: object, seconds: float = SECONDS) -> Ended:
    return finish(start(*words), seconds)


def kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _memory(pid: int) -> int:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
    return 0
