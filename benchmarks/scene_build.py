"""Time and memory of making a correspondence file from one workspace: all pairs with 30 shared points or more.

python benchmarks/scene_build.py WORKSPACE
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import save
from logpolar.datasets.files import CorrespondenceFile


def resident_megabytes(process: int) -> float:
    """Resident memory of a process and all below it; pages that they share count more than once."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6 + sum(resident_megabytes(int(child)) for child in children)


def main() -> None:
    workspace, jobs = Path(sys.argv[1]), os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "scene.h5"
        command = [
            str(Path(sys.executable).with_name("logpolar")),
            "dataset",
            "colmap",
            str(workspace),
            "-o",
            str(output),
        ]
        command += ["--test", "--min-overlap", "0", "--max-per-image", "0", "--jobs", str(jobs)]
        start, peak = time.perf_counter(), 0.0
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one of them has just ended
                    peak = max(peak, resident_megabytes(process.pid))
                time.sleep(0.05)
        seconds = time.perf_counter() - start
        assert process.returncode == 0
        with CorrespondenceFile(output) as file:
            counts = file.counts()
    result = {"scene": workspace.name, "jobs": jobs, "seconds": round(seconds, 1), "peak_megabytes": round(peak)}
    save("scene_build", {**result, **counts})


if __name__ == "__main__":
    main()
