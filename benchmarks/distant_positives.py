"""The correspondences of a file whose descriptors are farthest apart, to be looked at: are they wrong labels?

    python benchmarks/distant_positives.py SCENE.h5 OUT.png [MODEL]

Each cell shows the surroundings of the first keypoint and those of the second, turned and scaled by the true warp, so
that a right label shows the same thing twice; the second keypoint itself is in the middle. Below: descriptor distance
and scale mismatch.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from logpolar.datasets.correspondences import Correspondences
from logpolar.datasets.files import CorrespondenceFile
from logpolar.features.extractor import Extractor
from logpolar.geometry.homography import warp_shape
from logpolar.images import to_bytes, to_gray
from logpolar.keypoints import Keypoints
from logpolar.sampling import Cartesian, ImagePyramid
from logpolar.viewing.drawing import side_by_side, stack, write_picture

COUNT = 100
COLUMNS = 10
SIDE = 72


def distances(file: CorrespondenceFile, extractor: Extractor) -> np.ndarray:
    """Descriptor distance of each correspondence in the file."""
    parts: list[np.ndarray] = [np.zeros(0)] * len(file)
    order = sorted(range(len(file)), key=lambda pair: file.pair_images[pair].tolist())
    described: dict[int, np.ndarray] = {}
    last = {image: place for place, pair in enumerate(order) for image in file.pair_images[pair].tolist()}
    for place, pair in enumerate(order):
        found = file.read_correspondences(pair)
        sides = []
        for side, image in enumerate(file.pair_images[pair].tolist()):
            if image not in described:
                with_depth = np.flatnonzero(np.isfinite(file.read_depths(image)))
                table = np.zeros((len(file.read_keypoints(image)), 128), np.float32)
                features = extractor.extract(file.read_image(image), file.read_keypoints(image)[with_depth])
                table[with_depth] = features.descriptors
                described[image] = table
            sides.append(described[image][found.indices[:, side]])
            if last[image] == place:
                del described[image]
        parts[pair] = np.linalg.norm(sides[0] - sides[1], axis=1)
    return np.concatenate(parts)


def cell(file: CorrespondenceFile, pair: int, row: int, distance: float) -> np.ndarray:
    loaded = file.read(pair)
    found: Correspondences = loaded.correspondences
    one = slice(row, row + 1)
    first, second, warp = found.first[one], found.second[one], found.warp[one].astype(np.float64)
    reach = np.maximum(4 * first.size, 20)
    start = replace(first, size=reach)
    angle, size = warp_shape(warp, start)
    end = Keypoints(second.xy, size, angle, second.response)
    patches = [
        to_bytes(ImagePyramid(to_gray(image)).sample(points, Cartesian(2.0, SIDE, SIDE))[0])
        for image, points in ((loaded.first, start), (loaded.second, end))
    ]
    picture = side_by_side([cv2.cvtColor(patch, cv2.COLOR_GRAY2BGR) for patch in patches])
    strip = np.full((14, picture.shape[1], 3), 255, np.uint8)
    words = f"{distance:.2f} {np.exp(found.log_scale_ratio[row]):.2f}x"
    cv2.putText(strip, words, (2, 11), cv2.FONT_HERSHEY_SIMPLEX, 0.38, (20, 20, 20), 1, cv2.LINE_AA)
    return np.pad(np.concatenate([picture, strip]), ((0, 4), (0, 10), (0, 0)), constant_values=255)


def main() -> None:
    extractor = Extractor(sys.argv[3] if len(sys.argv) > 3 else "logpolar-96", max_size=None)
    with CorrespondenceFile(Path(sys.argv[1])) as file:
        found = distances(file, extractor)
        ranges = file.column("pairs", "correspondences")
        chosen = np.argsort(-found)[:COUNT]
        cells = []
        for number in chosen.tolist():
            pair = int(np.searchsorted(ranges[:, 1], number, side="right"))
            cells.append(cell(file, pair, number - int(ranges[pair, 0]), float(found[number])))
        print(f"{len(found)} correspondences, median distance {np.median(found):.3f}, 100th {found[chosen[-1]]:.3f}")
        write_picture(sys.argv[2], stack([side_by_side(cells[n : n + COLUMNS]) for n in range(0, len(cells), COLUMNS)]))


if __name__ == "__main__":
    main()
