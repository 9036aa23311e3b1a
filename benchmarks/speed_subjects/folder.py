"""A folder of photos through `logpolar extract`: throughput by jobs, memory over time."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from speed_subjects.inputs import write_photos
from speed_subjects.measuring import Settings

_EVERY = 0.2
"""Seconds between two looks at the memory."""


def folder(settings: Settings) -> dict[str, Any]:
    model, _, runtime = settings.models[-1].partition("@")
    title = f"Folder: {settings.photos} photos of 1024 x 768, 2000 keypoints each, with detection, {model}@{runtime}"
    rows = []
    with tempfile.TemporaryDirectory() as place:
        photos = Path(place) / "photos"
        photos.mkdir()
        write_photos(photos, settings.photos)
        for jobs in settings.jobs:
            output = Path(place) / f"{jobs}.h5"
            command = [sys.executable, "-m", "logpolar", "extract", photos, "-o", output, "--max-keypoints", 2000]
            command += ["--jobs", jobs, "--model", model, "--runtime", runtime]
            rows.append({"name": f"--jobs {jobs}", **_watched(list(map(str, command)), settings.photos)})
    return {"title": title, "unit": "photos/s", "rows": rows}


def _watched(command: list[str], photos: int) -> dict[str, Any]:
    """Time of a command, and the memory of it and its children in the quarters of that time."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    seen = []
    while process.poll() is None:
        seen.append(_resident_megabytes(process.pid))
        time.sleep(_EVERY)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}")
    seconds = time.perf_counter() - start
    quarters = [seen[k * len(seen) // 4 : max((k + 1) * len(seen) // 4, k * len(seen) // 4 + 1)] for k in range(4)]
    return {
        "amount": photos,
        "seconds": round(seconds, 2),
        "quartiles": [round(seconds, 2)] * 2,
        "runs": 1,
        "rate": round(photos / seconds, 2),
        "peak_mb": round(max(seen)),
        "peak_mb_by_quarter": [round(max(quarter)) for quarter in quarters],
    }


def _resident_megabytes(process: int) -> float:
    """Of a process and all below it (Linux); pages that they share count once for each."""
    total = 0.0
    try:
        status = Path(f"/proc/{process}/status").read_text().splitlines()
        total += int(next(line for line in status if line.startswith("VmRSS")).split()[1]) / 1024
        for task in Path(f"/proc/{process}/task").iterdir():
            total += sum(_resident_megabytes(int(child)) for child in (task / "children").read_text().split())
    except (OSError, StopIteration):  # it has ended meanwhile
        pass
    return total
