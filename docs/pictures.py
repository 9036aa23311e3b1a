"""Make the pictures of the README and of the tutorials: ``python docs/pictures.py``.

It needs the extra `dev` and an installed Chromium.

The photos are docs/images/graf1.jpg and graf3.jpg (docs/images/README.md has their source and licence); the figures of
the chart are read from docs/models.md.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import matplotlib.pyplot as plt
import numpy as np
from gallery_pages import PAGES, make_pages
from playwright.sync_api import sync_playwright

import logpolar
from logpolar.cli import main
from logpolar.features.sift import root_sift

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
HOMOGRAPHY = np.array(
    [
        [0.76285898, -0.29922929, 225.67123],
        [0.33443473, 1.0143901, -76.999973],
        [3.4663091e-4, -1.4364524e-5, 1.0],
    ]
)
"""From graf1 to graf3, as published with the photos (H1to3p)."""

ZOOM, ROTATION, SIZE, TOLERANCE = 3.0, 60.0, 6.0, 3.0
"""The second photo is reduced and rotated; keypoints get one size in pixels; a match is correct within 3 px."""

TEAL, RED = "#0a8f7f", "#d62828"
COLOURS = {
    "RootSIFT": "#d62828",
    "paper-cartesian-12": "#7b6fd0",
    "paper-logpolar-96": "#8a8f98",
}


def corners_of(image: np.ndarray) -> np.ndarray:
    right, bottom = image.shape[1] - 1, image.shape[0] - 1
    return np.array([[0, 0], [right, 0], [right, bottom], [0, bottom]], np.float64)


def reduced(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The photo ZOOM times smaller and rotated, on white, and the affine map to it."""
    matrix = cv2.getRotationMatrix2D((0, 0), -ROTATION, 1 / ZOOM)
    placed = corners_of(image) @ matrix[:, :2].T
    matrix[:, 2] = -placed.min(axis=0)
    shape = np.ceil(np.ptp(placed, axis=0)).astype(int) + 1
    blurred = cv2.GaussianBlur(image, (0, 0), 0.5 * ZOOM)
    view = cv2.warpAffine(blurred, matrix, shape.tolist(), flags=cv2.INTER_CUBIC, borderValue=(255, 255, 255))
    return view, np.vstack([matrix, [0, 0, 1]])


def hero() -> None:
    """SIFT keypoints without their sizes, matched by two descriptors across a zoom and a rotation."""
    first = cv2.imread(str(IMAGES / "graf1.jpg"))
    second, matrix = reduced(cv2.imread(str(IMAGES / "graf3.jpg")))
    views, truth = (first, second), matrix @ HOMOGRAPHY
    extractor = logpolar.Extractor("logpolar-96", max_size=None)
    detected = [extractor.extract(view).keypoints for view in views]
    unsized = [replace(points, size=np.full(len(points), SIZE, np.float32)) for points in detected]
    panels = []
    for keypoints, shown in ((unsized, True), (detected, False)):
        ours = [extractor.extract(view, points).descriptors for view, points in zip(views, keypoints, strict=True)]
        sift = [root_sift(view, points) for view, points in zip(views, keypoints, strict=True)]
        for name, descriptors in (("logpolar-96", ours), ("RootSIFT", sift)):
            a, b, correct = check(descriptors, keypoints, truth)
            words = f"{int(correct.sum())} of {len(correct)} matches correct"
            print(f"{name}, {'one size' if shown else 'sizes as detected'}: {words}")
            if shown:
                panels.append((name, words, a, b, correct))
    draw(views, matrix, panels, IMAGES / "hero.jpg")


