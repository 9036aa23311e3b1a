"""8000 keypoints of a 4000 x 3000 image on the base install: time of each part and peak memory.

Every case runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np

from common import large_photo, save

WIDTH, HEIGHT, COUNT, REPEATS = 4000, 3000, 8000, 5


def peak_megabytes() -> float:
    """Of this process alone (Linux): getrusage would count what its parent held when it was started."""
    status = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in status if line.startswith("VmHWM")).split()[1]) / 1024


def median_seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def describe_given(model: str, photo: Path) -> dict[str, float]:
    """Full resolution, keypoints handed in."""
    from logpolar.extraction import Extractor
    from logpolar.keypoints import Keypoints

    random = np.random.default_rng(0)
    keypoints = Keypoints.from_points(
        random.uniform((0, 0), (WIDTH, HEIGHT), (COUNT, 2)),
        np.exp(random.normal(1.4, 0.6, COUNT)),  # like SIFT's: median 4 px, 1 % above 16 px
        random.uniform(0, 360, COUNT),
    )
    start = time.perf_counter()
    Extractor(model, max_size=None).extract(photo, keypoints)
    return {"seconds": round(time.perf_counter() - start, 2), "peak_mb": round(peak_megabytes())}


def extract_with_defaults(model: str, photo: Path) -> dict[str, float]:
    """What `logpolar extract --max-keypoints 8000` does: reduced to 1600 px, SIFT, description."""
    from logpolar.detection import SiftDetector
    from logpolar.extraction import Extractor

    start = time.perf_counter()
    features = Extractor(model, SiftDetector(max_keypoints=COUNT)).extract(photo)
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "keypoints": len(features),
        "peak_mb": round(peak_megabytes()),
    }


def sampler_share(model: str, photo: Path) -> dict[str, float]:
    """Sampling against the network, 8000 patches, both on all cores; the pyramid is part of sampling."""
    from logpolar.images import read_gray, shrink
    from logpolar.keypoints import Keypoints
    from logpolar.models import load_model
    from logpolar.runtimes import OnnxRuntime
    from logpolar.sampling import sample_patches

    random = np.random.default_rng(0)
    gray = shrink(read_gray(photo), 1600)
    keypoints = Keypoints.from_points(
        random.uniform((0, 0), (1600, 1200), (COUNT, 2)),
        np.exp(random.normal(1.4, 0.6, COUNT)),
        random.uniform(0, 360, COUNT),
    )
    loaded = load_model(model)
    runtime = OnnxRuntime(loaded)
    patches = sample_patches(gray, keypoints, loaded.sampling)
    runtime.describe(patches[:256])
    sampling = median_seconds(lambda: sample_patches(gray, keypoints, loaded.sampling))
    network = median_seconds(lambda: runtime.describe(patches))
    return {
        "sampling_seconds": round(sampling, 3),
        "network_seconds": round(network, 3),
        "share": round(sampling / network, 4),
    }


def main() -> None:
    context = multiprocessing.get_context("spawn")
    result: dict[str, object] = {"image": [WIDTH, HEIGHT], "keypoints": COUNT, "repeats": REPEATS}
    with tempfile.TemporaryDirectory() as folder:
        photo = Path(folder) / "photo.jpg"
        cv2.imwrite(str(photo), large_photo(WIDTH, HEIGHT))
        for case in (describe_given, extract_with_defaults, sampler_share):
            for model in ("logpolar-96", "paper-cartesian-12"):
                with context.Pool(1) as pool:
                    result[f"{case.__name__} {model}"] = pool.apply(case, (model, photo))
                print(case.__name__, model, result[f"{case.__name__} {model}"], flush=True)
    save("description", result)


if __name__ == "__main__":
    main()
