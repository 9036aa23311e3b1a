"""`logpolar sfm` against COLMAP's own pipeline at its defaults, on scenes with known cameras.

    python benchmarks/sfm_colmap.py scenes/taj_mahal ... --ways colmap high no-refine -o results/

Every way runs in a process of its own, for time and memory. COLMAP: `extract_features`, `match_exhaustive` and
`incremental_mapping` of pycolmap, all options at their defaults, on the CPU. Ours: `logpolar sfm` at a quality preset;
`no-refine` is the default without sub-pixel refinement. Photos are those of the workspace, at most ``--photos`` of
them, evenly spaced by name; the true cameras are compared after a similarity, as in `logpolar eval sfm`. A finished run
is kept: RESULTS/SCENE-WAY.json. Features and matches of `high` are used by the ways that differ after them; their time
is then not counted.

``--localise N`` leaves N photos out of the models and localises them in ours afterwards. ``table RESULTS`` prints what
was measured, ``collect RESULTS`` writes it to benchmarks/results/sfm.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

FEWEST = 10
"""Photos that models keep, however many are left out."""


def spread(names: list[str], count: int) -> list[str]:
    """``count`` of the names, evenly spaced; all of them for 0."""
    if not count or count >= len(names):
        return list(names)
    return [names[round(row)] for row in np.linspace(0, len(names) - 1, count)]


def link_photos(scene: Path, place: Path, most: int, left_out: int) -> tuple[list[str], list[str]]:
    """Links to at most so many of the scene's photos; names of those linked and of those left out of them."""
    names = spread(sorted(path.name for path in (scene / "images").iterdir()), most)
    left_out = min(left_out, max(len(names) - FEWEST, 0))
    chosen = spread(names, left_out) if left_out else []
    place.mkdir(parents=True, exist_ok=True)
    for name in set(names) - set(chosen):
        if not (place / name).exists():
            (place / name).symlink_to((scene / "images" / name).resolve())
    return sorted(set(names) - set(chosen)), chosen


def run_colmap(photos: Path, output: Path) -> None:
    import pycolmap

    output.mkdir(parents=True, exist_ok=True)
    database = output / "database.db"
    database.unlink(missing_ok=True)
    pycolmap.logging.minloglevel = 2
    pycolmap.extract_features(str(database), str(photos), device=pycolmap.Device.cpu)
    pycolmap.match_exhaustive(str(database), device=pycolmap.Device.cpu)
    (output / "sparse").mkdir(exist_ok=True)
    pycolmap.incremental_mapping(str(database), str(photos), str(output / "sparse"))


def command_of(way: str, photos: Path, output: Path) -> list[str]:
    if way == "colmap":
        return [sys.executable, __file__, "--run-colmap", str(photos), str(output)]
    quality = ["--no-refine"] if way == "no-refine" else ["--quality", way]
    return [sys.executable, "-m", "logpolar", "sfm", str(photos), str(output), "--jobs", "1", *quality]


def timed(command: list[str]) -> dict[str, Any]:
    """Runs a command: exit code, seconds, those of all cores, and memory."""
    began = time.perf_counter()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        log.seek(0)
        text = log.read().decode(errors="replace")
    figures = {
        "exit_code": process.returncode,
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_mb": round(used.ru_maxrss / 1024),
    }
    return figures if process.returncode in (0, 1) else figures | {"error": text[-500:]}


def share(source: Path, output: Path) -> bool:
    """Lets a run start with the features and matches of a finished one."""
    files = [source / name for name in ("features.h5", "matches.h5", "report.json")]
    if output.exists() or not all(path.exists() for path in files):
        return False
    output.mkdir(parents=True)
    for path in files[:2]:
        shutil.copyfile(path, output / path.name)
    (output / "report.json").write_text('{"made_of": ""}')
    return True


def score(scene: Path, output: Path, photos: int) -> dict[str, Any]:
    import pycolmap

    from logpolar.evaluation.posed_scenes import read_scene
    from logpolar.evaluation.sfm import camera_errors, read_poses
    from logpolar.sfm.mapper import largest_model

    truth = {image.name: image.camera for image in read_scene(scene, min_shared=1, min_visibility=0).images}
    folders = [path for path in (output / "sparse").glob("*") if path.name.isdigit()]
    if not folders:
        return {"photos": photos, "registered": 0, "correct": 0}
    models = {int(path.name): pycolmap.Reconstruction(str(path)) for path in folders}
    number, model = largest_model(models)
    poses = read_poses(output / "sparse" / str(number))
    errors = camera_errors({name: pose for name, pose in poses.items() if name in truth}, truth)
    return {
        "photos": photos,
        "registered": model.num_reg_images(),
        "correct": int(errors.agree.sum()),
        "rotation_median_degrees": round(float(np.median(errors.degrees)), 4),
        "position_median": round(float(np.median(errors.fractions)), 5),
        "points": model.num_points3D(),
        "track_length": round(model.compute_mean_track_length(), 2),
        "reprojection_error": round(model.compute_mean_reprojection_error(), 3),
        "models": len(models),
    }