def check(descriptors: list, keypoints: list, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Matched points, and which of them lie within TOLERANCE of the truth."""
    matches = logpolar.match_descriptors(*descriptors)
    a, b = (points.xy[rows] for points, rows in zip(keypoints, matches.indices.T, strict=True))
    expected = cv2.perspectiveTransform(a[:, None].astype(np.float64), truth)[:, 0]
    return a, b, np.linalg.norm(expected - b, axis=1) <= TOLERANCE


def draw(views: tuple[np.ndarray, np.ndarray], turned: np.ndarray, panels: list, path: Path) -> None:
    """A panel for each descriptor: photos in true proportion, thin transparent lines, correct ones in front."""
    (height, width), gap = views[0].shape[:2], 60
    total = width + gap + views[1].shape[1]
    top = (height - views[1].shape[0]) / 2
    figure, axes = plt.subplots(len(panels), 1, figsize=(9, len(panels) * (9 * height / total + 0.45)))
    for axis, (name, words, a, b, correct) in zip(axes, panels, strict=True):
        for image, left, upper in ((views[0], 0, 0), (views[1], width + gap, top)):
            extent = (left - 0.5, left + image.shape[1] - 0.5, upper + image.shape[0] - 0.5, upper - 0.5)
            axis.imshow(image[:, :, ::-1], extent=extent, interpolation="lanczos")
        shades = [corners_of(views[0]), corners_of(views[0]) @ turned[:2, :2].T + turned[:2, 2] + (width + gap, top)]
        for corners in shades:  # darker photos let the lines stand out
            axis.fill(*corners.T, color="black", alpha=0.25, linewidth=0)
        ends = b + np.array([width + gap, top])
        for mask, colour, alpha in ((~correct, "#ff4040", 0.8), (correct, "#2bff7f", 0.45)):
            axis.plot(
                [a[mask, 0], ends[mask, 0]], [a[mask, 1], ends[mask, 1]], color=colour, alpha=alpha, linewidth=0.6
            )
            for points in (a, ends):
                axis.plot(*points[mask].T, ".", color=colour, markersize=2.5, alpha=0.9)
        axis.set(xlim=(-1, total), ylim=(height, -1))
        axis.set_axis_off()
        colour = TEAL if correct.mean() > 0.5 else RED
        axis.set_title(f"{name}: {words}", loc="left", fontsize=16, color=colour, weight="bold")
    note = f"Same SIFT keypoints, sizes discarded. Second photo {ZOOM:g}x smaller, rotated by {ROTATION:g} degrees."
    figure.text(0.005, 0.006, note, fontsize=10, color="#444444")
    figure.tight_layout(pad=0.3, h_pad=0.8, rect=(0, 0.02, 1, 1))
    figure.savefig(path, dpi=120, pil_kwargs={"quality": 88})
    plt.close(figure)


def zoom_chart() -> None:
    """Rank-1 and pose accuracy against zoom, from the table of docs/models.md."""
    text = (DOCS / "models.md").read_text()
    rows = re.findall(r"(?m)^\| ([^|(]+) \([\d.]+\) \|(.+)\|$", text[text.index("| equal size | 2x") :])
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.9), sharex=True)
    for name, cells in rows:
        values = np.array([[float(value) for value in cell.split(",")] for cell in cells.split("|")])
        name = name.strip("` ")
        ours = name == "logpolar-96"
        for axis, column in zip(axes, values.T, strict=True):
            axis.plot([1, 2, 3, 4], column, "o-", color=TEAL if ours else COLOURS[name], linewidth=3 if ours else 1.6,
                      label=name, zorder=3 if ours else 2)  # fmt: skip
    for axis, title in zip(
        axes, ("correct nearest neighbours (rank-1)", "pose accuracy (mAA at 10 degrees)"), strict=True
    ):
        axis.set_title(title, fontsize=12)
        axis.set(xticks=[1, 2, 3, 4], xticklabels=["equal", "2x", "3x", "4x"], ylim=(0, None))
        axis.set_xlabel("second photo smaller by")
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
    axes[0].legend(frameon=False, fontsize=9, loc="lower left")
    figure.tight_layout()
    figure.savefig(IMAGES / "zoom.png", dpi=110)
    plt.close(figure)


POSE_CURVES = {
    "logpolar, two looks": (("results", "logpolar-96-int8", "second look"), TEAL, "o-", 3.2),
    "logpolar, one look": (("results", "logpolar-96-int8", "threshold"), TEAL, "o:", 1.8),
    "ALIKED + LightGlue": (("lightglue_enlarged", "ALIKED + LightGlue", "enlarged"), "#7b6fd0", "s-", 1.8),
    "ALIKED": (("lightglue_enlarged", "ALIKED", "enlarged"), "#8a8f98", "s-", 1.8),
    "RootSIFT": (("results", "RootSIFT", "threshold"), RED, "o-", 1.8),
}
"""Where benchmarks/results/pose.json has what is drawn: part, method and step; colour, marks and width of the line."""


def pose_chart() -> None:
    """Pose accuracy against zoom, on the pairs that all methods have, at most five of a scene."""
    curves = {name: pose_errors(*place) for name, (place, *_) in POSE_CURVES.items()}
    figure, (axis, bars) = plt.subplots(1, 2, figsize=(10, 3.9), width_ratios=[2.2, 1])
    for number, (name, (_, colour, marks, width)) in enumerate(POSE_CURVES.items()):
        scores = {view: mean_accuracy(view, curves, name) for view in curves[name]}
        axis.plot([1, 2, 3, 4], [scores[f"zoom {zoom}"] for zoom in (1, 2, 3, 4)], marks, color=colour,
                  linewidth=width, label=name)  # fmt: skip
        score = scores["true zoom 3"]
        bars.barh(-number, score, color=colour, height=0.7, alpha=0.45 if ":" in marks else 0.8)
        bars.text(0.01, -number, f"{name}  {score:.2f}", va="center", fontsize=9)
    axis.set(xticks=[1, 2, 3, 4], xticklabels=["equal", "2x", "3x", "4x"], ylim=(0, 0.9))
    axis.set_xlabel("second photo smaller by")
    axis.set_title("pose accuracy (mAA at 10 degrees)", fontsize=12)
    axis.grid(axis="y", alpha=0.3)
    axis.legend(frameon=False, fontsize=9, loc="lower left")
    bars.set(yticks=[], xlim=(0, 0.9))
    bars.set_title("second photo a close-up (true zoom 3)", fontsize=12)
    for each in (axis, bars):
        each.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(IMAGES / "pose.png", dpi=110)
    plt.close(figure)


def pose_errors(part: str, method: str, step: str) -> dict[str, dict[str, list[float]]]:
    """Errors of pairs by view and scene."""
    stored = json.loads((DOCS.parent / "benchmarks/results/pose.json").read_text())
    views = (stored if part == "results" else stored[part])["results"][method]["2048"]
    steps = {view: own[step] for view, own in views.items() if step in own}
    if part != "results":  # at equal size hardly any image is small enough to be enlarged
        steps["zoom 1"] = stored["lightglue"]["results"][method]["2048"]["zoom 1"]["PoseLib"]
    return {view: {name: scene["errors"] for name, scene in own["scenes"].items()} for view, own in steps.items()}


def mean_accuracy(view: str, curves: dict[str, dict[str, dict[str, list[float]]]], name: str) -> float:
    """Mean over scenes of the mAA at 10 degrees, of the first pairs of each scene, which all methods have."""
    found = []
    for scene, errors in curves[name][view].items():
        count = min(5, *(len(each[view][scene]) for each in curves.values()))
        found.append((np.array(errors[:count])[:, None] <= np.arange(1, 11)).mean())
    return float(np.mean(found))


def sfm_chart() -> None:
    """Images registered by structure from motion, from the rows of all scenes in docs/results.md."""
    rows = re.findall(r"(?m)^\| all \| ([^|]+) \| ([\d.]+) of 120 \((\d+) - (\d+)\)", (DOCS / "results.md").read_text())
    cases = {"photos as they are": rows[:3], "every second photo 3x smaller": rows[3:]}
    figure, axis = plt.subplots(figsize=(8, 2.9))
    for number, (case, found) in enumerate(cases.items()):
        for place, (name, mean, least, most) in enumerate(found):
            y = -number * 4 - place
            colour = {"logpolar-96": TEAL, "RootSIFT": RED}.get(name, "#8a8f98")
            axis.barh(y, float(mean), color=colour, height=0.8)
            axis.plot([float(least), float(most)], [y, y], color="black", linewidth=1)
            axis.text(2, y, f"{name}: {mean}", va="center", color="white", fontsize=9, weight="bold")
        axis.text(0, 0.75 - number * 4, case, fontsize=10)
    axis.set(
        xlim=(0, 120), ylim=(-6.6, 1.6), yticks=[], xlabel="images registered, of 120 (line: least and most of 5 runs)"
    )
    axis.spines[["top", "right", "left"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(IMAGES / "sfm.png", dpi=110)
    plt.close(figure)


def tutorials() -> None:
    """What the commands of the tutorials write, run on the two photos."""
    first, second = (str(IMAGES / name) for name in ("graf1.jpg", "graf3.jpg"))
    with TemporaryDirectory() as folder:
        match = ["match", first, second, "-o", f"{folder}/match.png", "--geometry", "homography", "--threshold", "3"]
        main(match, standalone_mode=False)
        save(cv2.imread(f"{folder}/match.png"), "match.jpg")
        file = f"{folder}/photos.h5"
        main(["dataset", "homographies", first, second, "-o", file, "--views", "2"], standalone_mode=False)
        main(["dataset", "show", file, "-o", folder], standalone_mode=False)
        save(cv2.imread(f"{folder}/pairs.jpg"), "training-pairs.jpg")
        patches = cv2.imread(f"{folder}/patches.png")
    heading, rows = patches[:36], patches[-3 * 156 :]  # the correspondences with the largest scale mismatch
    cv2.imwrite(str(IMAGES / "training-patches.png"), np.concatenate([heading, rows]))
    image = cv2.imread(first)
    keypoints = logpolar.Extractor(max_size=None).extract(image).keypoints
    largest = [keypoint for keypoint in keypoints.to_opencv() if keypoint.size > 6]
    rich = cv2.DRAW_MATCHES_FLAGS_DRAW_RICH_KEYPOINTS
    shown = cv2.drawKeypoints((image * 0.75).astype(np.uint8), largest, None, (127, 255, 43), rich)
    save(shown, "keypoints.jpg")


def pages() -> None:
    """The pages of the gallery."""
    with TemporaryDirectory() as folder:
        make_pages(Path(folder))
        photograph(Path(folder))


def photograph(folder: Path) -> None:
    """Pages in Chromium, on a screen and on a phone, with one match or photo selected."""
    ready = {
        "pair": "() => choose(state.shown.find(m => keypoint(0, m)[2] < 4 && correlation[m] > 0.9 && roll[m]))",
        "scene": """() => {
            choose(photos.findIndex(({ name }) => name === 'view-04.jpg'));
            model.home[0] = -0.3;
            resetView(); }""",
        "dataset": "() => element('section-3').scrollIntoView()",
        "results": "() => element('section-2').scrollIntoView()",
    }
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for made, shown in PAGES.items():
            kind = Path(shown).stem
            for name, width, height in ((f"{kind}-page", 1440, 900), (f"{kind}-page-phone", 390, 844)):
                page = browser.new_page(viewport={"width": width, "height": height})
                page.goto((folder / made).as_uri())
                page.wait_for_selector("body[data-ready=true]", timeout=120_000)
                page.evaluate(ready.get(kind, "() => {}"))
                page.wait_for_timeout(1000)
                page.screenshot(path=f"{folder}/{name}.png")
                save(cv2.imread(f"{folder}/{name}.png"), f"{name}.jpg")


def save(picture: np.ndarray, name: str) -> None:
    """As JPEG, no wider than 1100 px."""
    scale = min(1.0, 1100 / picture.shape[1])
    small = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    cv2.imwrite(str(IMAGES / name), small, [cv2.IMWRITE_JPEG_QUALITY, 82])


if __name__ == "__main__":
    hero()
    zoom_chart()
    pose_chart()
    sfm_chart()
    tutorials()
    pages()
