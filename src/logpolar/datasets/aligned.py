"""Correspondences from images that show the same view: fixed cameras at two times, or any pair with a homography.

SIFT runs on both images. Places where it finds a keypoint in only one of them, as it mostly does between day and night,
are carried to the other with their size and angle. A list says which images belong together; whether they really do is
measured before a pair is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from logpolar.cameras import Matrix
from logpolar.datasets.building import (
    BuildReport,
    fingerprint,
    in_batches,
    read_report,
    sift,
    split_images,
    versions,
    with_progress,
)
from logpolar.datasets.correspondences import (
    Correspondences,
    ImagePair,
    find_correspondences,
    warp_points,
    warp_shape,
)
from logpolar.datasets.files import connected
from logpolar.datasets.homographies import keep_distractors
from logpolar.datasets.options import AlignedOptions, AlignmentRules
from logpolar.datasets.writing import CorrespondenceWriter, ImageRecord, PairRecord
from logpolar.errors import ImageError, LogpolarError, in_words
from logpolar.extraction import Extractor
from logpolar.images import decode_gray, encode_gray, read_gray, shrink, to_bytes, to_gray, unnamed_images
from logpolar.keypoints import Keypoints
from logpolar.matching import MatchingOptions, match_descriptors
from logpolar.neighbours import Indices, close_pairs, keep_apart
from logpolar.parallel import in_processes


@dataclass(frozen=True, eq=False)
class AlignedPair:
    """Two image files, and the homography from the first to the second in their pixels; None: the same view."""

    first: Path
    second: Path
    homography: Matrix | None = None


@dataclass(frozen=True, eq=False)
class LinkedPair(ImagePair):
    """A pair with its correspondences, those of carried places last."""

    carried: int
    rejects: Counter[str]


class MovedError(LogpolarError):
    """Two images that do not show the same view, or not demonstrably."""


def read_pair_list(path: str | Path) -> list[AlignedPair]:
    """Pairs of a text file: a line has the paths of two images and, if they are not the same view, that of a file with
    the 3 x 3 homography from the first to the second. Paths are relative to the list; empty lines and those that start
    with ``#`` are skipped."""
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LogpolarError(
            f"{path}: {in_words(error) if isinstance(error, OSError) else 'not a text file'}"
        ) from error
    pairs = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) not in (2, 3):
            raise LogpolarError(f"{path}, line {number}: expected two images and perhaps a homography, not '{line}'")
        files = [path.parent / word for word in words]
        pairs.append(AlignedPair(files[0], files[1], read_homography(files[2]) if len(files) == 3 else None))
    if not pairs:
        raise LogpolarError(f"{path}: the list is empty")
    return pairs


def read_homography(path: str | Path) -> Matrix:
    """A 3 x 3 matrix in a text file, as HPatches has them."""
    try:
        values = np.array(
            [[float(word) for word in line.split()] for line in Path(path).read_text().split("\n") if line]
        )
    except OSError as error:
        raise LogpolarError(f"{path}: {in_words(error)}") from error
    except ValueError as error:
        raise LogpolarError(f"{path}: not a 3 x 3 matrix") from error
    if values.shape != (3, 3) or not np.isfinite(values).all() or abs(np.linalg.det(values)) < 1e-12:
        raise LogpolarError(f"{path}: not an invertible 3 x 3 matrix")
    return values


def build_aligned(
    pairs: Sequence[AlignedPair],
    output: str | Path,
    options: AlignedOptions | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    progress: bool = False,
) -> BuildReport:
    """Make a correspondence file of pairs; continues a file whose making was stopped.

    Pairs that moved, or that cannot be read, are left out with the reason.
    """
    options = options or AlignedOptions()
    if not pairs:
        raise LogpolarError("there are no pairs")
    tasks = [_Task(number, pair, _names(number, pair)) for number, pair in enumerate(pairs)]
    unnamed = unnamed_images(name for task in tasks for name in task.names)
    left_out = {task.names[0]: unnamed[name] for task in tasks for name in task.names if name in unnamed}
    tasks = [task for task in tasks if task.names[0] not in left_out]
    # Images of one camera, however many pairs they are in, are on one side of the split.
    camera = connected((str(task.pair.first), str(task.pair.second)) for task in tasks)
    parts = split_images(sorted(set(camera.values())), options.split)
    warps = [None if task.pair.homography is None else task.pair.homography.tolist() for task in tasks]
    paths = [path for task in tasks for path in (task.pair.first, task.pair.second) if path.exists()]
    settings = {
        "source": "aligned",
        "images_hash": fingerprint([*(task.names for task in tasks), warps], paths),
        **asdict(options),
    }
    with CorrespondenceWriter(output, settings, overwrite) as writer:
        todo = [task for task in tasks if task.names not in writer.pairs]

        def records() -> Iterator[tuple[list[ImageRecord], PairRecord]]:
            made = in_processes(partial(_try_pair, options), todo, jobs)
            for task, result in with_progress(made, "pair", len(tasks), len(tasks) - len(todo), progress):
                if isinstance(result, str):
                    left_out[task.names[0]] = result
                else:
                    yield _records(task.names, parts[camera[str(task.pair.first)]], result, options)

        def store(made: list[tuple[list[ImageRecord], PairRecord]]) -> None:
            writer.add([image for images, _ in made for image in images], [pair for _, pair in made])

        was_complete = writer.complete
        if not was_complete:
            in_batches(records(), 16, store)
            if not writer.pairs:
                writer.path.unlink()
                raise ImageError(f"none of the {len(left_out)} pairs can be used; {next(iter(left_out.values()))}")
            writer.finish({"left_out": left_out, "versions": versions()})
    return read_report(output, was_complete)


