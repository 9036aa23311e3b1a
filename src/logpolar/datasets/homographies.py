"""Training pairs from single photos: two views of one photo through a known homography, with the light changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

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
from logpolar.datasets.correspondences import ImagePair, find_correspondences
from logpolar.datasets.options import PhotoOptions, ViewOptions
from logpolar.datasets.writing import CorrespondenceWriter, ImageRecord, PairRecord
from logpolar.errors import ImageError, LogpolarError
from logpolar.images import decode_gray, encode_gray, read_gray, shrink, to_bytes, to_gray, unnamed_images
from logpolar.parallel import in_processes

Bytes = NDArray[np.uint8]
Task = tuple[int, int]  # number of a photo, number of a pair of views of it
SomePair = TypeVar("SomePair", bound=ImagePair)


@dataclass(frozen=True, eq=False)
class ViewPair(ImagePair):
    """Two views of a photo, and the homography from the first to the second."""

    homography: Matrix
    zoom: float  # size of a thing in the second view over its size in the first, before the tilt
    encoded: tuple[bytes, bytes]  # both views as they were compressed
    rejects: Counter[str]


def build_photos(
    photos: dict[str, Path],
    output: str | Path,
    options: PhotoOptions | None = None,
    jobs: int = 1,
    overwrite: bool = False,
    progress: bool = False,
) -> BuildReport:
    """Make a correspondence file of named photos; continues a file whose making was stopped."""
    options = options or PhotoOptions()
    if not photos:
        raise ImageError("there are no photos")
    left_out = unnamed_images(photos)
    photos = {name: path for name, path in photos.items() if name not in left_out}
    names, paths = list(photos), list(photos.values())
    parts = split_images(names, options.split)
    tasks = [(photo, view) for photo in range(len(photos)) for view in range(options.views)]
    settings = {"source": "homographies", "images_hash": fingerprint(names, paths), **asdict(options)}
    with CorrespondenceWriter(output, settings, overwrite) as writer:
        todo = [task for task in tasks if _view_names(names, task)[0] not in writer.images]

        def records() -> Iterator[tuple[ImageRecord, ImageRecord, PairRecord]]:
            made = in_processes(partial(_try_pair, paths, options.split.seed, options.view), todo, jobs)
            for task, result in with_progress(made, "pair", len(tasks), len(tasks) - len(todo), progress):
                if isinstance(result, str):
                    left_out[names[task[0]]] = result
                else:
                    kept = keep_distractors(result, options.view.keypoints.distractors)
                    yield _records(_view_names(names, task), parts[names[task[0]]], kept)

        def store(made: list[tuple[ImageRecord, ImageRecord, PairRecord]]) -> None:
            writer.add([image for first, second, _ in made for image in (first, second)], [pair for *_, pair in made])

        was_complete = writer.complete
        if not was_complete:
            in_batches(records(), 32, store)
            if not writer.images:
                writer.path.unlink()
                raise ImageError(f"none of the {len(left_out)} photos can be used; {next(iter(left_out.values()))}")
            writer.finish({"left_out": left_out, "versions": versions()})
    return read_report(output, was_complete)


def _view_names(names: Sequence[str], task: Task) -> tuple[str, str]:
    return f"{names[task[0]]}#{task[1]}a", f"{names[task[0]]}#{task[1]}b"


def keep_distractors(pair: SomePair, count: int) -> SomePair:
    """The pair with its matched keypoints first, then the strongest of the others, as many as asked for."""
    found = pair.correspondences
    kept = []
    for side, keypoints in enumerate((pair.first_keypoints, pair.second_keypoints)):
        alone = np.ones(len(keypoints), np.bool_)
        alone[found.indices[:, side]] = False
        others = np.flatnonzero(alone)
        strongest = others[np.argsort(-keypoints.response[others], kind="stable")[:count]]
        kept.append(keypoints[np.concatenate([found.indices[:, side], strongest])])
    rows = np.arange(len(found), dtype=np.int32)
    found = replace(found, indices=np.stack([rows, rows], axis=1))
    return replace(pair, first_keypoints=kept[0], second_keypoints=kept[1], correspondences=found)


def _records(names: tuple[str, str], part: str, pair: ViewPair) -> tuple[ImageRecord, ImageRecord, PairRecord]:
    first, second = (
        ImageRecord(name, part, (pixels.shape[1], pixels.shape[0]), keypoints, data)
        for name, pixels, keypoints, data in zip(
            names,
            (pair.first, pair.second),
            (pair.first_keypoints, pair.second_keypoints),
            pair.encoded,
            strict=True,
        )
    )
    return first, second, PairRecord(*names, pair.correspondences, pair.rejects)


def _try_pair(photos: list[Path], seed: int, options: ViewOptions, task: Task) -> ViewPair | str:
    try:
        return make_photo_pair(photos, seed, options, task)
    except LogpolarError as error:
        return str(error)
    except (cv2.error, MemoryError) as error:
        return f"{photos[task[0]]}: cannot be used ({type(error).__name__}: {error})"


def make_photo_pair(photos: Sequence[Path], seed: int, options: ViewOptions, task: Task) -> ViewPair:
    """A pair of views of a photo; what it looks like depends on the seed and its place alone."""
    random = np.random.default_rng((seed, *task))
    other = (task[0] + int(random.integers(1, max(len(photos), 2)))) % len(photos)
    photo = _read_photo(photos[task[0]], options)
    try:
        backdrop = _read_photo(photos[other], options)
    except ImageError:  # that photo's fault, not this one's
        backdrop = photo
    return make_view_pair(photo, backdrop, options, random)


def _read_photo(path: Path, options: ViewOptions) -> Bytes:
    return to_bytes(shrink(read_gray(path), options.max_size))


def make_view_pair(photo: Bytes, backdrop: Bytes, options: ViewOptions, random: np.random.Generator) -> ViewPair:
    """Two views of ``photo``; where the second looks past the photo's edge it sees ``backdrop``.

    Each view shows things that the other does not, as real photos do: the first is a crop, the second is not bound
    to it. Otherwise a descriptor would learn that far surroundings are always the same.
    """
    height, width = photo.shape
    share = random.uniform(options.min_crop, 1, 2)
    crop = np.round(share * (width, height)).astype(int)
    corner = np.floor(random.random(2) * (np.array([width, height]) - crop + 1)).astype(int)
    low, high = -np.log(options.max_zoom), np.log(options.max_zoom) / 2
    zoom = float(np.exp(random.uniform(low, high)))
    zoom = max(zoom, min(options.min_side / min(width, height), 1))
    homography, shape = _random_view(width, height, zoom, options, random)

    first = photo[corner[1] : corner[1] + crop[1], corner[0] : corner[0] + crop[0]]
    second = _warp(photo, backdrop, homography, shape, zoom)
    shift = np.array([[1, 0, corner[0]], [0, 1, corner[1]], [0, 0, 1.0]])
    homography = homography @ shift
    encoded = _finish(first, options, random), _finish(second, options, random)
    first, second = decode_gray(encoded[0]), decode_gray(encoded[1])
    first_keypoints, second_keypoints = (sift(options.keypoints)(to_gray(view)) for view in (first, second))
    found, rejects = find_correspondences(
        first_keypoints, second_keypoints, homography, second.shape[::-1], options.rules, random
    )
    return ViewPair(
        first, second, first_keypoints, second_keypoints, found, homography, zoom, (encoded[0], encoded[1]), rejects
    )


def _random_view(
    width: int, height: int, zoom: float, options: ViewOptions, random: np.random.Generator
) -> tuple[Matrix, tuple[int, int]]:
    """Homography from the photo to a view of it, and the view's (width, height)."""
    turn = random.uniform(-options.max_turn, options.max_turn)
    if random.random() < 0.5:
        turn *= 20 / max(options.max_turn, 20)
    centre = np.array([width - 1, height - 1]) / 2
    # A view as large as the photo's own, times the zoom, but no larger than the photo.
    shape = np.minimum(np.round(np.array([width, height]) * zoom), (width, height)).astype(int)
    look_at = centre + random.uniform(-0.15, 0.15, 2) * (width, height)
    radians = np.radians(turn)
    rotation = zoom * np.array([[np.cos(radians), -np.sin(radians)], [np.sin(radians), np.cos(radians)]])
    corners = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], np.float64)
    tilt = random.uniform(-options.max_tilt, options.max_tilt, (4, 2)) * (width, height) / 2
    target = (corners + tilt - look_at) @ rotation.T + (shape - 1) / 2
    matrix = cv2.getPerspectiveTransform(corners.astype(np.float32), target.astype(np.float32))
    return np.asarray(matrix, np.float64), (int(shape[0]), int(shape[1]))


