"""How often unrelated photos are called a common scene, and photos with the right pose are not.

    python benchmarks/verdicts.py scenes/a scenes/b --cache cache/ [-d logpolar-96-int8] [--pairs 200]

Unrelated: an image each of two scenes, drawn at random. Overlapping: pairs of a scene whose images share at least
``--overlap`` of the model's points that either shows; of these, pairs whose pose is right within 10 degrees should be
called a common scene. Options are the defaults of ``logpolar match``, the second look included, by logpolar-sf-int8;
features are those of ``pose.py``.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np

from logpolar.evaluation.descriptors.keypoint_sources import sift_source
from logpolar.evaluation.options import PhototourismOptions
from logpolar.evaluation.posed_scenes import PosedImage
from logpolar.evaluation.poses import DescribedImage, ExtractRegion, estimate_errors
from logpolar.geometry.second_look import MatchedImages, look_again
from logpolar.geometry.two_view import RelativePose
from logpolar.geometry.verification import VerifiedMatches, match_and_verify
from pose import SEED, Features, open_fast, open_look, read_pairs

RIGHT = 10  # degrees


Key = tuple[int, int]
"""Number of the scene, and row of the image."""


def verify(
    first: Key, second: Key, described: Mapping[Key, DescribedImage], extract: Sequence[ExtractRegion], model: str
) -> VerifiedMatches:
    sides = described[first], described[second]
    cameras = sides[0].camera.matrix, sides[1].camera.matrix
    features = sides[0].features, sides[1].features
    pair = MatchedImages(*features, match_and_verify(*features, model, cameras=cameras))
    regions = partial(extract[first[0]], first[1]), partial(extract[second[0]], second[1])
    return look_again(pair, regions, cameras=cameras, other=True).found


def overlap(first: PosedImage, second: PosedImage) -> float:
    """Points that both show, as a fraction of those that the one with fewer shows."""
    assert first.observed is not None and second.observed is not None
    here, there = first.observed.points, second.observed.points
    return len(np.intersect1d(here, there)) / max(min(len(here), len(there)), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenes", type=Path, nargs="+")
    parser.add_argument("-d", "--descriptor", default="logpolar-96-int8")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--per-scene", type=int, default=28, help="pairs of each scene to draw from")
    parser.add_argument("--overlap", type=float, default=0.1)
    parsed = parser.parse_args()
    options, features, method = PhototourismOptions(), Features(parsed.cache), open_fast(parsed.descriptor, "cpu")
    source = sift_source(options.keypoints, options.contrast, spread=options.spread)
    scenes = [read_pairs(path, parsed.per_scene, options) for path in parsed.scenes]
    images = [sorted({row for pair in pairs for row in pair}) for _, pairs in scenes]
    described = {
        (number, row): features(scene.images[row], method, source)
        for number, (scene, _) in enumerate(scenes)
        for row in images[number]
    }
    looking = replace(options, second_look="logpolar-sf-int8")
    extract = [open_look(looking, method, source, scene, "cpu") for scene, _ in scenes]
    random = np.random.default_rng(SEED)
    keys = [(first, second) for first, second in combinations(described, 2) if first[0] != second[0]]
    for model in ("fundamental", "pose"):
        chosen = [keys[index] for index in random.permutation(len(keys))[: parsed.pairs]]
        called = sum(verify(a, b, described, extract, model).geometry.common_scene for a, b in chosen)
        print(f"unrelated, {model}: {called} of {len(chosen)} called a common scene", flush=True)
    related = [
        ((number, first), (number, second))
        for number, (scene, pairs) in enumerate(scenes)
        for first, second in pairs
        if overlap(scene.images[first], scene.images[second]) >= parsed.overlap
    ]
    chosen = [related[index] for index in random.permutation(len(related))[: parsed.pairs]]
    right = missed = 0
    for a, b in chosen:
        found = verify(a, b, described, extract, "pose").geometry
        assert isinstance(found, RelativePose)
        if max(estimate_errors(described[a].camera, described[b].camera, found)) <= RIGHT:
            right, missed = right + 1, missed + (not found.common_scene)
    print(f"overlapping: {len(chosen)} pairs, {right} right within {RIGHT} degrees, {missed} of these called none")


if __name__ == "__main__":
    main()
