"""Cases that are timed in turn, and the memory each needs by itself."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Work = Callable[[], object]


@dataclass(frozen=True)
class Settings:
    """What the command line chose."""

    models: tuple[str, ...]  # MODEL@RUNTIME
    threads: int
    repeats: int = 7
    photos: int = 200  # of the folder
    jobs: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Case:
    """One thing to time. ``make`` loads what it needs and returns the work; ``amount`` is how much one run does.

    Cases of the same ``group`` take turns, one group after another: what needs much memory is slower after what needs
    little, for the system has taken it back meanwhile.
    """

    name: str
    make: Callable[[], Work]
    amount: float
    group: str = ""


@dataclass(frozen=True)
class Subject:
    """Cases that do the same and are compared with the one called ``baseline``."""

    title: str
    unit: str
    cases: tuple[Case, ...]
    baseline: str = ""


def time_in_turn(subject: Subject, repeats: int) -> list[dict[str, Any]]:
    """Median and quartiles of the seconds of each case. Cases take turns, so that a busy spell hits all of them."""
    seconds: dict[str, list[float]] = {case.name: [] for case in subject.cases}
    for group in dict.fromkeys(case.group for case in subject.cases):
        works = [(case, case.make()) for case in subject.cases if case.group == group]
        for _, work in works:
            work()
        for _ in range(repeats):
            for case, work in works:
                start = time.perf_counter()
                work()
                seconds[case.name].append(time.perf_counter() - start)
    return [row(case.name, seconds[case.name], case.amount) for case in subject.cases]


def row(name: str, seconds: list[float], amount: float) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    return {
        "name": name,
        "amount": amount,
        "seconds": round(middle, 5),
        "quartiles": [round(low, 5), round(high, 5)],
        "runs": len(seconds),
        "rate": round(amount / middle, 1),
    }


def peak_megabytes() -> float:
    """Of this process alone (Linux): getrusage would count what its parent held when it was started."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


def measure_memory(script: Path, subject: str, case: str, settings: list[str]) -> float:
    """Peak memory, in MB, of a process that runs the case once; imports and loading included."""
    command = [sys.executable, str(script), subject, "--memory-of", case, *settings]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(answer.stdout.splitlines()[-1]))


def with_ratios(rows: list[dict[str, Any]], baseline: str) -> list[dict[str, Any]]:
    """How many times faster than the baseline each case does the same amount."""
    base = next((each for each in rows if each["name"] == baseline), None)
    return [{**each, "ratio": round(each["rate"] / base["rate"], 3)} for each in rows] if base else rows
