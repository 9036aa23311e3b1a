"""Correspondences from aligned images: a fixed camera at two times, or any two images with a known homography.

Between day and night SIFT detects few places in both images. Keypoints that only one image has are therefore carried to
the other, with the size and angle that the homography predicts. The alignment is checked before a pair is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from logpolar.datasets.building import (
    BuildReport,
    BuiltPair,
    PairTask,
    build_pairs,
    fingerprint,
    keep_distractors,
    open_detector,
    or_reason,
    split_images,
)
from logpolar.datasets.correspondences import Correspondences, find_correspondences
from logpolar.datasets.files import connected_components
from logpolar.datasets.options import AlignedOptions, stored_settings
from logpolar.errors import LogpolarError
from logpolar.geometry.homography import read_homography, warp_points, warp_shape
from logpolar.geometry.radius_search import Indices, close_pairs, keep_apart
from logpolar.geometry.two_view import estimate_homography
from logpolar.images import (
    decode_gray,
    downscale,
    encode_gray,
    read_gray,
    resize_matrix,
    to_bytes,
    to_gray,
    unnamed_images,
)
from logpolar.keypoints import Keypoints
from logpolar.matching.nearest import match_descriptors
from logpolar.matching.options import MatchingOptions
from logpolar.models.describers import Describer, open_describer
from logpolar.settings import DEFAULT_MODEL
from logpolar.storage.inputs import read_text
from logpolar.types import FloatArray, Matrix

_CHECKED = 1000  # strongest keypoints of an image that are matched to check the alignment
_THRESHOLD = 3.0  # pixels: inliers of that check


@dataclass(frozen=True, eq=False)
class AlignedPair:
    """Two image files, and the homography from the first to the second in their pixels; None for the same view."""

    first: Path
    second: Path
    homography: Matrix | None = None


def read_pair_list(path: str | Path) -> list[AlignedPair]:
    """Pairs from a text file.

    Each line has the paths of two images and, unless they show the same view, of a homography (``read_homography``),
    relative to the list. Empty lines and those that begin with ``#`` are skipped.
    """
    path = Path(path)
    pairs = []
    for number, line in enumerate(read_text(path, LogpolarError, "text file of pairs").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        files = [path.parent / word for word in line.split()]
        if len(files) not in (2, 3):
            raise LogpolarError(f"{path}: line {number}: '{line[:200]}' is not two images and an optional homography")
        pairs.append(AlignedPair(files[0], files[1], *map(read_homography, files[2:])))
    if not pairs:
        raise LogpolarError(f"{path}: no pairs in this file")
    return pairs


def build_aligned(
    pairs: Sequence[AlignedPair],
    output: str | Path,
    options: AlignedOptions | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    progress: bool = False,
) -> BuildReport:
    """Make a correspondence file of aligned pairs; resumes an unfinished file.

    Unreadable and misaligned pairs are left out. Pairs connected by common images are in the same split.
    """
    options = options or AlignedOptions()
    if not pairs:
        raise LogpolarError("there are no pairs")
    # Each pair has its own copies of its images, since carried keypoints belong to a pair.
    names = [(f"{pair.first.as_posix()}#{k}a", f"{pair.second.as_posix()}#{k}b") for k, pair in enumerate(pairs)]
    unnamed = unnamed_images(name for both in names for name in both)
    left_out = {both[0]: unnamed[name] for both in names for name in both if name in unnamed}
    camera = connected_components((str(pair.first), str(pair.second)) for pair in pairs)
    splits = split_images(sorted(set(camera.values())), options.split)
    tasks = [
        PairTask((k, pair), names[k][0], names[k], splits[camera[str(pair.first)]])
        for k, pair in enumerate(pairs)
        if names[k][0] not in left_out
    ]
    homographies = [None if pair.homography is None else pair.homography.tolist() for pair in pairs]
    files = [path for pair in pairs for path in (pair.first, pair.second) if path.exists()]
    settings = {
        "source": "aligned",
        "images_hash": fingerprint([*names, homographies], files),
        **stored_settings(options),
    }
    work = partial(_try_pair, options)
    return build_pairs(
        output, settings, tasks, work, left_out, what="pairs", jobs=jobs, overwrite=overwrite, progress=progress
    )


def _try_pair(options: AlignedOptions, task: PairTask[tuple[int, AlignedPair]]) -> BuiltPair | str:
    number, pair = task.item
    random = np.random.default_rng((options.split.seed, number))
    return or_reason(lambda: link_aligned(pair, options, random), pair.first)


def link_aligned(pair: AlignedPair, options: AlignedOptions, random: np.random.Generator) -> BuiltPair:
    """Correspondences of a pair; raises ``LogpolarError`` if it cannot be read or is not aligned."""
    grays = [read_gray(path) for path in (pair.first, pair.second)]
    if pair.homography is None and grays[0].shape != grays[1].shape:
        sizes = " and ".join(f"{gray.shape[1]} x {gray.shape[0]}" for gray in grays)
        raise LogpolarError(f"{pair.first}, {pair.second}: {sizes} pixels, but no homography")
    small = [downscale(gray, options.max_size) for gray in grays]
    here, there = (resize_matrix(a.shape[::-1], b.shape[::-1]) for a, b in zip(grays, small, strict=True))
    homography = there @ (np.eye(3) if pair.homography is None else pair.homography) @ np.linalg.inv(here)
    encoded = [encode_gray(to_bytes(gray), options.quality) for gray in small]
    first, second = (decode_gray(data) for data in encoded)  # as readers of the file will see them
    first_gray, second_gray = to_gray(first), to_gray(second)
    first_keypoints, second_keypoints = (open_detector(options.keypoints)(gray) for gray in (first_gray, second_gray))
    if options.min_matches:
        shift, matches = measure_shift((first_gray, second_gray), (first_keypoints, second_keypoints), homography)
        if matches < options.min_matches:
            raise LogpolarError(f"{pair.first}, {pair.second}: only {matches} consistent matches, cannot be checked")
        if shift > options.max_shift:
            raise LogpolarError(f"{pair.first}, {pair.second}: moved by {shift:.1f} px")
    size = second.shape[1], second.shape[0]
    found, rejects = find_correspondences(first_keypoints, second_keypoints, homography, size, options.rules, random)
    built = BuiltPair(first, second, first_keypoints, second_keypoints, found, (encoded[0], encoded[1]), rejects)
    return keep_distractors(_with_carried(built, homography, options, random), options.keypoints.distractors)


def measure_shift(
    grays: tuple[FloatArray, FloatArray], keypoints: tuple[Keypoints, Keypoints], homography: Matrix
) -> tuple[float, int]:
    """Median distance of matches from where the homography maps them, in pixels of the second image, and their number.

    Matches are by descriptor alone, over the whole image, and must be consistent with some homography, not this one.
    """
    checked = [each.strongest(_CHECKED) for each in keypoints]
    first, second = (_describer().describe(gray, each) for gray, each in zip(grays, checked, strict=True))
    matches = match_descriptors(first, second, MatchingOptions(ratio=0.95)).indices
    here, there = checked[0].xy[matches[:, 0]], checked[1].xy[matches[:, 1]]
    inliers = estimate_homography(here, there, threshold=_THRESHOLD).inliers
    if not inliers.any():
        return np.nan, 0
    warped, _ = warp_points(homography, here[inliers])
    return float(np.median(np.linalg.norm(warped - there[inliers], axis=1))), int(inliers.sum())


@lru_cache(maxsize=1)
def _describer() -> Describer:
    return open_describer(DEFAULT_MODEL, threads=1)


def _with_carried(
    pair: BuiltPair, homography: Matrix, options: AlignedOptions, random: np.random.Generator
) -> BuiltPair:
    """The pair with correspondences of keypoints that only one image has; their partners have the index -1."""
    first, second, found = pair.first_keypoints, pair.second_keypoints, pair.correspondences
    gap = options.rules.max_distance
    forth, forth_partners = _carry(first, second, homography, pair.second.shape, gap)
    back, back_partners = _carry(second, first, np.asarray(np.linalg.inv(homography)), pair.first.shape, gap)
    here, there = found.first + first[forth] + back_partners, found.second + forth_partners + second[back]
    new = [np.stack([forth, np.full(len(forth), -1)], axis=1), np.stack([np.full(len(back), -1), back], axis=1)]
    indices = np.concatenate([found.indices, *new]).astype(np.int32)
    order = [*range(len(found)), *random.permutation(np.arange(len(found), len(here))).tolist()]
    limit = min(options.rules.max_count, len(found) + options.carried)
    kept = np.sort(keep_apart(order, (here.xy, there.xy), options.rules.min_spacing, limit))
    _, warp = warp_points(homography, here.xy[kept])
    exact = np.zeros(len(kept) - len(found), np.float32)  # the partners are as predicted
    extended = Correspondences(
        here[kept],
        there[kept],
        indices[kept],
        warp.astype(np.float32),
        np.concatenate([found.log_scale_ratio, exact]),
        np.concatenate([found.angle_residual, exact]),
    )
    return replace(pair, correspondences=extended)


def _carry(
    keypoints: Keypoints, others: Keypoints, homography: Matrix, shape: tuple[int, ...], gap: float
) -> tuple[Indices, Keypoints]:
    """Keypoints that map into the other image, farther than ``gap`` from its own: their rows, and where they land."""
    warped, jacobian = warp_points(homography, keypoints.xy)
    angle, size = warp_shape(jacobian, keypoints)
    alone = np.asarray(((warped >= 0) & (warped <= np.array(shape[::-1]) - 1)).all(axis=1))
    alone[close_pairs(warped, others.xy, gap)[0]] = False
    rows = np.flatnonzero(alone)
    return rows, Keypoints.from_points(warped[rows], size[rows], angle[rows], keypoints.response[rows])
