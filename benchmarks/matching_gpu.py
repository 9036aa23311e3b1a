"""Image pairs matched a second on a GPU, and on the CPU: 500 pairs of 4096 x 4096 descriptors.

PYTHONPATH=src python benchmarks/matching_gpu.py [--device cuda] [--pairs 500] [--descriptors 4096] [--cpu-pairs 20]

Images are matched exhaustively, as in `logpolar match-features`: each is uploaded once. Descriptors are random unit
vectors, of which a third have a noisy copy in every other image. Times include uploads, the selection of matches and
their way back, not files. The matches of the first ``--cpu-pairs`` pairs are compared with the CPU's, whose pairs per
second are measured with all cores. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import combinations, islice
from typing import Any

import numpy as np
import torch

from logpolar.matching.nearest import match_descriptors, select_matches
from logpolar.matching.options import MatchingOptions
from logpolar.matching.torch_nearest import UploadedImages, nearest_of_pairs
from logpolar.types import FloatArray

SIZE = 128


def images(count: int, descriptors: int) -> list[FloatArray]:
    random = np.random.default_rng(0)
    shared = random.normal(size=(descriptors // 3, SIZE))
    made = []
    for _ in range(count):
        own = random.normal(size=(descriptors, SIZE))
        own[: len(shared)] = shared + 0.4 * own[: len(shared)]
        random.shuffle(own)
        made.append((own / np.linalg.norm(own, axis=1, keepdims=True)).astype(np.float32))
    return made


def measure(device: str, pairs: int, descriptors: int, cpu_pairs: int) -> dict[str, Any]:
    count = next(n for n in range(2, pairs + 2) if n * (n - 1) // 2 >= pairs)
    sets, options = images(count, descriptors), MatchingOptions()
    chosen = list(islice(combinations(range(count), 2), pairs))

    def run() -> tuple[float, list[Any]]:
        uploaded = UploadedImages(lambda name: sets[int(name)], device)
        start = time.perf_counter()
        found = nearest_of_pairs((uploaded[str(i)], uploaded[str(j)]) for i, j in chosen)
        matches = [select_matches(each, options) for each in found]
        return time.perf_counter() - start, matches

    run()  # kernels are loaded at first use
    seconds, matches = min((run() for _ in range(3)), key=lambda each: each[0])
    start = time.perf_counter()
    expected = [match_descriptors(sets[i], sets[j], options) for i, j in chosen[:cpu_pairs]]
    cpu_seconds = (time.perf_counter() - start) / max(cpu_pairs, 1)
    pairs_of = [
        (set(map(tuple, a.indices)), set(map(tuple, b.indices))) for a, b in zip(matches, expected, strict=False)
    ]
    return {
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "torch": torch.__version__,
        "pairs": len(chosen),
        "images": count,
        "descriptors": descriptors,
        "pairs_per_second": len(chosen) / seconds,
        "matches_median": float(np.median([len(each) for each in matches])),
        "cpu_pairs_per_second": 1 / cpu_seconds if cpu_pairs else None,
        "compared_matches": sum(len(theirs) for _, theirs in pairs_of),
        "different_matches": sum(len(ours ^ theirs) for ours, theirs in pairs_of),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--pairs", type=int, default=500)
    parser.add_argument("--descriptors", type=int, default=4096)
    parser.add_argument("--cpu-pairs", type=int, default=20)
    options = parser.parse_args()
    print(json.dumps(measure(options.device, options.pairs, options.descriptors, options.cpu_pairs), indent=1))


if __name__ == "__main__":
    main()
