"""Size of the page of a large scene, and how fast Chromium opens and turns it.

    python benchmarks/pages.py [--cameras 500] [--points 200000] [--chromium chromium]

Cameras stand around a hill of points, each seen by ten neighbouring cameras; photos are smoothed noise. Needs
playwright and Chromium. Without a GPU Chromium draws by SwiftShader, on the CPU: the result says which.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from logpolar.sfm.facts import Facts, Lens, PairFacts, PhotoFacts, SceneModel
from logpolar.sfm.scene_page import Provenance, read_pictures, write_scene_page
from logpolar.storage.documents import versions

TRACK = 10
FRAMES = """steps => new Promise(done => {
  const times = [];
  let before = performance.now();
  const next = now => {
    times.push(now - before); before = now;
    if (times.length > steps) return done(times.slice(1));
    move(turn, 0.02, 0.002);
    requestAnimationFrame(next);
  };
  requestAnimationFrame(next);
})"""
DRAW = """([steps, most, sharpness]) => new Promise(done => {
  const canvas = element("view"), white = [1, 1, 1], accent = [1, 0, 0];
  const style = { paper: white, accent, size: 2, least: 2, faint: 0, byTrack: false, frusta: true, photos: true };
  const next = () => {
    if (steps-- <= 0) return done();
    turn(0.02, 0.002);
    state.renderer.draw(orbitMatrix(canvas.clientWidth, canvas.clientHeight), { ...style, most, sharpness });
    requestAnimationFrame(next);
  };
  next();
})"""
GRAPHICS = """() => { const gl = document.createElement("canvas").getContext("webgl2");
  return gl.getParameter(gl.getExtension("WEBGL_debug_renderer_info").UNMASKED_RENDERER_WEBGL); }"""


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


def seconds_of_children() -> float:
    """CPU time of the processes below this one: unlike the time between frames, it depends little on other programs."""
    parents, spent = {}, {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal():
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                parents[int(entry.name)], spent[int(entry.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    below = {os.getpid()}
    for _ in range(6):
        below |= {process for process, parent in parents.items() if parent in below}
    return sum(spent[process] for process in below - {os.getpid()}) / os.sysconf("SC_CLK_TCK")


def cpu_per_frame(view: Any, most: int, sharpness: float, steps: int = 30) -> float:
    """Milliseconds of all Chromium's processes a frame."""
    view.evaluate(DRAW, [3, most, sharpness])
    before = seconds_of_children()
    view.evaluate(DRAW, [steps, most, sharpness])
    return round(1000 * (seconds_of_children() - before) / steps, 1)


def measure(page: Path, chromium: str, steps: int = 100) -> dict[str, object]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1440, "height": 900})
        began = time.perf_counter()
        view.goto(page.as_uri(), timeout=300_000)
        view.wait_for_selector("body[data-ready=true]", timeout=300_000)
        ready = time.perf_counter() - began
        paint = view.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime")
        times = np.array(view.evaluate(FRAMES, steps))
        drawn = view.evaluate("() => Math.round(Math.min(state.most, scene.tracks.length))")
        shown = ((10**9, 1.0), (50_000, 1.0), (10_000, 0.5))
        processor = {f"{most}, sharpness {sharp}": cpu_per_frame(view, most, sharp) for most, sharp in shown}
        graphics, version = view.evaluate(GRAPHICS), browser.version
        browser.close()
    frames = {"median": np.median(times), "p95": np.quantile(times, 0.95), "longest": times.max()}
    return {
        "first_paint_s": round(paint / 1000, 2),
        "ready_s": round(ready, 2),
        "frame_ms": {name: round(float(value), 1) for name, value in frames.items()},
        "points_drawn_while_turning": drawn,
        "cpu_ms_a_frame": processor,
        "load": os.getloadavg()[0],
        "chromium": version,
        "graphics": graphics,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cameras", type=int, default=500)
    parser.add_argument("--points", type=int, default=200_000)
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        facts = make_scene(options.cameras, options.points)
        write_photos(folder, facts)
        began = time.perf_counter()
        write_scene_page(folder / "page.html", facts, read_pictures(folder, facts), Provenance("benchmark"))
        written = time.perf_counter() - began
        size = (folder / "page.html").stat().st_size / 1e6
        result = {"cameras": options.cameras, "points": options.points, "page_mb": round(size, 1)}
        result |= {"written_s": round(written, 1), **measure(folder / "page.html", options.chromium)}
        if keep := os.environ.get("KEEP_PAGE"):
            shutil.copy(folder / "page.html", keep)
    print(json.dumps(result | {"versions": versions("playwright", "numpy")}, indent=1))


if __name__ == "__main__":
    main()