@dataclass(frozen=True, eq=False)
class _Task:
    number: int
    pair: AlignedPair
    names: tuple[str, str]  # of its images in the file


def _names(number: int, pair: AlignedPair) -> tuple[str, str]:
    """An image has the carried keypoints of one pair, so each pair has its own entries."""
    return f"{pair.first.as_posix()}#{number}a", f"{pair.second.as_posix()}#{number}b"


def _records(
    names: tuple[str, str], part: str, pair: LinkedPair, options: AlignedOptions
) -> tuple[list[ImageRecord], PairRecord]:
    sides = zip(names, (pair.first, pair.second), (pair.first_keypoints, pair.second_keypoints), strict=True)
    images = [
        ImageRecord(name, part, (view.shape[1], view.shape[0]), keypoints, encode_gray(view, options.quality))
        for name, view, keypoints in sides
    ]
    return images, PairRecord(*names, pair.correspondences, pair.rejects)


def _try_pair(options: AlignedOptions, task: _Task) -> LinkedPair | str:
    try:
        random = np.random.default_rng((options.split.seed, task.number))
        return link_aligned(task.pair, options, random)
    except LogpolarError as error:
        return str(error)
    except (cv2.error, MemoryError) as error:
        return f"{task.pair.first}: cannot be used ({type(error).__name__}: {error})"


def link_aligned(pair: AlignedPair, options: AlignedOptions, random: np.random.Generator) -> LinkedPair:
    """Correspondences of a pair; raises ``LogpolarError`` for images that cannot be read and ``MovedError``."""
    first, second = read_gray(pair.first), read_gray(pair.second)
    if pair.homography is None and first.shape != second.shape:
        sizes = " and ".join(f"{view.shape[1]} x {view.shape[0]}" for view in (first, second))
        raise MovedError(f"{pair.first}, {pair.second}: {sizes} pixels, and no homography between them")
    small = [shrink(view, options.max_size) for view in (first, second)]
    homography = np.eye(3) if pair.homography is None else pair.homography
    factors = [_resizing(before.shape, after.shape) for before, after in zip((first, second), small, strict=True)]
    homography = factors[1] @ homography @ np.linalg.inv(factors[0])
    # The pixels that a reader of the file will see.
    views = [decode_gray(encode_gray(to_bytes(view), options.quality)) for view in small]
    keypoints = [sift(options.keypoints)(to_gray(view)) for view in views]
    if options.alignment.min_matches:
        _refuse_moved(pair, *measure_shift(views, keypoints, homography), options.alignment)
    shape = views[1].shape[1], views[1].shape[0]
    found, rejects = find_correspondences(keypoints[0], keypoints[1], homography, shape, options.rules, random)
    here, there = keypoints
    linked = LinkedPair(views[0], views[1], here, there, found, 0, rejects)
    return keep_distractors(carry(linked, homography, options, random), options.keypoints.distractors)


def _refuse_moved(pair: AlignedPair, shift: float, matches: int, rules: AlignmentRules) -> None:
    if matches < rules.min_matches:
        raise MovedError(f"{pair.first}, {pair.second}: {matches} matches agree, too few to tell whether it moved")
    if shift > rules.max_shift:
        raise MovedError(f"{pair.first}, {pair.second}: moved by {shift:.1f} px")


