"""How right is the depth that correspondences come from? Checked against the tracks of the sparse model.

    python benchmarks/tracks.py WORKSPACE ...

For points of the sparse model that two images both see, the position observed in the first is sent to the second by
the depth map, and compared with the position observed there. Three depths are compared: the depth map as it is, the
depth after the builder's checks (other views confirm it, a plane fits, the surfaces agree, the cycle closes), and the
triangulated depth of the point itself: that one shows what the observations' own noise adds. "Clean" are points whose
triangulated position agrees with both observations within 1.5 px.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from common import save
from logpolar.datasets.depth import Planes, fit_planes, nearest
from logpolar.datasets.options import PairRules, SceneOptions
from logpolar.datasets.scenes import confirming_views
from logpolar.datasets.views import read_surface
from logpolar.datasets.visibility import Pair, select_pairs, shared_points
from logpolar.geometry.cameras import Transfer
from logpolar.geometry.homography import warp_points
from logpolar.sfm.workspace import Scene, read_workspace

OPTIONS = SceneOptions()
PAIRS = PairRules(min_shared=30, min_overlap=0, max_per_image=0)
POINT_SIZE = 4.0  # a usual keypoint's
MOST_PAIRS = 400
CLEAN_WITHIN = 1.5  # pixels
SEED = 0


def planes_at(inverse_depth: np.ndarray, width: int, height: int, xy: np.ndarray) -> Planes:
    """Planes around pixels of an image, in the image's pixels."""
    factor = np.array([inverse_depth.shape[1] / width, inverse_depth.shape[0] / height])
    radius = np.full(len(xy), POINT_SIZE / 2 * factor[0])
    planes = fit_planes(inverse_depth, (xy + 0.5) * factor - 0.5, radius, OPTIONS.depth)
    return Planes(planes.inverse_depth, planes.slope * factor.astype(np.float32))


def check_pair(scene: Scene, surfaces: list[tuple[np.ndarray, np.ndarray]], pair: Pair) -> dict[str, np.ndarray]:
    """Distances in the second image for the points that both see; NaN where a depth is unknown or refused."""
    first, second = scene.views[pair.first], scene.views[pair.second]
    points, here, there = np.intersect1d(first.points, second.points, assume_unique=True, return_indices=True)
    xy, observed = first.xy[here], second.xy[there]
    forth, back = (Transfer.between(a.camera, b.camera) for a, b in ((first, second), (second, first)))

    def distance(depth: np.ndarray) -> np.ndarray:
        x, y, _ = forth(xy[:, 0], xy[:, 1], depth)
        return np.hypot(x - observed[:, 0], y - observed[:, 1])

    raw, confirmed = surfaces[pair.first]
    factor = np.array([raw.shape[1] / first.camera.width, raw.shape[0] / first.camera.height])
    place = (xy + 0.5) * factor - 0.5
    depth = nearest(raw, place[:, 0], place[:, 1])
    planes = planes_at(confirmed, first.camera.width, first.camera.height, xy)
    warped, _ = warp_points(forth.of_planes(xy, planes.inverse_depth, planes.slope), xy)
    other = planes_at(
        surfaces[pair.second][1], second.camera.width, second.camera.height, np.nan_to_num(warped, nan=-9)
    )
    returned, _ = warp_points(back.of_planes(warped, other.inverse_depth, other.slope), warped)
    _, _, predicted = forth(xy[:, 0], xy[:, 1], planes.depth.astype(np.float64))
    good = planes.known & other.known & (predicted > 0)
    good &= np.abs(predicted * other.inverse_depth - 1) <= OPTIONS.depth.max_occlusion
    good &= np.linalg.norm(returned - xy, axis=1) <= OPTIONS.depth.max_cycle
    place, triangulated = first.camera.see(scene.points[points])
    own = [
        np.linalg.norm(place - xy, axis=1),
        np.linalg.norm(second.camera.see(scene.points[points])[0] - observed, axis=1),
    ]
    return {
        "clean": np.maximum(*own) <= CLEAN_WITHIN,
        "raw": np.where(depth > 0, distance(np.where(depth > 0, depth, 1).astype(np.float64)), np.nan),
        "confirmed": distance(planes.depth.astype(np.float64)),
        "checked": np.where(good, distance(planes.depth.astype(np.float64)), np.nan),
        "triangulated": distance(triangulated),
    }


def check_scene(folder: Path) -> dict[str, object]:
    start = time.perf_counter()
    scene = read_workspace(folder)
    shared = shared_points(scene)
    pairs, _ = select_pairs(scene, shared, ["test"] * len(scene.views), PAIRS, np.random.default_rng(SEED))
    chosen = np.random.default_rng(SEED).permutation(len(pairs))[:MOST_PAIRS]
    rules = OPTIONS.depth
    surfaces = [
        read_surface(view, confirming_views(scene, shared, n, rules.max_neighbours), rules, view.camera.width)
        for n, view in enumerate(scene.views)
    ]
    results = [check_pair(scene, surfaces, pairs[number]) for number in chosen]
    report: dict[str, object] = {"pairs": len(chosen)}
    for name in ("raw", "confirmed", "checked", "triangulated"):
        values = np.concatenate([result[name] for result in results])
        known, clean = np.isfinite(values), np.concatenate([result["clean"] for result in results])
        report[name] = {
            "points": int(known.sum()),
            "median_px": round(float(np.median(values[known])), 3),
            "above_3px": round(float((values[known] > 3).mean()), 4),
            "clean_points": int((known & clean).sum()),
            "clean_above_3px": round(float((values[known & clean] > 3).mean()), 4),
        }
    report["seconds"] = round(time.perf_counter() - start, 1)
    return report


def main() -> None:
    result: dict[str, object] = {"seed": SEED, "pairs_per_scene_at_most": MOST_PAIRS}
    for folder in map(Path, sys.argv[1:]):
        result[folder.name] = check_scene(folder)
        print(folder.name, result[folder.name], flush=True)
    save("tracks", result)


if __name__ == "__main__":
    main()
