"""Sampler, network, detection, matching, geometry."""

from __future__ import annotations

import cv2
import numpy as np

from logpolar.keypoints.detection import SiftDetector
from logpolar.models import load_model
from logpolar.models.describers import open_describer
from logpolar.sampling import LogPolar, sample_patches
from speed_subjects import peers
from speed_subjects.inputs import COUNT, LARGE, SMALL, gray_picture, picture, random_descriptors, random_keypoints
from speed_subjects.measuring import Case, Settings, Subject, Work

_LOOP_COUNT = 400


def sampler(settings: Settings) -> Subject:
    """Patches of given keypoints, the pyramid included."""
    keypoints = random_keypoints(COUNT, SMALL)
    pattern = load_model(settings.models[0].partition("@")[0]).sampling
    plain = LogPolar(96.0, inner_radius="paper", antialias=False)
    loop = f"loop over {_LOOP_COUNT} keypoints, plain bilinear"

    def ours(pattern: LogPolar) -> Work:
        gray = gray_picture(SMALL)
        return lambda: sample_patches(gray, keypoints, pattern)

    return Subject(
        f"Sampler: {COUNT} patches of 32 x 32 in a {SMALL[0]} px picture",
        "patches/s",
        (
            Case("logpolar, anti-aliased", lambda: ours(pattern), COUNT),
            Case("logpolar, plain bilinear", lambda: ours(plain), COUNT),
            Case("kornia, square patches", lambda: peers.kornia_patches(gray_picture(SMALL), keypoints), COUNT),
            Case(
                loop,
                lambda: peers.loop_sampler(gray_picture(SMALL), keypoints[:_LOOP_COUNT], plain),
                _LOOP_COUNT,
            ),
        ),
        loop,
    )


def network(settings: Settings) -> Subject:
    """Patches to descriptors."""

    def ours(model: str) -> Work:
        name, _, runtime = model.partition("@")
        loaded = load_model(name)
        opened = open_describer(loaded, runtime=runtime, threads=settings.threads)  # type: ignore[arg-type]
        patches = sample_patches(gray_picture(SMALL), random_keypoints(COUNT, SMALL), loaded.sampling)
        return lambda: opened.describe_patches(patches)

    def theirs(chunk: int) -> Case:
        return Case(f"kornia HardNet, chunks of {chunk}", lambda: peers.kornia_network(COUNT, chunk), COUNT)

    return Subject(
        f"Network: {COUNT} patches to descriptors",
        "patches/s",
        (
            *(Case(model, lambda model=model: ours(model), COUNT) for model in settings.models),
            *(theirs(chunk) for chunk in (64, 128, 256, 512)),
        ),
        f"kornia HardNet, chunks of {peers.KORNIA_CHUNK}",
    )


def detection(settings: Settings) -> Subject:
    """SIFT keypoints, ours being OpenCV's with precise upscaling, sorted by response."""

    def ours(size: tuple[int, int]) -> Work:
        gray = gray_picture(size)
        return lambda: SiftDetector()(gray)

    def theirs(size: tuple[int, int]) -> Work:
        pixels = picture(size)
        feature = cv2.SIFT.create(2048)
        return lambda: feature.detect(pixels, None)

    cases = []
    for width, height in (SMALL, (1600, 1200), LARGE):
        amount = width * height / 1e6
        size, name = (width, height), f"{width} x {height}"
        cases.append(Case(f"logpolar, {name}", lambda size=size: ours(size), amount, name))
        cases.append(Case(f"cv2.SIFT.detect, {name}", lambda size=size: theirs(size), amount, name))
    return Subject("Detection: 2048 SIFT keypoints", "megapixels/s", tuple(cases))


def matching(settings: Settings) -> Subject:
    """Mutual nearest neighbours with a ratio test; OpenCV's matcher finds nearest neighbours one way only."""
    from logpolar.matching.nearest import match_descriptors

    count = 8192
    pairs = float(count) ** 2 / 1e6

    def tensors() -> tuple[object, object]:
        import torch

        first, second = random_descriptors(count)
        return torch.from_numpy(first), torch.from_numpy(second)

    def ours() -> Work:
        first, second = random_descriptors(count)
        return lambda: match_descriptors(first, second)

    def by_opencv(neighbours: int, cross: bool = False) -> Work:
        first, second = random_descriptors(count)
        matcher = cv2.BFMatcher(cv2.NORM_L2, crossCheck=cross)
        if neighbours == 1:
            return lambda: matcher.match(first, second)
        return lambda: matcher.knnMatch(first, second, neighbours)

    def by_kornia(name: str, *arguments: float) -> Work:
        import kornia.feature

        first, second = tensors()
        match = getattr(kornia.feature, name)
        return lambda: match(first, second, *arguments)

    def on_torch() -> Work:
        from logpolar.matching.nearest import select_matches
        from logpolar.matching.options import MatchingOptions
        from logpolar.matching.torch_nearest import nearest_on_device

        first, second = tensors()
        return lambda: select_matches(nearest_on_device(first, second, "cpu"), MatchingOptions())

    return Subject(
        f"Matching: {count} x {count} descriptors of 128 dimensions",
        "million pairs/s",
        (
            Case("logpolar, mutual + ratio", ours, pairs),
            Case("logpolar on torch, mutual + ratio", on_torch, pairs),
            Case("cv2.BFMatcher, one way, k = 1", lambda: by_opencv(1), pairs),
            Case("cv2.BFMatcher, one way, k = 2", lambda: by_opencv(2), pairs),
            Case("cv2.BFMatcher, cross check", lambda: by_opencv(1, True), pairs),
            Case("kornia match_mnn", lambda: by_kornia("match_mnn"), pairs),
            Case("kornia match_smnn", lambda: by_kornia("match_smnn", 0.9), pairs),
        ),
        "cv2.BFMatcher, one way, k = 2",
    )


def geometry(settings: Settings) -> Subject:
    """Matches to a pose: the consensus filter, and estimators on matches of which half are correct."""
    from logpolar.geometry.two_view import estimate_pose
    from logpolar.matching.consensus import agreeing

    many, some = 8000, 1000
    camera = np.array([[900.0, 0, 512], [0, 900, 384], [0, 0, 1]])

    def consensus() -> Work:
        first, second = random_keypoints(many, LARGE), random_keypoints(many, LARGE)
        return lambda: agreeing(first, second)

    def pose(estimator: str) -> Work:
        random = np.random.default_rng(0)
        world = random.uniform((-2, -1.5, 4), (2, 1.5, 9), (some, 3))
        first, second = (
            seen[:, :2] / seen[:, 2:] for seen in (world @ camera.T, (world + np.array([0.8, 0.1, 0.2])) @ camera.T)
        )
        second = second + random.normal(0, 0.3, second.shape)
        second[::2] = random.permutation(second[::2])
        return lambda: estimate_pose(first, second, camera, camera, estimator=estimator)

    return Subject(
        f"Geometry: consensus of {many} matches, pose of {some} matches, half of them correct",
        "matches/s",
        (
            Case("consensus filter", consensus, many),
            Case("pose, PoseLib", lambda: pose("poselib"), some),
            Case("pose, OpenCV USAC", lambda: pose("opencv"), some),
        ),
    )