def carry(pair: LinkedPair, homography: Matrix, options: AlignedOptions, random: np.random.Generator) -> LinkedPair:
    """The pair with correspondences where only one of the images has a keypoint, spaced out like the others.

    Such a keypoint gets a partner in the other image, where the homography says, with the size and angle it predicts.
    """
    rules = options.rules
    first, second, found = pair.first_keypoints, pair.second_keypoints, pair.correspondences
    forth = _carried(first, second, homography, pair.second.shape, rules.max_distance)
    back = _carried(
        second, first, np.asarray(np.linalg.inv(homography), np.float64), pair.first.shape, rules.max_distance
    )
    count = len(found)
    here = found.first.xy, first.xy[forth.source], back.keypoints.xy
    there = found.second.xy, forth.keypoints.xy, second.xy[back.source]
    candidates = random.permutation(np.arange(count, count + len(forth.source) + len(back.source)))
    order = [*range(count), *candidates.tolist()]
    places = np.concatenate(here), np.concatenate(there)
    limit = min(rules.max_count, count + options.carried)
    chosen = np.sort(keep_apart(order, places, rules.min_spacing, limit)[count:]) - count
    ahead, behind = chosen[chosen < len(forth.source)], chosen[chosen >= len(forth.source)] - len(forth.source)
    rows = np.concatenate(
        [
            np.stack([forth.source[ahead], len(second) + np.arange(len(ahead))], axis=1),
            np.stack([len(first) + np.arange(len(behind)), back.source[behind]], axis=1),
        ]
    )
    first, second = first + back.keypoints[behind], second + forth.keypoints[ahead]
    indices = np.concatenate([found.indices, rows.astype(np.int32)])
    _, warp = warp_points(homography, first.xy[indices[:, 0]])
    nothing = np.zeros(len(rows), np.float32)
    merged = Correspondences(
        first[indices[:, 0]],
        second[indices[:, 1]],
        indices,
        warp.astype(np.float32),
        np.concatenate([found.log_scale_ratio, nothing]),
        np.concatenate([found.angle_residual, nothing]),
    )
    return replace(pair, first_keypoints=first, second_keypoints=second, correspondences=merged, carried=len(rows))


@dataclass(frozen=True, eq=False)
class _Carried:
    source: Indices  # rows of the keypoints that were carried
    keypoints: Keypoints  # what became of them


def _carried(
    keypoints: Keypoints, others: Keypoints, homography: Matrix, shape: tuple[int, ...], radius: float
) -> _Carried:
    """Keypoints that land on the other image at least ``radius`` from all of its own."""
    warped, jacobian = warp_points(homography, keypoints.xy)
    angle, size = warp_shape(jacobian, keypoints)
    alone = np.ones(len(keypoints), np.bool_)
    alone[close_pairs(warped, others.xy, radius)[0]] = False
    inside = ((warped >= 0) & (warped <= np.array(shape[::-1]) - 1)).all(axis=1)
    source = np.flatnonzero(alone & inside)
    moved = Keypoints.from_points(warped[source], size[source], angle[source], keypoints.response[source])
    return _Carried(source, moved)


def measure_shift(
    views: Sequence[NDArray[np.uint8]], keypoints: Sequence[Keypoints], homography: Matrix
) -> tuple[float, int]:
    """Median distance, in pixels of the second image, of matches from where the homography sends them; and how many.

    Matches are sought over the whole image by descriptors alone. Those that one homography, whichever it is, explains
    count.
    """
    (here, first), (there, second) = (
        (points.xy, _extractor().extract(view, points).descriptors)
        for view, points in zip(views, (each.strongest(_CHECKED) for each in keypoints), strict=True)
    )
    matches = match_descriptors(first, second, MatchingOptions(ratio=0.95)).indices
    if len(matches) < 4:
        return np.nan, len(matches)
    here, there = here[matches[:, 0]], there[matches[:, 1]]
    _, mask = cv2.findHomography(here, there, cv2.USAC_MAGSAC, 3.0)
    if mask is None or not mask.any():
        return np.nan, 0
    agree = mask.ravel() > 0
    warped, _ = warp_points(homography, here[agree])
    return float(np.median(np.linalg.norm(warped - there[agree], axis=1))), int(agree.sum())


_CHECKED = 1000  # keypoints of an image that are matched for the check


@lru_cache(maxsize=1)
def _extractor() -> Extractor:
    return Extractor(max_size=None, threads=1)


def _resizing(before: tuple[int, ...], after: tuple[int, ...]) -> Matrix:
    """Pixels before to pixels after a resize, (x + 1/2) s - 1/2."""
    x, y = after[1] / before[1], after[0] / before[0]
    return np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2], [0, 0, 1.0]])
