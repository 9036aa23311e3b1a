"""Retrieval in a collection of many scenes, and its time for many images.

    PYTHONPATH=benchmarks python benchmarks/collection_retrieval.py recall FEATURES SCENES [test]
    PYTHONPATH=benchmarks python benchmarks/collection_retrieval.py time 20000 100000
    PYTHONPATH=benchmarks python benchmarks/collection_retrieval.py index 200000

``recall``: FEATURES hold images called SCENE/NAME of all scenes; SCENES/SCENE/sparse/images.txt are COLMAP models.
Pairs of images that share 30 points of a model are to be found among each image's 20 nearest. ``of_pairs`` is the
fraction of pairs of which either image finds the other; ``of_places`` the mean over images of found partners per
min(20, partners): 20 places cannot hold the 59 partners that some images have. ``bound_of_pairs``: what any ranking by
20 places an image can reach at most.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from common import save_section
from logpolar.features.collections import open_features
from logpolar.matching import similar_vectors
from logpolar.matching.retrieval import find_centres, pool_images, shipped_centres
from logpolar.matching.similar_vectors import averaged, nearest_rows

POINTS, PLACES = 30, 20
TEST = [
    *("mount_rushmore_national_memorial", "taj_mahal", "trevi_fountain", "vienna_city_hall", "drone_langley"),
    *("kite_ochota", "south_building", "qutub_minar", "statue_of_unity"),
]


def observed(scene: Path) -> dict[str, set[str]]:
    """Points of the sparse model that each image shows."""
    lines = [line for line in (scene / "sparse" / "images.txt").read_text().split("\n") if not line.startswith("#")]
    lines += [""] * (len(lines) % 2)
    pairs = zip(lines[::2], lines[1::2], strict=True)
    return {f"{scene.name}/{one.split()[9]}": set(two.split()[2::3]) - {"-1"} for one, two in pairs if one}


def partners(names: list[str], scenes: Path) -> list[set[int]]:
    """Of each image the rows of those that it shares enough points with."""
    row = {name: number for number, name in enumerate(names)}
    found: list[set[int]] = [set() for _ in names]
    for scene in sorted({name.partition("/")[0] for name in names}):
        points = {name: seen for name, seen in observed(scenes / scene).items() if name in row}
        for one, two in combinations(points, 2):
            if len(points[one] & points[two]) >= POINTS:
                found[row[one]].add(row[two])
                found[row[two]].add(row[one])
    return found


def scored(rows: np.ndarray, truth: list[set[int]], of: list[int]) -> dict[str, Any]:
    chosen = {frozenset((row, int(other))) for row, others in enumerate(rows) for other in others}
    pairs = {frozenset((row, other)) for row in of for other in truth[row]}
    places = [len(truth[row] & set(rows[row].tolist())) / min(PLACES, len(truth[row])) for row in of if truth[row]]
    return {
        "images": len(of),
        "pairs": len(pairs),
        "of_pairs": round(len(pairs & chosen) / len(pairs), 4),
        "of_places": round(float(np.mean(places)), 4),
    }


def bound(names: list[str], truth: list[set[int]]) -> float:
    scenes: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        scenes.setdefault(name.partition("/")[0], []).append(row)
    pairs = {scene: sum(len(truth[row]) for row in rows) // 2 for scene, rows in scenes.items()}
    return sum(min(pairs[scene], PLACES * len(rows)) for scene, rows in scenes.items()) / sum(pairs.values())


def recall(features: Path, scenes: Path, part: Path | None = None) -> dict[str, Any]:
    results: dict[str, Any] = {}
    with open_features(features) as file:
        names = [name for name in file.names() if part is None or name.partition("/")[0] in TEST]
        described = {name: file.read(name).descriptors for name in names}
        shipped = shipped_centres(file.settings)
    truth = partners(names, scenes)
    groups = {
        "all": list(range(len(names))),
        "test scenes": [row for row, name in enumerate(names) if name.partition("/")[0] in TEST],
    }
    former = pool_images(names, described.__getitem__, find_centres(names, described.__getitem__))
    own = pool_images(names, described.__getitem__, shipped)
    mean = np.stack([each.mean(axis=0) for each in described.values()])
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    vectors = {
        "mean descriptor": mean,
        "64 centres of the collection (before)": former,
        "128 shipped centres": own,
        "64 centres of the collection, averaged": averaged(former),
        "128 shipped centres, averaged (now)": averaged(own),
    }
    for title, found in vectors.items():
        rows, _ = nearest_rows(found, PLACES)
        results[title] = {group: scored(rows, truth, of) for group, of in groups.items()}
        crossing = [
            names[row].partition("/")[0] != names[i].partition("/")[0] for i in range(len(rows)) for row in rows[i]
        ]
        results[title]["of_other_scenes"] = round(float(np.mean(crossing)), 4)
    return {"points": POINTS, "neighbours": PLACES, "bound_of_pairs": round(bound(names, truth), 4), "found": results}


DIMENSIONS, IMAGES_OF_PLACE, SIMILARITY = 2048, 20, 0.18
"""Of made-up vectors. The similarity is the median of 22 photos of Hawa Mahal; of other photos it is 0.01."""


def made_up(count: int) -> np.ndarray:
    """Unit vectors of images of many places, in no order."""
    random = np.random.default_rng(0)
    places = random.standard_normal((count // IMAGES_OF_PLACE, DIMENSIONS), np.float32) * np.float32(SIMILARITY**0.5)
    order = random.permutation(count)
    vectors = random.standard_normal((count, DIMENSIONS), np.float32) * np.float32((1 - SIMILARITY) ** 0.5)
    for row in range(count):
        vectors[row] += places[order[row] % len(places)]
        vectors[row] /= np.linalg.norm(vectors[row])
    return vectors


def megabytes() -> float:
    """The most memory that this process has had."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def spent(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    wall, processor, before = time.perf_counter(), time.process_time(), megabytes()
    found = work()
    taken = time.perf_counter() - wall, time.process_time() - processor
    return found, {"seconds": round(taken[0], 1), "cpu_seconds": round(taken[1], 1), "more_mb": megabytes() - before}