def localise(scene: Path, output: Path, names: list[str]) -> dict[str, Any]:
    """Errors of photos that were left out, in the model aligned to the true cameras."""
    import pycolmap

    from logpolar.evaluation.posed_scenes import read_scene
    from logpolar.evaluation.sfm import camera_errors, read_poses
    from logpolar.sfm.localisation import Localiser
    from logpolar.sfm.mapper import read_report

    report = read_report(output)
    if report is None:
        return {"left_out": len(names), "localised": 0}
    truth = {image.name: image.camera for image in read_scene(scene, min_shared=1, min_visibility=0).images}
    poses = read_poses(output / "sparse" / str(report.model))
    found = [
        each for each in Localiser(output).localise([scene / "images" / name for name in names]) if not each.reason
    ]
    for each in found:
        w, x, y, z = each.quaternion
        poses[each.name] = pycolmap.Rotation3d(np.array([x, y, z, w])).matrix(), np.array(each.centre)
    errors = camera_errors(poses, truth)
    rows = [row for row, name in enumerate(poses) if name in names]
    return {
        "left_out": len(names),
        "localised": len(found),
        "rotation_median_degrees": round(float(np.median(errors.degrees[rows])), 4) if rows else None,
        "position_median": round(float(np.median(errors.fractions[rows])), 5) if rows else None,
    }


def measure(scene: Path, way: str, work: Path, most: int, left_out: int) -> dict[str, Any]:
    import pycolmap

    label = f"{scene.name}-{way}" + (f"-without-{left_out}" if left_out else "")
    photos, output = work / f"{label}-photos", work / label
    names, chosen = link_photos(scene, photos, most, left_out)
    shared = way == "no-refine" and share(work / label.replace(way, "high"), output)
    result = {"scene": scene.name, "way": way, "shared": shared, "pycolmap": str(pycolmap.__version__)}
    result |= timed(command_of(way, photos, output))
    if "error" in result:
        return result
    result |= score(scene, output, len(names))
    return result | ({"localisation": localise(scene, output, chosen)} if chosen and way == "high" else {})


FIGURES = (
    *("photos", "registered", "correct", "rotation_median_degrees", "position_median", "points", "track_length"),
    *("reprojection_error", "cpu_seconds", "peak_mb"),
)


def table(results: Path) -> None:
    """Markdown, a line for every run."""
    print("| " + " | ".join(("scene", "way", *FIGURES)) + " |")
    for path in sorted(results.glob("*.json")):
        found = json.loads(path.read_text())
        print(f"| {path.stem.removesuffix('-' + found['way'])} | {found['way']} | ", end="")
        print(" | ".join(str(found.get(figure, "")) for figure in FIGURES) + " |")


def collect(results: Path) -> None:
    from common import save

    runs = [json.loads(path.read_text()) for path in sorted(results.glob("*.json"))]
    save("sfm", {"seed": 0, "matched_on": "CPU", "runs": runs})


def main() -> None:
    if sys.argv[1:2] in (["table"], ["collect"]):
        {"table": table, "collect": collect}[sys.argv[1]](Path(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", type=Path, nargs="*")
    parser.add_argument("--ways", nargs="+", default=["colmap", "high"])
    parser.add_argument("--photos", type=int, default=0, help="at most so many of a scene; 0: all")
    parser.add_argument("--localise", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, default=Path("results"))
    parser.add_argument("--run-colmap", type=Path, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run_colmap:
        run_colmap(*arguments.run_colmap)
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    for scene in arguments.scenes:
        for way in arguments.ways:
            left_out = arguments.localise
            path = arguments.output / f"{scene.name}-{way}{f'-without-{left_out}' if left_out else ''}.json"
            if not path.exists():
                found = measure(scene, way, arguments.output / "work", arguments.photos, left_out)
                path.write_text(json.dumps(found, indent=1) + "\n")
            print(json.dumps(json.loads(path.read_text())), flush=True)


if __name__ == "__main__":
    main()
