"""Which recipe is better: one model for each variant, same data and steps, measured on scenes that were held out.

python benchmarks/recipe_search.py CONFIG VARIANTS.txt --held-out scene.h5 --held-out photos.h5 -o search.jsonl

A line of VARIANTS is a name and changes of the config: ``jitter 0.8: augmentation.scale_jitter=0.8 loss.margin=1``.
Variants that the output has already are left out. Held-out files must not be among the config's data: images of a
scene that was trained on flatter what learns scenes by heart.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from logpolar.datasets.files import CorrespondenceFile
from logpolar.evaluation.pairs import mean_score, score_file
from logpolar.models.describers import open_describer
from logpolar.training.config import find_files, read_config
from logpolar.training.data import TrainingData, load_training_data
from logpolar.training.processes import World
from logpolar.training.run import train


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("variants", type=Path)
    parser.add_argument("--held-out", type=Path, action="append", required=True)
    parser.add_argument("--pairs", type=int, default=40, help="of each held-out file")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no variant is started after that")
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser.parse_args()


def read_variants(path: Path) -> dict[str, list[str]]:
    lines = [line.partition(":") for line in path.read_text().splitlines() if line.strip()]
    return {name.strip(): changes.split() for name, _, changes in lines}


def measure(model: Path, files: list[Path], pairs: int, device: str) -> dict[str, Any]:
    describer = open_describer(model, device=device, precision="float32", runtime="torch")
    scores = {}
    for path in files:
        with CorrespondenceFile(path) as file:
            scores[path.stem] = score_file(file, describer, None, pairs)
    return {name: score.to_dict() for name, score in {**scores, "mean": mean_score(list(scores.values()))}.items()}


def main() -> None:
    options, start = arguments(), time.perf_counter()
    done = (
        [json.loads(line)["name"] for line in options.output.read_text().splitlines()]
        if options.output.exists()
        else []
    )
    loaded: dict[tuple[Any, ...], TrainingData] = {}
    for name, changes in read_variants(options.variants).items():
        if name in done:
            continue
        if time.perf_counter() - start > options.seconds:
            sys.exit(f"no time left for '{name}'")
        config = read_config(options.config, [*changes, "run.validation_pairs=1", "run.tensorboard=false"])
        sources = [find_files(source) for source in config.data]
        if {path.resolve() for path in options.held_out} & {path.resolve() for each in sources for path in each}:
            sys.exit("a held-out file is among the data")
        device = World().device(config.run.device)
        copies, seed = config.augmentation.used_copies, config.run.seed
        key = (*map(tuple, sources), config.batch.per_pair, copies, copies and seed)
        loaded[key] = loaded.get(key) or load_training_data(
            sources, config.batch.per_pair, device, copies=copies, seed=seed
        )
        with TemporaryDirectory() as folder:
            report = train(config, Path(folder), data=loaded[key])
            speed = (Path(folder) / "log.csv").read_text().splitlines()[-1].split(",")[3]
            result = measure(report.model, options.held_out, options.pairs, str(device))
        line = {"name": name, "changes": changes, "steps_per_second": float(speed), "held_out": result}
        with options.output.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(f"{time.perf_counter() - start:.0f} s: {name}: {result['mean']}", flush=True)


if __name__ == "__main__":
    main()
