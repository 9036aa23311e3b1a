"""Size of the pages of a large pair and of a large scene, and how fast Chromium opens, pans and turns them.

    python benchmarks/pages.py [--cameras 500] [--points 200000] [--keypoints 8000] [--matches 3000]

The pair: two photos of 12.8 megapixels, enlarged from docs/images, with random keypoints of which some match. The
scene: cameras stand around a hill of points, each seen by ten neighbouring cameras; photos are smoothed noise. Needs
playwright and Chromium, which is started without any option that concerns graphics.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from logpolar.features.features import Features
from logpolar.geometry.verification import match_and_verify
from logpolar.keypoints import Keypoints
from logpolar.matching.options import MatchingOptions
from logpolar.sampling import LogPolar
from logpolar.sfm.facts import Facts, Lens, PairFacts, PhotoFacts, SceneModel
from logpolar.sfm.scene_page import Provenance, read_pictures, write_scene_page
from logpolar.storage.documents import versions
from logpolar.viewing.pages.pair import Side, write_pair_page

IMAGES = Path(__file__).parent.parent / "docs" / "images"
TRACK = 10
FRAMES = """([steps, moving]) => new Promise(done => {
  const times = [], change = { orbit: () => move(turn, 0.02, 0.002), pan: () => pan(2, 1) }[moving];
  let before = performance.now();
  const next = now => {
    times.push(now - before); before = now;
    if (times.length > steps) return done(times.slice(1));
    change();
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
})"""
DRAW = """([most, steps]) => { const times = [], amount = pace.amount;
  pace.amount = () => most;
  for (let n = 0; n < steps; n++) {
    turn(0.02, 0.002);
    const began = performance.now();
    render(0);
    times.push(performance.now() - began);
  }
  pace.amount = amount;
  return times.sort((a, b) => a - b)[steps >> 1]; }"""
LAST = """() => { pace.moving = true;
  return Math.round(pace.amount(typeof scene === "undefined" ? count : scene.tracks.length, 0)); }"""
GRAPHICS = """() => { const gl = document.createElement("canvas").getContext("webgl2");
  return gl && gl.getParameter(gl.getExtension("WEBGL_debug_renderer_info").UNMASKED_RENDERER_WEBGL); }"""


def write_pair(path: Path, count: int, matched: int) -> None:
    """The first keypoints of both photos match, but for noise; the other descriptors are random."""
    random = np.random.default_rng(0)
    size, places = (4000, 3200), random.uniform((40, 40), (3900, 3100), (count, 2))
    unit = random.normal(size=(2, count, 128))
    unit[1, :matched] = unit[0, :matched] + 0.4 * unit[1, :matched]
    unit /= np.linalg.norm(unit, axis=2, keepdims=True)
    sides = []
    for number, name in enumerate(("graf1.jpg", "graf3.jpg")):
        image = cv2.resize(cv2.imread(str(IMAGES / name)), size, interpolation=cv2.INTER_CUBIC)
        keypoints = Keypoints.from_points(places + 12 * number, random.uniform(3, 30, count))
        features = Features(keypoints, unit[number].astype(np.float32), size)
        sides.append(Side(name, image[:, :, ::-1], features))
    matching = MatchingOptions(ratio=0.95)
    found = match_and_verify(sides[0].features, sides[1].features, "homography", matching)
    write_pair_page(path, (sides[0], sides[1]), found, LogPolar(), matching, found.threshold or 0, command="benchmark")


def make_scene(cameras: int, points: int) -> Facts:
    random = np.random.default_rng(0)
    place = random.normal(size=(points, 3)) * (1, 0.3, 1)
    colours = np.clip(128 + 60 * place + random.normal(0, 20, (points, 3)), 0, 255).astype(np.uint8)
    angle = 2 * np.pi * np.arange(cameras) / cameras
    centres = np.stack([4 * np.sin(angle), np.full(cameras, -1.0), 4 * np.cos(angle)], axis=1)
    forward = -centres / np.linalg.norm(centres, axis=1, keepdims=True)
    right = np.cross([0.0, 1.0, 0.0], forward)
    right /= np.linalg.norm(right, axis=1, keepdims=True)
    rotation = np.stack([right, np.cross(forward, right), forward], axis=1)
    poses = np.concatenate([rotation, -np.einsum("nij,nj->ni", rotation, centres)[:, :, None]], axis=2)
    first = random.integers(0, cameras, points)
    seen: list[list[int]] = [[] for _ in range(cameras)]
    for point, camera in enumerate(first.tolist()):
        for step in range(TRACK):
            seen[(camera + step) % cameras].append(point)
    observed = [np.array(rows, np.intp) for rows in seen]
    model = SceneModel(0, place, colours, np.full(points, TRACK), np.arange(cameras), poses, observed)
    rows = np.array([sorted((n, (n + k) % cameras)) for n in range(cameras) for k in range(1, TRACK)], np.intp)
    shared = np.tile([points // cameras * (TRACK - k) for k in range(1, TRACK)], cameras)
    photos = [PhotoFacts(f"{n:05}.jpg", 8000, 1, 0, len(observed[n]), 0.7) for n in range(cameras)]
    lens = Lens(1, "SIMPLE_RADIAL", 4000, 3000, 3200.0, (3200.0, 2000.0, 1500.0, 0.0))
    return Facts(photos, {1: lens}, PairFacts(rows, shared, shared, shared), [model])


def write_photos(folder: Path, facts: Facts) -> None:
    random = np.random.default_rng(0)
    for photo in facts.photos:
        noise = cv2.resize(random.integers(0, 256, (60, 80, 3), np.uint8), (640, 480), interpolation=cv2.INTER_CUBIC)
        cv2.imwrite(str(folder / photo.name), noise)


def measure(page: Path, chromium: str, moving: str, steps: int = 300) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1440, "height": 900})
        began = time.perf_counter()
        view.goto(page.as_uri(), timeout=300_000)
        view.wait_for_selector("body[data-ready=true]", timeout=300_000)
        ready = time.perf_counter() - began
        paint = view.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime")
        times = np.array(view.evaluate(FRAMES, [steps, moving]))
        details: dict[str, Any] = {}
        if moving == "orbit":
            details["points_at_the_end"] = view.evaluate(LAST)
            amounts = (200_000, 50_000, 10_000)
            details["draw_ms"] = {str(most): round(view.evaluate(DRAW, [most, 30]), 1) for most in amounts}
        else:
            details |= {"lines": view.inner_text("#count"), "lines_at_the_end": view.evaluate(LAST)}
        details |= {"graphics": view.evaluate(GRAPHICS), "chromium": browser.version}
        browser.close()
    frames = {"median": np.median(times), "p95": np.quantile(times, 0.95), "longest": times.max()}
    return {
        "page_mb": round(page.stat().st_size / 1e6, 1),
        "first_paint_s": round(paint / 1000, 2),
        "ready_s": round(ready, 2),
        "frames": steps,
        "frame_ms": {name: round(float(value), 1) for name, value in frames.items()},
        **details,
        "load": [round(each, 1) for each in os.getloadavg()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cameras", type=int, default=500)
    parser.add_argument("--points", type=int, default=200_000)
    parser.add_argument("--keypoints", type=int, default=8000)
    parser.add_argument("--matches", type=int, default=3000)
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    parser.add_argument("--keep", type=Path, help="write the pages here, or take those that are here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        (folder / "photos").mkdir(parents=True, exist_ok=True)
        pair, scene = folder / "pair.html", folder / "scene.html"
        if not pair.exists():
            write_pair(pair, options.keypoints, options.matches)
        if not scene.exists():
            facts = make_scene(options.cameras, options.points)
            write_photos(folder / "photos", facts)
            write_scene_page(scene, facts, read_pictures(folder / "photos", facts), Provenance("benchmark"))
        result = {
            "pair": {"keypoints": options.keypoints, **measure(pair, options.chromium, "pan")},
            "scene": {
                "cameras": options.cameras,
                "points": options.points,
                **measure(scene, options.chromium, "orbit"),
            },
        }
    print(json.dumps(result | {"versions": versions("playwright", "numpy")}, indent=1))


if __name__ == "__main__":
    main()
