"""Rank-1 among 22 000 x 22 000 descriptors, and `logpolar eval patches` on a scene without and from its cache.

python benchmarks/ranking.py FILE.h5 [DESCRIPTOR]

FILE.h5 is a correspondence file of a scene, DESCRIPTOR a spec (logpolar-96 unless given); all of its pairs are taken.
Every case runs in a process of its own, so that its peak memory is its own. 22 000 is about the pool of the paper's
HPatches table; what is expected of it: less than 10 s and less than 1 GB on 2 cores.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from common import save
from speed_subjects.measuring import peak_megabytes

COUNT, LENGTH, SEED = 22_000, 128, 0


def rank_pool() -> dict[str, float]:
    """Unit vectors and copies of them, so noisy that a third of the copies are the nearest."""
    from logpolar.evaluation.metrics import pooled_ranks, rank1

    random = np.random.default_rng(SEED)
    first = unit(random.normal(size=(COUNT, LENGTH)).astype(np.float32))
    second = unit(first + 0.27 * random.normal(size=first.shape).astype(np.float32))
    start = time.perf_counter()
    found = pooled_ranks(first, second)
    return {
        "seconds": round(time.perf_counter() - start, 2),
        "peak_mb": round(peak_megabytes()),
        "rank1": round(rank1(found), 4),
    }


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def evaluate_patches(scene: str, descriptor: str, cache: str, output: str) -> dict[str, float]:
    """The command itself, with its defaults."""
    from logpolar.cli import main

    start = time.perf_counter()
    main(["eval", "patches", scene, "-d", descriptor, "-o", output, "--cache", cache], standalone_mode=False)
    return {"seconds": round(time.perf_counter() - start, 2), "peak_mb": round(peak_megabytes())}


def main() -> None:
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    scene, descriptor = sys.argv[1], (*sys.argv[2:], "logpolar-96")[0]
    context = multiprocessing.get_context("spawn")
    result: dict[str, object] = {"count": COUNT, "length": LENGTH, "seed": SEED}
    result |= {"scene": Path(scene).name, "descriptor": descriptor}
    with tempfile.TemporaryDirectory() as folder:
        command = (scene, descriptor, f"{folder}/cache", f"{folder}/results")
        cases = {
            "rank-1": (rank_pool, ()),
            "eval patches, nothing cached": (evaluate_patches, command),
            "eval patches, from its cache": (evaluate_patches, command),
        }
        for name, (work, arguments) in cases.items():
            with context.Pool(1) as pool:
                result[name] = pool.apply(work, arguments)
            print(name, result[name], flush=True)
    save("ranking", result)


if __name__ == "__main__":
    main()