def _warp(photo: Bytes, backdrop: Bytes, homography: Matrix, shape: tuple[int, int], zoom: float) -> Bytes:
    if zoom < 1:
        # What a lens and a coarser sensor would do: half a pixel of blur in the small image.
        photo = np.asarray(cv2.GaussianBlur(photo, (0, 0), 0.5 * np.sqrt(1 / zoom**2 - 1) + 1e-3), np.uint8)
    behind = cv2.resize(backdrop, shape, interpolation=cv2.INTER_AREA)
    view = cv2.warpPerspective(photo, homography, shape, flags=cv2.INTER_LINEAR)
    mask = cv2.warpPerspective(np.ones_like(photo), homography, shape, flags=cv2.INTER_NEAREST)
    return np.where(mask > 0, view, behind).astype(np.uint8)


def _finish(view: Bytes, options: ViewOptions, random: np.random.Generator) -> bytes:
    return compress(change_light(view, random), options.quality, random)


def change_light(view: Bytes, random: np.random.Generator) -> Bytes:
    """Another camera and another hour: smooth light, gamma, contrast, blur, noise; each in half of the cases."""
    values = view.astype(np.float32) / 255
    if random.random() < 0.5:
        light = random.uniform(-0.3, 0.3, (3, 3)).astype(np.float32)
        values *= np.exp(np.asarray(cv2.resize(light, view.shape[::-1], interpolation=cv2.INTER_CUBIC)))
    if random.random() < 0.5:
        values = np.clip(values, 0, 1) ** np.float32(np.exp(random.normal(0, 0.35)))
    if random.random() < 0.5:
        values = (values - 0.5) * np.float32(np.exp(random.normal(0, 0.25))) + np.float32(0.5 + random.normal(0, 0.08))
    if random.random() < 0.3:
        values = np.asarray(cv2.GaussianBlur(values, (0, 0), random.uniform(0.3, 1.2)), np.float32)
    if random.random() < 0.5:
        values = values + random.normal(0, random.uniform(0, 0.03), view.shape).astype(np.float32)
    return np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)


def compress(view: Bytes, quality: int, random: np.random.Generator) -> bytes:
    """JPEG of the quality given, or, in half of the cases, of one from 40 to 94."""
    return encode_gray(view, int(random.integers(40, 95)) if random.random() < 0.5 else quality)
