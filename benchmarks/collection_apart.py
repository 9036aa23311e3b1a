"""SfM of photos of several scenes in one folder, paired by retrieval: no model may mix two scenes.

PYTHONPATH=benchmarks python benchmarks/collection_apart.py SCENES WORK --names SCENE... [--photos 12]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from common import save_section

NEIGHBOURS = 10


def apart(scenes: list[Path], work: Path, photos: int) -> dict[str, Any]:
    folder, output = work / "photos", work / "model"
    for each in (folder, output):
        shutil.rmtree(each, ignore_errors=True)
    for scene in scenes:
        (folder / scene.name).mkdir(parents=True)
        for path in sorted((scene / "images").iterdir())[:photos]:
            shutil.copy(path, folder / scene.name)
    options = ["--quality", "low", "--model", "logpolar-96-int8", "--pairing", "retrieval"]
    options += ["--neighbours", str(NEIGHBOURS)]
    command = [sys.executable, "-m", "logpolar", "sfm", str(folder), str(output), *options]
    code = subprocess.run(command, check=False).returncode  # 1: some photos are in no model
    return {"photos": photos * len(scenes), "options": " ".join(options), "exit_code": code, **mixed(output)}


def mixed(output: Path) -> dict[str, Any]:
    """Photos of each scene in each model, and pairs that cross scenes."""
    import pycolmap

    models = []
    for place in sorted((output / "sparse").iterdir()):
        model = pycolmap.Reconstruction(place)
        models.append(dict(Counter(image.name.partition("/")[0] for image in model.images.values())))
    lines = (output / "pairs.txt").read_text().splitlines()
    crossing = sum(len({name.partition("/")[0] for name in line.split()}) > 1 for line in lines)
    return {
        "models": models,
        "mixed_models": sum(len(each) > 1 for each in models),
        "pairs": len(lines),
        "pairs_that_cross_scenes": crossing,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--names", nargs="+", required=True, help="folders in SCENES")
    parser.add_argument("--photos", type=int, default=12)
    given = parser.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    scenes = [given.scenes / name for name in given.names]
    save_section("collections", "apart", apart(scenes, given.work, given.photos))


if __name__ == "__main__":
    main()