def timed(counts: list[int]) -> dict[str, Any]:
    """All with all, once. Retrieval does it twice: to average, and then to find neighbours."""
    found = {}
    for count in counts:
        vectors = made_up(count)
        _, found[str(count)] = spent(lambda: nearest_rows(vectors, PLACES))  # noqa: B023
    return {"dimensions": DIMENSIONS, "found": found}


def indexed(count: int, sample: int = 500) -> dict[str, Any]:
    """faiss once, against the exact neighbours of a sample."""
    similar_vectors.MOST_EXACT = 0
    vectors = made_up(count)
    (rows, _), cost = spent(lambda: nearest_rows(vectors, PLACES))
    some = np.random.default_rng(1).permutation(count)[:sample]
    similarities = vectors[some] @ vectors.T
    similarities[np.arange(sample), some] = -2
    truth = np.argsort(-similarities, axis=1)[:, : IMAGES_OF_PLACE - 1]
    hits = [len(set(a) & set(b)) / len(a) for a, b in zip(truth.tolist(), rows[some].tolist(), strict=True)]
    return {
        "count": count,
        "dimensions": DIMENSIONS,
        "sample": sample,
        "recall": round(float(np.mean(hits)), 4),
        **cost,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["recall", "time", "index"])
    parser.add_argument("arguments", nargs="+")
    given = parser.parse_args()
    if given.what == "recall":
        section = "retrieval, test scenes alone" if len(given.arguments) > 2 else "retrieval"
        save_section("collections", section, recall(*map(Path, given.arguments)))
    elif given.what == "index":
        save_section("collections", "retrieval_index", indexed(int(given.arguments[0])))
    else:
        save_section("collections", "retrieval_time", timed(list(map(int, given.arguments))))


if __name__ == "__main__":
    main()
