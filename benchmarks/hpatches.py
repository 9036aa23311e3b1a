"""Right nearest neighbours on HPatches sequences (`1.ppm ... 6.ppm`, `H_1_2 ... H_1_6`), against RootSIFT.

python benchmarks/hpatches.py FOLDER_OF_SEQUENCES

SIFT keypoints (3000 strongest, contrast threshold 0.02), images reduced to at most 1024 px, pairs 1-2 to 1-6.
Correspondences: within 1.5 px after the homography, mutually nearest, orientations within 25 degrees, 7 px apart.
Wrong answers are all other keypoints of the second image. "zoom 3": the second image is reduced 3x before detection.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np

from common import save
from logpolar.datasets.correspondences import ImagePair, find_correspondences
from logpolar.datasets.options import CorrespondenceRules
from logpolar.detection import SiftDetector
from logpolar.evaluation.descriptors.baselines import root_sift
from logpolar.evaluation.pairs import Describe, score_pairs
from logpolar.extraction import Extractor
from logpolar.images import read_gray, to_bytes, to_gray

SEED = 0


def reduced(gray: np.ndarray, factor: float) -> tuple[np.ndarray, np.ndarray]:
    """The image times ``factor``, 8 bit, and the 3 x 3 map of its pixel coordinates."""
    height, width = gray.shape
    size = (round(width * factor), round(height * factor))
    small = gray if factor == 1 else cv2.resize(gray, size, interpolation=cv2.INTER_AREA)
    x, y = size[0] / width, size[1] / height
    return to_bytes(small), np.array([[x, 0, x / 2 - 0.5], [0, y, y / 2 - 0.5], [0, 0, 1]])


def pairs_of(sequence: Path, zoom: float) -> list[ImagePair]:
    detector = SiftDetector(max_keypoints=3000, contrast_threshold=0.02)
    random = np.random.default_rng(SEED)
    grays = [read_gray(sequence / f"{number}.ppm") for number in range(1, 7)]
    fit = [min(1024 / max(gray.shape), 1) for gray in grays]
    first, first_map = reduced(grays[0], fit[0])
    first_keypoints = detector(to_gray(first))
    pairs = []
    for number in range(2, 7):
        second, second_map = reduced(grays[number - 1], fit[number - 1] / zoom)
        homography = second_map @ np.loadtxt(sequence / f"H_1_{number}") @ np.linalg.inv(first_map)
        keypoints = detector(to_gray(second))
        shape = second.shape[1], second.shape[0]
        found, _ = find_correspondences(first_keypoints, keypoints, homography, shape, CorrespondenceRules(), random)
        pairs.append(ImagePair(first, second, first_keypoints, keypoints, found))
    return pairs


def describer(model: str) -> Describe:
    extractor = Extractor(model, max_size=None)
    return lambda view, keypoints: extractor.extract(view, keypoints).descriptors


def main() -> None:
    sequences = sorted(path.parent for path in Path(sys.argv[1]).glob("*/H_1_2"))
    methods = {name: describer(name) for name in ("logpolar-96", "paper-logpolar-96", "paper-cartesian-12")}
    methods["RootSIFT"] = root_sift
    result: dict[str, object] = {"sequences": [path.name for path in sequences], "seed": SEED}
    for zoom in (1, 3):
        pairs = [pair for sequence in sequences for pair in pairs_of(sequence, zoom)]
        for name, describe in methods.items():
            score = score_pairs(pairs, describe).to_dict()
            result[f"zoom {zoom} {name}"] = score
            print(f"zoom {zoom} {name}", score, flush=True)
    save("hpatches", result)


if __name__ == "__main__":
    main()
