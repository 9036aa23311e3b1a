"""What a million images cost before any of them is described, and the memory of a long run.

    PYTHONPATH=benchmarks python benchmarks/collection_scale.py manifest WORK [--entries 1000000]
    PYTHONPATH=benchmarks python benchmarks/collection_scale.py listing WORK [--entries 1000000]
    PYTHONPATH=benchmarks python benchmarks/collection_scale.py memory WORK [--entries 20000]

``manifest``: lists made-up shards of 256 images, reads the manifest, and starts a run that resumes. ``listing``: finds
empty files in 1000 folders. ``memory``: extracts tiny images into shards, in this process, whose memory is recorded.
"""

from __future__ import annotations

import argparse
import shutil
import time
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from common import save_section
from logpolar.cli.options import open_extractor
from logpolar.features.batch import extract_images
from logpolar.features.collections import FeatureCollection, FeatureCollectionWriter
from logpolar.features.files import FeatureFile
from logpolar.images import find_images
from logpolar.storage.collections import Header, ManifestAppender, Part, write_manifest

SHARD = 256
SETTINGS = {"model": "none"}


def megabytes() -> float:
    """Resident memory of this process."""
    text = Path("/proc/self/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def manifest(work: Path, entries: int) -> dict[str, Any]:
    place = work / "manifest"
    shutil.rmtree(place, ignore_errors=True)
    (place / "parts").mkdir(parents=True)
    write_manifest(place, Header(FeatureFile.kind.format, SETTINGS), [])
    appender, began = ManifestAppender(place), time.perf_counter()
    for number, start in enumerate(range(0, entries, SHARD)):
        path = place / "parts" / "x.h5"
        path.touch()
        names = [f"folder_{row // 1000:04d}/image_{row:08d}.jpg" for row in range(start, min(start + SHARD, entries))]
        appender.add(Part(path, f"{number:016x}" + "0" * 48, 0, 0), names)
    found: dict[str, Any] = {"entries": entries, "shards": number + 1, "append_s": time.perf_counter() - began}
    found["manifest_mb"] = (place / "manifest.jsonl").stat().st_size / 1e6
    before, began = megabytes(), time.perf_counter()
    with FeatureCollection(place) as collection:
        found["read_s"] = time.perf_counter() - began
        began = time.perf_counter()
        assert len(collection.names()) == entries
        found["sorted_names_s"] = time.perf_counter() - began
        found["read_mb"] = megabytes() - before
    began = time.perf_counter()
    with FeatureCollectionWriter(place, SETTINGS) as writer:
        found["resume_s"] = time.perf_counter() - began
        assert len(writer.finished) == entries
    shutil.rmtree(place)
    return {key: round(value, 2) for key, value in found.items()}


def listing(work: Path, entries: int) -> dict[str, Any]:
    place = work / "listing"
    for folder in range(0, entries, 1000):
        (place / f"{folder:07d}").mkdir(parents=True, exist_ok=True)
        for row in range(folder, min(folder + 1000, entries)):
            (place / f"{folder:07d}" / f"{row:07d}.jpg").touch()
    before, began = megabytes(), time.perf_counter()
    images = find_images([place])
    found = {"entries": len(images), "seconds": time.perf_counter() - began, "mb": megabytes() - before}
    shutil.rmtree(place)
    return {key: round(value, 2) for key, value in found.items()}


class Watched:
    """An extractor that records the memory of its process as it goes."""

    def __init__(self, inner: Any, every: int, log: list[float]) -> None:
        self._inner, self._every, self._log, self._count, self.settings = inner, every, log, 0, inner.settings

    def extract(self, image: Any, keypoints: Any = None) -> Any:
        self._count += 1
        if self._count % self._every == 0:
            self._log.append(round(megabytes(), 1))
        return self._inner.extract(image, keypoints)


def memory(work: Path, entries: int) -> dict[str, Any]:
    photos, log = work / "tiny", list[float]()
    photos.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for row in range(entries):
        cv2.imwrite(str(photos / f"{row:06d}.png"), random.integers(0, 256, (8, 8), np.uint8).repeat(4, 0).repeat(4, 1))
    shutil.rmtree(work / "features", ignore_errors=True)
    opener = partial(
        open_extractor, model="logpolar-96-small-int8", max_keypoints=8, max_size=0, min_size=0, fixed_threads=1
    )
    began = time.perf_counter()
    report = extract_images(
        find_images([photos]),
        work / "features",
        lambda threads: Watched(opener(), entries // 20, log),
        shard_size=SHARD,
    )
    seconds = time.perf_counter() - began
    return {"images": report.done, "keypoints": report.keypoints, "seconds": round(seconds, 1), "resident_mb": log}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["manifest", "listing", "memory"])
    parser.add_argument("work", type=Path)
    parser.add_argument("--entries", type=int)
    given = parser.parse_args()
    work = {"manifest": manifest, "listing": listing, "memory": memory}[given.what]
    entries = given.entries or (20_000 if given.what == "memory" else 1_000_000)
    save_section("collections", given.what, work(given.work, entries))


if __name__ == "__main__":
    main()
