"""`logpolar extract` of 30 images, killed with SIGKILL ten times at random moments, against an undisturbed run."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cv2
import h5py
import numpy as np

from common import large_photo, save
from logpolar.features.files import FeatureFile

IMAGES, KILLS, SEED = 30, 10, 0


def extract(folder: Path, output: Path, jobs: int) -> subprocess.Popen[bytes]:
    arguments = ["extract", str(folder), "-o", str(output), "--max-keypoints", "300", "--jobs", str(jobs)]
    command = [sys.executable, "-c", "from logpolar.cli import main; main()", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def content(path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    with h5py.File(path, "r") as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) else None)
    return found


def kill_once(folder: Path, output: Path, jobs: int, longest: float) -> dict[str, object]:
    """Start, kill at a random moment, and read everything that is in the file."""
    process = extract(folder, output, jobs)
    time.sleep(random.uniform(0.3, longest))
    running = process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    if not output.exists():
        return {"running": running, "file": "none yet"}
    with FeatureFile(output) as file:  # raises if the file is damaged
        names = file.names()
        for name in names:
            file.read(name)
    return {"running": running, "file": "readable", "images": len(names)}


def run(folder: Path, work: Path, jobs: int) -> dict[str, object]:
    whole, broken = work / f"whole-{jobs}.h5", work / f"broken-{jobs}.h5"
    start = time.perf_counter()
    if extract(folder, whole, jobs).wait() != 0:
        raise SystemExit("the undisturbed run failed")
    duration = time.perf_counter() - start
    kills = [kill_once(folder, broken, jobs, longest=max(duration / 6, 1.5)) for _ in range(KILLS)]
    if extract(folder, broken, jobs).wait() != 0:
        raise SystemExit("the last run failed")
    expected, found = content(whole), content(broken)
    equal = expected.keys() == found.keys() and all(np.array_equal(expected[key], found[key]) for key in expected)
    return {
        "seconds_undisturbed": round(duration, 1),
        "kills": kills,
        "equal_to_undisturbed": equal,
    }


def main() -> None:
    random.seed(SEED)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        folder = work / "photos"
        folder.mkdir()
        picture = large_photo(1024, 1024)
        for number in range(IMAGES):
            cv2.imwrite(str(folder / f"{number:02}.jpg"), np.roll(picture, 30 * number, axis=1)[:480, :640])
        result = {f"jobs {jobs}": run(folder, work, jobs) for jobs in (1, 2)}
    save("crash", {"images": IMAGES, "kills": KILLS, "seed": SEED, **result})


if __name__ == "__main__":
    main()
