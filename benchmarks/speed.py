"""Speed and memory on a CPU, side by side with peers.

python benchmarks/speed.py                      everything, in less than 10 minutes on two quiet cores
python benchmarks/speed.py matching sampler     these subjects only; the others keep the results they have
python benchmarks/speed.py --table              results as Markdown, for docs/performance.md

Peers run on the same machine and take turns with ours: ratios hold even where times do not. Peak memory is that of a
process of its own which does the work once. Needs kornia and OpenVINO: pip install -e '.[kornia,openvino]'.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import RESULTS, machine
from logpolar.models import load_model, shipped_models
from logpolar.settings import DEFAULT_MODEL
from speed_subjects import parts, whole
from speed_subjects.folder import folder
from speed_subjects.measuring import Settings, Subject, measure_memory, peak_megabytes, time_in_turn, with_ratios

SUBJECTS: dict[str, Callable[[Settings], Subject]] = {
    "sampler": parts.sampler,
    "network": parts.network,
    "detection": parts.detection,
    "matching": parts.matching,
    "geometry": parts.geometry,
    "description": whole.description,
    "extraction": whole.extraction,
    "growth": whole.growth,
    "start": whole.start,
}
WITHOUT_MEMORY = ("start",)
OUTPUT = RESULTS / "speed.json"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"of {', '.join([*SUBJECTS, 'folder'])}")
    parser.add_argument("--model", action="append", metavar="MODEL@RUNTIME", help="instead of all shipped variants")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--photos", type=int, default=200, help="of the folder")
    parser.add_argument("--table", action="store_true", help="print the stored results as Markdown")
    parser.add_argument("--no-memory", action="store_true", help="times only")
    parser.add_argument("--memory-of", metavar="CASE", help="run this case once and print the process's peak memory")
    return parser.parse_args()


def default_models() -> list[str]:
    """The default model and its variants with every CPU runtime that runs them, the one to recommend last."""
    names = [name for name in shipped_models() if name.startswith(DEFAULT_MODEL)]
    order = {"float32": 0, "bfloat16": 1, "int8": 2}
    found = []
    for name in sorted(names, key=lambda name: (order[load_model(name).card.precision], -len(name))):
        found += [f"{name}@onnxruntime"] * (load_model(name).card.precision != "bfloat16") + [f"{name}@openvino"]
    return found


def main() -> None:
    chosen = arguments()
    if chosen.table:
        print(tables(json.loads(OUTPUT.read_text())))
        return
    models = tuple(chosen.model or default_models())
    settings = Settings(models, chosen.threads, chosen.repeats, chosen.photos)
    limit_threads(settings.threads)
    if chosen.memory_of is not None:
        print(json.dumps(memory_of(chosen.subjects[0], chosen.memory_of, settings)))
        return
    results = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    for name in chosen.subjects or [*SUBJECTS, "folder"]:
        result = folder(settings) if name == "folder" else measured(name, settings, not chosen.no_memory)
        # The machine belongs to each subject: they may be measured on different days.
        about = {"threads": settings.threads, "machine": machine(*PACKAGES)}
        results[name] = {**result, **about}
        print(table(results[name]), flush=True)
        OUTPUT.write_text(json.dumps(results, indent=2) + "\n")


PACKAGES = ("logpolar", "numpy", "opencv-python-headless", "onnxruntime", "openvino", "torch", "kornia")


def limit_threads(threads: int) -> None:
    import cv2

    cv2.setNumThreads(threads)
    if "torch" in sys.modules or threads != os.cpu_count():
        import torch

        torch.set_num_threads(threads)


def measured(name: str, settings: Settings, memory: bool) -> dict[str, Any]:
    subject = SUBJECTS[name](settings)
    rows = with_ratios(time_in_turn(subject, settings.repeats), subject.baseline)
    if memory and name not in WITHOUT_MEMORY:
        same = ["--threads", str(settings.threads)]
        for model in settings.models:
            same += ["--model", model]
        for row in rows:
            row["peak_mb"] = round(measure_memory(Path(__file__), name, row["name"], same))
    return {"title": subject.title, "unit": subject.unit, "baseline": subject.baseline, "rows": rows}


def memory_of(name: str, case: str, settings: Settings) -> float:
    work = next(each for each in SUBJECTS[name](settings).cases if each.name == case).make()
    work()
    return peak_megabytes()


def tables(results: dict[str, Any]) -> str:
    return "\n\n".join(table(result) for result in results.values())


def table(result: dict[str, Any]) -> str:
    """One subject as Markdown."""
    columns = ["", "seconds (quartiles)", result["unit"]]
    baseline = bool(result.get("baseline"))
    columns += ["x"] * baseline + ["peak MB"]
    lines = [f"**{result['title']}**", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in result["rows"]:
        low, high = row["quartiles"]
        cells = [row["name"], f"{row['seconds']:.3f} ({low:.3f}-{high:.3f})", f"{row['rate']:,.0f}".replace(",", " ")]
        if row["rate"] < 100:
            cells[2] = f"{row['rate']:.1f}"
        if baseline:
            cells.append(f"{row['ratio']:.2f}")
        quarters = row.get("peak_mb_by_quarter")
        over_time = f" (quarters: {', '.join(map(str, quarters))})" if quarters else ""
        cells.append(f"{row.get('peak_mb', '')}{over_time}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr or ''}")
