"""Tables of correspondence files, in Markdown: what they hold, and why keypoints were rejected.

python benchmarks/dataset_tables.py sets/*.h5
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from common import save
from logpolar.datasets.files import CorrespondenceFile
from logpolar.datasets.statistics import Statistics


def describe(path: Path) -> dict[str, object]:
    with CorrespondenceFile(path) as file:
        statistics, counts = Statistics.of(file), file.counts()
        per_pair = np.diff(file.column("pairs", "correspondences"), axis=1)
        return {
            **counts,
            "validation_pairs": len(file.pairs("validation")),
            "median_per_pair": float(np.median(per_pair)),
            "megabytes": round(path.stat().st_size / 1e6, 1),
            "mismatch_quantiles": {str(q): round(v, 2) for q, v in statistics.quantiles().items()},
            "share_above_2x": round(statistics.fraction_above(2), 4),
            "image_pairs_rejected": file.summary.get("image_pairs_rejected", {}),
            "keypoints_rejected": statistics.rejects,
            "seed": file.settings["split"]["seed"],
        }


def table(rows: dict[str, list[str]], head: list[str]) -> str:
    lines = [head, ["---"] * len(head), *([name, *cells] for name, cells in rows.items())]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    scenes = {Path(name).stem: describe(Path(name)) for name in sys.argv[1:]}
    contents, rejected = {}, {}
    causes = list(next(iter(scenes.values()))["keypoints_rejected"])
    for name, of in scenes.items():
        quantiles = [f"{value:.2f}" for value in of["mismatch_quantiles"].values()]
        counts = [
            of["images"],
            of["pairs"],
            of["validation_pairs"],
            of["correspondences"],
            f"{of['median_per_pair']:g}",
        ]
        contents[name] = [*map(str, counts), *quantiles, f"{100 * of['share_above_2x']:.1f}", str(of["megabytes"])]
        rejected[name] = [f"{of['keypoints_rejected'][cause] / 1000:.1f}" for cause in causes]
    head = ["", "images", "pairs", "to validate", "correspondences", "median a pair"]
    print(table(contents, [*head, "50 %", "90 %", "95 %", "99 %", "> 2x, %", "MB"]))
    print()
    print(table(rejected, ["thousands", *causes]))
    print()
    save("datasets", scenes)


if __name__ == "__main__":
    main()
