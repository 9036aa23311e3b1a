"""Kills at random moments, full disks, two writers, names that lead outside, and memory over many images."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from safetensors.numpy import load_file

from faults.inputs import Words
from faults.material import SMALL, VIEWS, Material
from faults.running import Tally, finish, kill, run, start

Command = Callable[[Path], Words]


def commands(made: Material) -> dict[str, tuple[Command, str]]:
    """Commands that write into a folder, and the file there that has the result."""
    tiny = ("-m", made.tiny)
    return {
        "extract": (lambda out: ("extract", made.photos, "-o", out / "f.h5", *SMALL), "f.h5"),
        "match-features": (lambda out: ("match-features", made.features, "-o", out / "m.h5", "-j", 1), "m.h5"),
        "dataset homographies": (
            lambda out: ("dataset", "homographies", made.photos, "-o", out / "v.h5", *VIEWS),
            "v.h5",
        ),
        "dataset colmap": (
            lambda out: (
                *("dataset", "colmap", made.workspace, "-o", out / "d.h5", "-j", 1, "--max-keypoints", 200),
                *("--min-overlap", 0.1, "--distractors", 20),
            ),
            "d.h5",
        ),
        "colmap export": (
            lambda out: ("colmap", "export", made.features, made.matches, "--images", made.photos, "-o", out / "d.db"),
            "d.db",
        ),
        "colmap redescribe": (
            lambda out: ("colmap", "redescribe", made.database, made.photos, "-o", out / "d.db", "-j", 1, *tiny),
            "d.db",
        ),
        "imc export": (
            lambda out: ("imc", "export", made.features, made.matches, "-o", out, "--scene", "s", "--overwrite"),
            "phototourism/s/matches.h5",
        ),
        "train": (lambda out: ("train", made.config, "-o", out / "run"), "run/tiny.safetensors"),
        "train-detector": (
            lambda out: ("train-detector", made.detector_config, "-o", out / "run"),
            "run/tiny.safetensors",
        ),
        "train-matcher": (
            lambda out: ("train-matcher", made.matcher_config, "-o", out / "run"),
            "run/tiny.safetensors",
        ),
        "ablate": (
            lambda out: ("ablate", made.config, "-o", out / "a", "--lambdas", "12", "--set", "optimisation.steps=6"),
            "a/table.csv",
        ),
        "quantise": (
            lambda out: ("quantise", made.tiny, made.photos, "-o", out / "q.safetensors"),
            "q.safetensors",
        ),
        "eval": (
            lambda out: (
                *("eval", "patches", made.views, "-d", "sift", "-o", out / "r"),
                *("--cache", out / "c", "--resamples", 2),
            ),
            "r/patches.csv",
        ),
        "sfm": (lambda out: ("sfm", made.photos, out / "model", "-j", 1, *tiny, *SMALL), "model/features.h5"),
        "patches": (lambda out: ("patches", made.photos / "0.jpg", "-o", out / "p.png"), "p.png"),
        "match": (
            lambda out: ("match", made.photos / "0.jpg", made.photos / "1.jpg", "--h5", out / "m.h5", *SMALL, *tiny),
            "m.h5",
        ),
        "export": (lambda out: ("export", made.tiny, "-o", out / "x.onnx"), "x.onnx"),
    }


def content(path: Path) -> object:
    """What a result holds, whatever the order in which it was written; raises if it is not whole."""
    if path.suffix == ".h5":
        found: dict[str, str] = {}

        def visit(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and name != "summary":
                values = item[()]
                data = values.tobytes() if values.dtype != object else repr(values.tolist()).encode()
                found[name] = hashlib.sha256(data).hexdigest()

        with h5py.File(path, "r") as file:
            file.visititems(visit)
        return found
    if path.suffix == ".db":
        with contextlib.closing(sqlite3.connect(path)) as tables:  # an open file would keep its disk mounted
            return [
                tables.execute(f"SELECT * FROM {name} ORDER BY 1").fetchall()
                for name in ("images", "keypoints", "matches")
            ]
    if path.suffix == ".safetensors":
        return {name: values.tobytes() for name, values in load_file(path).items()}
    return path.read_bytes()


RESUMABLE = (
    *("extract", "match-features", "dataset homographies", "dataset colmap", "colmap redescribe", "sfm", "train"),
    *("train-detector", "train-matcher", "ablate", "quantise", "eval"),
)


_IN_A_ROW = 10
"""So often a run is killed before it may end."""


def try_kills(tally: Tally, made: Material, work: Path, count: int, random: np.random.Generator) -> None:
    """SIGKILL at random moments, run after run in one folder until one ends, and again; a run that ended is no kill."""
    for name in RESUMABLE:
        command, result = commands(made)[name]
        whole, broken = _empty(work / "whole"), work / "broken"
        begin = time.monotonic()
        run(*command(whole), seconds=600)
        duration, expected = time.monotonic() - begin, content(whole / result)
        kills = 0
        while kills < count:
            _empty(broken)
            for _ in range(min(_IN_A_ROW, count - kills)):
                process = start(*command(broken))
                time.sleep(float(random.uniform(0.3, 1.1)) * duration)
                if process.poll() is not None:
                    break
                kill(process)
                process.log.close()  # type: ignore[attr-defined]
                kills += 1
                tally.add(f"kills, {name}", _opens(broken / result), f"kill {kills}")
            else:
                process = start(*command(broken))
            ended = finish(process, seconds=600)
            same = ended.code == 0 and content(broken / result) == expected
            tally.add(f"after kills, {name}", "" if same else "differs from an undisturbed run", ended.last_line)


def _opens(result: Path) -> str:
    """What is wrong with a result, if there is one."""
    try:
        if result.exists():
            content(result)
    except Exception as error:
        return f"does not open: {type(error).__name__}"
    return ""


def try_full_disk(tally: Tally, made: Material, work: Path, sizes: tuple[int, ...]) -> None:
    """New results on disks of so many kilobytes, and earlier ones on a disk without space. Needs root, to mount."""
    disk = work / "disk"
    disk.mkdir(parents=True, exist_ok=True)
    for name, (command, result) in commands(made).items():
        for size in sizes:
            _mount(disk, size)
            ended = run(*command(disk), seconds=240)
            subprocess.run(["umount", disk], check=True)
            tally.add(f"full disk, {name}", ended.problem(), f"{size} kB: {ended.last_line}")
        _mount(disk, 8192)
        run(*command(disk), seconds=240)
        before = content(disk / result) if (disk / result).exists() else None
        with (disk / "filler").open("wb") as file:
            file.write(bytes(shutil.disk_usage(disk).free))
        words = command(disk)
        ended = run(*words, *(["--overwrite"] if name in _OVERWRITING else []), seconds=240)
        (disk / "filler").unlink()  # SQLite needs space to read
        lost = before is not None and (not (disk / result).exists() or content(disk / result) != before)
        tally.add(f"no space, {name}", ended.problem() or "earlier result lost" * lost, ended.last_line)
        subprocess.run(["umount", disk], check=True)


_OVERWRITING = (
    *("extract", "match-features", "dataset homographies", "dataset colmap"),
    *("colmap export", "colmap redescribe", "sfm"),
)


def try_two_writers(tally: Tally, made: Material, work: Path, rounds: int, random: np.random.Generator) -> None:
    for name, (command, result) in commands(made).items():
        alone = _empty(work / "alone")
        run(*command(alone), seconds=600)
        expected = content(alone / result)
        for _ in range(rounds):
            out = _empty(work / "both")
            processes = []
            for _ in range(2):
                processes.append(start(*command(out)))
                time.sleep(float(random.choice([0, 0.1, 0.7])))
            ended = [finish(process, 300) for process in processes]
            problem = next((each.problem() for each in ended if each.problem()), "")
            if not problem and not any(each.code == 0 for each in ended):
                problem = "both failed"
            if not problem and content(out / result) != expected:
                problem = "the result differs"
            tally.add(f"two writers, {name}", problem, " | ".join(each.last_line for each in ended))


def try_outside(tally: Tally, made: Material, work: Path) -> None:
    """Names in files that lead to a file outside the output: it stays, and nothing is made beside it."""
    outside = _empty(work / "outside")
    canary = outside / "canary.jpg"
    for name in (str(outside / "new"), os.path.relpath(outside / "new", work / "scene"), str(canary)):
        cases: dict[str, Words] = {}
        record = {"settings": {}, "photos": {name: 1}, "linked": True, "finished": {}}
        workspace = _empty(work / "workspace")
        (workspace / "reconstruction.json").write_text(json.dumps({**record, "format": "logpolar-reconstruction-1"}))
        cases["record"] = ("dataset", "reconstruct", made.photos, workspace, "--overwrite", "--max-image-size", 64)
        with sqlite3.connect(shutil.copy(made.database, work / "d.db")) as tables:
            tables.execute("UPDATE images SET name = ? WHERE name = '0.jpg'", (name,))
        cases["database"] = ("colmap", "redescribe", work / "d.db", made.photos, "-o", work / "n.db", "-m", made.tiny)
        with h5py.File(shutil.copy(made.views, work / "v.h5"), "r+") as file:
            file["images/name"][0] = name
        cases["correspondences"] = ("eval", "sfm", work / "v.h5", "-d", "sift", "-o", work / "r")
        cases["scene"] = ("imc", "export", made.features, "-o", work / "s", "--scene", name)
        for what, words in cases.items():
            canary.write_bytes(b"here")
            ended = run(*words, seconds=240)
            touched = [path.name for path in outside.iterdir()] != [canary.name] or canary.read_bytes() != b"here"
            tally.add(f"outside, {what}", ended.problem() or "touched a file outside" * touched, ended.last_line)


def try_memory(tally: Tally, made: Material, count: int) -> None:
    """Resident memory over many images in one process: the second half grows by less than 60 MB."""
    from logpolar import Extractor

    extractor, paths, seen = Extractor("logpolar-96-small", max_keypoints=500), sorted(made.photos.iterdir()), []
    for number in range(count):
        extractor.extract(paths[number % len(paths)])
        if number % max(count // 10, 1) == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            seen.append(round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20))
    tally.figures[f"MB over {count} images"] = seen
    growth = seen[-1] - seen[len(seen) // 2]
    tally.add("memory", f"grows by {growth} MB" if growth > 60 else "", str(seen))


def _mount(disk: Path, kilobytes: int) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", disk], check=True)


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
