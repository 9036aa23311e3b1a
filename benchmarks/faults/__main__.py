"""All classes of faults, from the folder ``benchmarks``: ``python -m faults --budget large --seed 7``."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np

from common import save
from faults import inputs, interruptions
from faults.material import make
from faults.running import Tally

BUDGETS = {
    "small": {"damaged": 6, "kills": 5, "sizes": (64, 1024), "rounds": 1, "images": 60},
    "large": {"damaged": 300, "kills": 100, "sizes": (16, 64, 256, 1024, 2048), "rounds": 10, "images": 300},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", choices=BUDGETS, default="small")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="classes, separated by commas")
    chosen = parser.parse_args()
    budget, random, tally = BUDGETS[chosen.budget], np.random.default_rng(chosen.seed), Tally()
    with tempfile.TemporaryDirectory() as name:
        made, work = make(Path(name) / "material"), Path(name) / "work"
        classes = {
            "damaged": lambda: inputs.try_damaged(tally, made, work, budget["damaged"], random),
            "crafted": lambda: inputs.try_crafted(tally, made, work),
            "outside": lambda: interruptions.try_outside(tally, made, work),
            "kills": lambda: interruptions.try_kills(tally, made, work, budget["kills"], random),
            "disk": lambda: interruptions.try_full_disk(tally, made, work, budget["sizes"]),
            "writers": lambda: interruptions.try_two_writers(tally, made, work, budget["rounds"], random),
            "memory": lambda: interruptions.try_memory(tally, made, budget["images"]),
        }
        for name_of, attempt in classes.items():
            if name_of == "disk" and os.geteuid() != 0:
                print("disk: left out, mounting small disks needs root")
            elif not chosen.only or name_of in chosen.only.split(","):
                print(name_of, flush=True)
                work.mkdir(exist_ok=True)
                attempt()
    counts = {kind: {"tried": count, "bad": tally.bad[kind]} for kind, count in tally.tried.items()}
    result = {"budget": chosen.budget, "seed": chosen.seed, "counts": counts}
    examples = {kind: words.replace(name, "SCRATCH") for kind, words in tally.examples.items()}
    save("faults", {**result, "examples": examples, "figures": tally.figures})


if __name__ == "__main__":
    main()
