"""Descriptors on correspondence files of scenes: FPR95 pooled over a file, right nearest neighbours.

python benchmarks/scenes.py FILES... -d logpolar-96 -d rootsift -d tfeat:tfeat-liberty.params -o scenes.json

Descriptors are named by the specs of ``logpolar.evaluation.descriptors``. Wrong answers are all other keypoints of the
second image; see ``logpolar.evaluation.pairs``.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from logpolar.datasets.building import versions
from logpolar.datasets.files import CorrespondenceFile
from logpolar.evaluation.descriptors import open_descriptor
from logpolar.evaluation.pairs import mean_score, score_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("-d", "--descriptor", action="append", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", choices=("train", "validation", "test"), default="test")
    parser.add_argument("--pairs", type=int, default=0, help="of each file; 0 for all")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    methods: dict[str, Any] = {}
    for spec in options.descriptor:
        method = open_descriptor(spec, options.device)
        scores = {}
        for path in options.files:
            start = time.perf_counter()
            with CorrespondenceFile(path) as file:
                scores[path.stem] = score_file(file, method.describe, options.part, options.pairs)
            print(
                f"{method.name} {path.stem} {scores[path.stem].to_dict()} {time.perf_counter() - start:.0f} s",
                flush=True,
            )
        mean = mean_score(list(scores.values()))
        print(f"{method.name} mean {mean.to_dict()}", flush=True)
        methods[method.name] = {name: score.to_dict() for name, score in {**scores, "mean": mean}.items()}
    result = {"pairs": options.pairs, "part": options.part, "versions": versions(), "descriptors": methods}
    options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
